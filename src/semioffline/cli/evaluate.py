"""semioffline evaluate: decode a split and score it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from semioffline.cli.options import parse
from semioffline.cli.results import EvaluateResult
from semioffline.cli.run_folder import about, print_metrics
from semioffline.config import MethodConfig, TruncationSide
from semioffline.data.candidates import DIGEST, check_settings, digest_rows
from semioffline.data.examples import Examples
from semioffline.data.lengths import text_limits
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.evaluation.decode import read_outputs
from semioffline.evaluation.metrics import evaluate
from semioffline.evaluation.results import write_predictions
from semioffline.experiments.provenance import write_about
from semioffline.methods.ilql import restore_heads
from semioffline.policy.decoding import Decoding
from semioffline.printing import say
from semioffline.scoring.reward_set import RewardSet
from semioffline.storage.files import checksum
from semioffline.training.run_folder import open_folder, write_result, write_settings
from semioffline.validation import BATCH, BEAMS, NOT_NEGATIVE, PENALTY, SECONDS, SEED, TOKENS, Options, setting


@dataclass
class EvaluateOptions(Options):
    output_dir: str | None = setting(
        None, "Run folder: result.json and predictions.jsonl; an evaluation that was stopped goes on there.", place=True
    )
    split: str = setting("test", "Which split.")
    metrics: list[str] = setting([], "Metrics by name; the task's own when not given.")
    batch_size: int = setting(32, "Inputs decoded at a time.", allowed=BATCH)
    max_prompt_length: int | None = setting(None, "Longest source in tokens.", allowed=TOKENS)
    max_completion_length: int | None = setting(None, "Longest output in tokens.", allowed=TOKENS)
    truncation_side: str | None = setting(
        None, "Which end of a long prompt is cut off: left | right.", choices=get_args(TruncationSide)
    )
    num_beams: int = setting(1, "Beams; 1 is greedy.", allowed=BEAMS)
    length_penalty: float = setting(1.0, "Exponent on the length in beam search.", allowed=PENALTY)
    no_repeat_ngram_size: int = setting(0, "Never repeat an n-gram of this size; 0 means free.", allowed=NOT_NEGATIVE)
    min_new_tokens: int = setting(0, "Shortest output in tokens.", allowed=NOT_NEGATIVE)
    reward_timeout: float | None = setting(
        None, "Seconds that one call of a metric may take; no limit when not given.", allowed=SECONDS
    )
    cuda_graphs: bool = setting(False, "Decode faster on a CUDA device, without beams: a token's step is recorded.")
    seed: int = setting(0, "Seed of the bootstrap and of synthetic tasks.", allowed=SEED)


SETTINGS, OUTPUTS = "evaluation.json", "outputs.jsonl"
"""What the outputs were made with, and the outputs, for an evaluation that is interrupted."""
_NOT_OUTPUTS = ("output_dir", "device", "batch_size", "cuda_graphs", "metrics", "reward_timeout")


def _checksum(model: str | None) -> dict[str, int]:
    """Of the weights in a folder, which may have been trained since; nothing is known of a model on the hub."""
    paths = sorted(Path(str(model)).glob("*.safetensors")) + sorted(Path(str(model)).glob("*.bin"))
    return {path.name: checksum(path) for path in paths}


def run(argv: list[str]) -> None:
    types = [DataOptions, ModelOptions, EvaluateOptions]
    task = parse("evaluate", types, argv)[0].load_task()
    data, model, options = parse("evaluate", types, argv, {**task.settings, "metrics": list(task.metrics)})
    device = model.checked_device()
    RewardSet(options.metrics)  # a misspelt name is told before anything is decoded
    rows = task.load(data.source(options.seed), options.split)
    path = Path(options.output_dir or f"runs/evaluate-{time.strftime('%Y%m%d-%H%M%S')}")
    folder = open_folder(path, resume=(path / SETTINGS).exists())
    policy = model.load().to(device)
    restore_heads(policy, Path(str(model.model)))
    if options.cuda_graphs:
        policy.generator.replay_decoding()
    lengths = ("max_prompt_length", "max_completion_length", "truncation_side", "min_new_tokens")
    shared = (*lengths, "num_beams", "length_penalty", "no_repeat_ngram_size")
    args = MethodConfig(
        output_dir=str(folder), use_cpu=device == "cpu", **{name: getattr(options, name) for name in shared}
    )
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
    write_about(folder, about("evaluate", argv), (data, model, options), {options.split: rows})
    started = time.perf_counter()
    evaluation = evaluate(
        policy, examples, options.metrics, decoding, options.batch_size, kept=kept, timeout=options.reward_timeout
    )
    metrics = evaluation.result(seed=options.seed)
    write_predictions(folder / "predictions.jsonl", evaluation, examples)
    seconds += time.perf_counter() - started
    result = EvaluateResult(options.split, seconds, metrics, str(examples.truncation))
    write_result(folder, result.to_json())
    print_metrics(f"{model.model}: {options.split}", metrics)
    say(f"{len(examples)} outputs in {seconds:.1f} s; see {folder}")
