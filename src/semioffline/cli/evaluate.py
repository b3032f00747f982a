"""semioffline evaluate: decode a split and score the outputs."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from semioffline.cli.options import default_metrics, parse
from semioffline.cli.results import EvaluateResult
from semioffline.cli.run_folder import about, print_changes, print_metrics
from semioffline.config import MethodConfig, TruncationSide
from semioffline.data.candidate_job import absolute
from semioffline.data.candidates import check_settings
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.data.shards import DIGEST, Split
from semioffline.engines.options import EngineOptions
from semioffline.errors import UserError
from semioffline.evaluation.evaluate_job import Collected, EvaluateJob, OutputFolder
from semioffline.evaluation.metrics import Metrics
from semioffline.evaluation.paired import Predictions, paired_changes
from semioffline.evaluation.statistics import CorpusScore
from semioffline.experiments.provenance import DataDigest, Provenance, write_about
from semioffline.methods.shared.perturbed import restore_heads
from semioffline.policy.decoding import Decoding
from semioffline.printing import Activity, activity, left, say
from semioffline.rewards.registry import FAMILIES
from semioffline.scoring.reward_set import RewardSet
from semioffline.storage.files import checksum, read_json
from semioffline.training.run_folder import PREDICTIONS, open_folder, write_result, write_settings
from semioffline.validation import BATCH, BEAMS, NOT_NEGATIVE, PENALTY, SECONDS, SEED, STEPS, TOKENS, Options, setting


@dataclass
class EvaluateOptions(Options):
    output_dir: str | None = setting(
        None, "Folder for result.json and predictions.jsonl. An interrupted evaluation continues there.", place=True
    )
    split: str = setting("test", "Split to read.")
    metrics: list[str] = setting([], "Names of metrics. Default: the task's metrics.")
    batch_size: int = setting(32, "Inputs to decode at a time.", allowed=BATCH)
    max_prompt_length: int | None = setting(None, "Longest source in tokens.", allowed=TOKENS)
    max_completion_length: int | None = setting(None, "Longest output in tokens.", allowed=TOKENS)
    truncation_side: str | None = setting(
        None, "Side where long prompts are cut: left | right.", choices=get_args(TruncationSide)
    )
    num_beams: int = setting(1, "Number of beams; 1: greedy decoding.", allowed=BEAMS)
    length_penalty: float = setting(1.0, "Beam search: exponent of the length in a beam's score.", allowed=PENALTY)
    no_repeat_ngram_size: int = setting(0, "Never repeat an n-gram of this size; 0: no limit.", allowed=NOT_NEGATIVE)
    min_new_tokens: int = setting(0, "Shortest output in tokens.", allowed=NOT_NEGATIVE)
    reward_timeout: float | None = setting(
        None, "Time limit for one call of a metric, in seconds. Default: no limit.", allowed=SECONDS
    )
    cuda_graphs: bool = setting(False, "Decode with CUDA graphs: faster on a CUDA device. Not with beams.")
    shard_size: int = setting(256, "Inputs per shard. An interruption loses at most one shard.", allowed=STEPS)
    seed: int = setting(0, "Random seed of the bootstrap and of synthetic tasks.", allowed=SEED)
    against: list[str] = setting(
        [],
        "Run folders or models to compare with, on the same inputs: differences, intervals and p-values.",
        place=True,
    )

    def method_config(self, folder: Path, on_cpu: bool) -> MethodConfig:
        """Return the settings for truncating and decoding texts."""
        names = ("max_prompt_length", "max_completion_length", "truncation_side", "min_new_tokens", "num_beams")
        shared = {name: getattr(self, name) for name in (*names, "length_penalty", "no_repeat_ngram_size")}
        return MethodConfig(output_dir=str(folder), use_cpu=on_cpu, **shared)


SETTINGS = "evaluation.json"
"""What the outputs were made with, for an evaluation that is interrupted."""
_NOT_OUTPUTS = ("output_dir", "device", "batch_size", "cuda_graphs", "metrics", "reward_timeout", "against")


def _checksum(model: str | None) -> dict[str, int]:
    """Return the checksums of the weights in a folder, which may have been trained since; none for a model on the
    Hub."""
    paths = sorted(Path(str(model)).glob("*.safetensors")) + sorted(Path(str(model)).glob("*.bin"))
    return {path.name: checksum(path) for path in paths}


def run(argv: list[str]) -> None:
    from semioffline.report.page import write_report

    types = [DataOptions, ModelOptions, EvaluateOptions, EngineOptions]
    task = parse("evaluate", types, argv)[0].load_task()
    defaults = {**task.settings, "metrics": default_metrics(task)}
    data, model, options, where = parse("evaluate", types, argv, defaults)
    if where.engine == "local":
        model.checked_device()
        RewardSet(options.metrics)  # a misspelt name is reported before anything is decoded
    others = {name: _predictions_of(name) for name in options.against}
    path = Path(options.output_dir or f"runs/evaluate-{time.strftime('%Y%m%d-%H%M%S')}")
    made = about("evaluate", argv)
    result = evaluate_model(data, model, options, where, path, made)
    found = {}
    for name, kept in others.items():
        if kept is None:
            kept = path / "against" / re.sub(r"[^\w.-]", "_", name)
            same_data = replace(data)
            same_data.read_by(name)
            evaluate_model(same_data, replace(model, model=name), options, where, kept, made)
            kept = kept / PREDICTIONS
        ours = Predictions.read(path / PREDICTIONS)
        found[name] = paired_changes(Predictions.read(kept), ours)
        print_changes(
            f"{options.split}: {model.model} against {name}, {len(ours.predictions):,} inputs",
            found[name],
            note=_different_decoding(result, kept.parent),
            names=("other", "this"),
        )
    if found:
        differences = {name: {m: change.difference for m, change in each.items()} for name, each in found.items()}
        write_result(path, replace(result, against=differences).to_json())
    say(f"Report: {write_report([path])}")


def _predictions_of(name: str) -> Path | None:
    """Return the path of the outputs in a run folder; None if the name is a model, which must generate them first."""
    path = Path(name)
    if not path.is_dir() or (path / "config.json").exists() or (path / "adapter_config.json").exists():
        return None
    if not (path / PREDICTIONS).exists():
        raise UserError(f"--against {name} must be a run folder with {PREDICTIONS}, or a model")
    return path / PREDICTIONS


def _different_decoding(result: EvaluateResult, other: Path) -> str:
    """Return a note if the other outputs were decoded with different settings."""
    if not (other / "result.json").exists():
        return ""
    known = read_json(other / "result.json").get("metrics") or {}
    pairs = [(metric.signature, known[name].get("signature", "")) for name, metric in result.metrics.items()
             if isinstance(known.get(name), dict)]  # fmt: skip
    one, two = next(((a, b) for a, b in pairs if a != b), ("", ""))
    return f"measured in another way: {one} here, {two} there" if one else ""


def evaluate_model(
    data: DataOptions,
    model: ModelOptions,
    options: EvaluateOptions,
    where: EngineOptions,
    path: Path,
    made: Provenance,
) -> EvaluateResult:
    """Decode and score with one model, and write its run folder. An interrupted evaluation continues there."""
    engine = where.make()
    split = Split(data.load_task(), data.source(options.seed), options.split)
    content = split.check()
    folder = open_folder(path, resume=(path / SETTINGS).exists())
    place = OutputFolder(folder.absolute(), content.rows, options.shard_size)
    settings = asdict(data) | asdict(model) | asdict(options)
    settings = {name: value for name, value in settings.items() if name not in _NOT_OUTPUTS}
    settings |= {"model_checksum": _checksum(model.model), DIGEST: content.digest}
    started, collected = time.perf_counter(), Collected(content.rows)
    with engine.open(_job(place, model, options), folder) as workers:
        decoding: Decoding = workers.about["decoding"]
        there = place.begin()
        settings["decoding"] = decoding.signature()
        check_settings(folder / SETTINGS, settings, "outputs", begun=bool(there))
        write_settings(folder, data, model, options)
        read = DataDigest(content.rows, content.columns_digest)
        write_about(folder, made, (data, model, options), {options.split: read})
        seconds = place.seconds(there)
        with activity(is_told=True) as shown:
            progress = _Progress(shown, content.rows)
            for one in workers.make(split.shards(place.shard_size, range(place.shards)), progress.add):
                collected.add(one.result)
    if collected.cut.prompts or collected.cut.completions:
        say(str(replace(collected.cut, of=content.rows)))
    metrics = collected.result(_corpus_scores(options.metrics, decoding), options.seed)
    place.join(folder / PREDICTIONS)
    seconds += time.perf_counter() - started
    result = EvaluateResult(options.split, seconds, metrics, str(replace(collected.cut, of=content.rows)))
    write_result(folder, result.to_json())
    print_metrics(f"{model.model}: {options.split}", metrics)
    say(f"{content.rows} outputs in {seconds:.1f} s; see {folder}")
    return result


class _Progress:
    """Shows how many inputs are done."""

    def __init__(self, shown: Activity, total: int) -> None:
        self.shown, self.total, self.done = shown, total, 0
        self.began = time.monotonic()
        self.add(0)

    def add(self, inputs: int) -> None:
        self.done += inputs
        parts = [left(self.began, self.done, self.total - self.done)] if self.done else []
        self.shown.show(f"evaluate {self.done}/{self.total}", *parts)


def _job(place: OutputFolder, model: ModelOptions, options: EvaluateOptions) -> EvaluateJob:
    return EvaluateJob(
        folder=place,
        model=replace(model, model=model.model and absolute(model.model)),
        metrics=[absolute(name) for name in options.metrics],
        config=options.method_config,
        batch_size=options.batch_size,
        restore=restore_heads,
        timeout=options.reward_timeout,
        cuda_graphs=options.cuda_graphs,
    )


def _corpus_scores(metrics: list[str], decoding: Decoding) -> dict[str, CorpusScore]:
    """Of the metrics that are no models: models have a value for each input."""
    return Metrics([name for name in metrics if name.partition(":")[0] not in FAMILIES], decoding).corpus_scores()
