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
from semioffline.data.candidates import DIGEST, check_settings, digest_rows
from semioffline.data.examples import Examples
from semioffline.data.lengths import text_limits
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.evaluation.decode import read_outputs
from semioffline.evaluation.metrics import evaluate
from semioffline.evaluation.paired import Predictions, paired_changes
from semioffline.evaluation.results import write_predictions
from semioffline.experiments.provenance import Provenance, write_about
from semioffline.methods.shared.perturbed import restore_heads
from semioffline.policy.decoding import Decoding
from semioffline.printing import say
from semioffline.scoring.reward_set import RewardSet
from semioffline.storage.files import checksum, read_json
from semioffline.training.run_folder import PREDICTIONS, open_folder, write_result, write_settings
from semioffline.validation import BATCH, BEAMS, NOT_NEGATIVE, PENALTY, SECONDS, SEED, TOKENS, Options, setting


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


SETTINGS, OUTPUTS = "evaluation.json", "outputs.jsonl"
"""Files of an interrupted evaluation: its settings and its outputs."""
_NOT_OUTPUTS = ("output_dir", "device", "batch_size", "cuda_graphs", "metrics", "reward_timeout", "against")


def _checksum(model: str | None) -> dict[str, int]:
    """Return the checksums of the weights in a folder, which may have been trained since; none for a model on the
    Hub."""
    paths = sorted(Path(str(model)).glob("*.safetensors")) + sorted(Path(str(model)).glob("*.bin"))
    return {path.name: checksum(path) for path in paths}


def run(argv: list[str]) -> None:
    from semioffline.report.page import write_report

    types = [DataOptions, ModelOptions, EvaluateOptions]
    task = parse("evaluate", types, argv)[0].load_task()
    data, model, options = parse("evaluate", types, argv, {**task.settings, "metrics": default_metrics(task)})
    model.checked_device()
    RewardSet(options.metrics)  # a misspelt name is told before anything is decoded
    others = {name: _predictions_of(name) for name in options.against}
    path = Path(options.output_dir or f"runs/evaluate-{time.strftime('%Y%m%d-%H%M%S')}")
    made = about("evaluate", argv)
    result = evaluate_model(data, model, options, path, made)
    found = {}
    for name, kept in others.items():
        if kept is None:
            kept = path / "against" / re.sub(r"[^\w.-]", "_", name)
            same_data = replace(data)
            same_data.read_by(name)
            evaluate_model(same_data, replace(model, model=name), options, kept, made)
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
    data: DataOptions, model: ModelOptions, options: EvaluateOptions, path: Path, made: Provenance
) -> EvaluateResult:
    """Decode and score with one model, and write its run folder. An interrupted evaluation continues there."""
    device = model.checked_device()
    rows = data.load_task().load(data.source(options.seed), options.split)
    folder = open_folder(path, resume=(path / SETTINGS).exists())
    policy = model.load().to(device)
    restore_heads(policy, Path(str(model.model)))
    if options.cuda_graphs:
        policy.generator.replay_decoding()
    args = options.method_config(folder, device == "cpu")
    limits = text_limits(policy, args)
    examples = Examples(rows, policy, *limits, args.truncation_side)
    decoding = Decoding.for_evaluation(args, limits[1])
    kept = folder / OUTPUTS
    before, seconds = read_outputs(kept)
    settings = asdict(data) | asdict(model) | asdict(options) | {"decoding": decoding.signature()}
    settings = {name: value for name, value in settings.items() if name not in _NOT_OUTPUTS}
    own = {"model_checksum": _checksum(model.model), DIGEST: digest_rows(examples)}
    check_settings(folder / SETTINGS, settings | own, "outputs", begun=bool(before))
    write_settings(folder, data, model, options)
    write_about(folder, made, (data, model, options), {options.split: rows})
    started = time.perf_counter()
    evaluation = evaluate(
        policy, examples, options.metrics, decoding, options.batch_size, kept=kept, timeout=options.reward_timeout
    )
    metrics = evaluation.result(seed=options.seed)
    write_predictions(folder / PREDICTIONS, evaluation, examples)
    seconds += time.perf_counter() - started
    result = EvaluateResult(options.split, seconds, metrics, str(examples.truncation))
    write_result(folder, result.to_json())
    print_metrics(f"{model.model}: {options.split}", metrics)
    say(f"{len(examples)} outputs in {seconds:.1f} s; see {folder}")
    return result
