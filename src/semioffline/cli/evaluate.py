"""semioffline evaluate: decode a split and score it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from semioffline.cli.options import DataOptions, ModelOptions, at_least, parse
from semioffline.cli.run_folder import open_folder, print_metrics, write_result, write_settings
from semioffline.config import SemiOfflineConfig, option
from semioffline.data.examples import Examples
from semioffline.evaluation.metrics import evaluate, write_predictions
from semioffline.scoring.reward_set import RewardSet


@dataclass
class EvaluateOptions:
    output_dir: str = option("", "Run folder: result.json and predictions.jsonl.")
    split: str = option("test", "Which split.")
    metrics: list[str] = option([], "Metrics by name; the task's own when not given.")
    batch_size: int = option(32, "Inputs decoded at a time.")
    max_prompt_length: int | None = option(None, "Longest source in tokens.")
    max_completion_length: int | None = option(None, "Longest output in tokens.")
    truncation_side: str | None = option(None, "Which end of a long prompt is cut off: left | right.")
    num_beams: int = option(1, "Beams; 1 is greedy.")
    length_penalty: float = option(1.0, "Exponent on the length in beam search.")
    no_repeat_ngram_size: int = option(0, "Never repeat an n-gram of this size; 0 means free.")
    min_new_tokens: int = option(0, "Shortest output in tokens.")
    cuda_graphs: bool = option(False, "Decode faster on a CUDA device, without beams: a token's step is recorded.")
    seed: int = option(0, "Seed of the bootstrap and of synthetic tasks.")


def run(argv: list[str]) -> None:
    from semioffline.training.trainer import text_limits

    types = [DataOptions, ModelOptions, EvaluateOptions]
    task = parse("evaluate", types, argv)[0].load_task()
    data, model, options = parse("evaluate", types, argv, {**task.settings, "metrics": list(task.metrics)})
    at_least(1, options, "batch_size")
    at_least(0, options, "seed")
    device = model.checked_device()
    RewardSet(options.metrics)  # a misspelt name is told before anything is decoded
    rows = task.load(data.source(options.seed), options.split)
    folder = open_folder(options.output_dir or f"runs/evaluate-{time.strftime('%Y%m%d-%H%M%S')}")
    policy = model.load().to(device)
    if options.cuda_graphs:
        policy.replay_decoding()
    lengths = ("max_prompt_length", "max_completion_length", "truncation_side", "min_new_tokens")
    shared = (*lengths, "num_beams", "length_penalty", "no_repeat_ngram_size")
    args = SemiOfflineConfig(
        output_dir=str(folder), use_cpu=device == "cpu", **{name: getattr(options, name) for name in shared}
    )
    limits = text_limits(policy, args)
    examples = Examples(rows, policy, *limits, args.truncation_side)
    started = time.perf_counter()
    evaluation = evaluate(policy, examples, options.metrics, args.decoding(limits[1]), options.batch_size)
    metrics = evaluation.result(seed=options.seed)
    write_settings(folder, data, model, options)
    write_predictions(folder / "predictions.jsonl", evaluation, examples)
    seconds = time.perf_counter() - started
    write_result(
        folder, {"split": options.split, "seconds": seconds, "metrics": metrics, "truncation": str(examples.truncation)}
    )
    print_metrics(f"{model.model}: {options.split}", metrics)
    print(f"{len(examples)} outputs in {seconds:.1f} s; see {folder}")
