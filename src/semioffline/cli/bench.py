"""semioffline bench: what a step of every method costs on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from semioffline.bench.results import BenchPlan, BenchResult, CaseResult
from semioffline.cli.options import ModelOptions, parse
from semioffline.cli.recipes import Recipe
from semioffline.cli.run_folder import about, open_folder
from semioffline.config import setting
from semioffline.files import write_atomically

SMALL: Recipe = {
    "models": ["bart-tiny", "llama-tiny"],
    "shapes": ["tiny"],
    "num_samples": [2, 16, 64],
    "steps": 6,
    "warmup": 2,
    "window": 2,
    "batch_size": [8],
    "candidates": 4,
    "on_policy_samples": 4,
}


@dataclass
class BenchOptions:
    models: list[str] = setting(
        ["bart-large", "t5-large", "pegasus-large", "smollm2-135m"], "Sizes by name (random weights), or folders."
    )
    shapes: list[str] = setting(
        ["cnndm", "samsum", "squad", "xsum"], "Lengths of the texts: those of the paper's data."
    )
    methods: list[str] = setting(
        ["trainer", "ft", "mft", "mft-2", "semi_offline", "brio", "self_critic", "avg"],
        "What is measured; trainer is Transformers' own, mft-2 is mft with two decoder rows.",
    )
    num_samples: list[int] = setting([2, 16, 64, 256, 1024], "K of semi_offline.")
    settings: list[str] = setting(["plain"], "plain | compile | graphs | compile+graphs")
    batch_size: list[int] = setting([16], "Inputs in one step.")
    steps: int = setting(20, "Steps that are timed (fewer for methods that generate).")
    warmup: int = setting(8, "Steps before them.")
    window: int = setting(4, "Steps between two looks at the clock; the result is the median of these windows.")
    candidates: int = setting(16, "Candidates of brio.")
    on_policy_samples: int = setting(16, "K of avg.")
    reward: str = setting("rouge", "Reward of the methods that have one.")
    small: bool = setting(False, "Tiny models and texts: two minutes on two cores.")
    output_dir: str = setting("runs/bench", "Where bench.json and the plots go.")
    reward_workers: int | None = setting(None, "As in training.")
    overlap_rewards: bool = setting(True, "As in training.")
    pad_to_multiple_of: int = setting(1, "As in training.")
    optim: str | None = setting(None, "As in training.")


def run(argv: list[str]) -> None:
    from semioffline.bench.measure import run as measure_all
    from semioffline.report.bench import draw

    small = "--small" in argv
    model, options = parse("bench", [ModelOptions, BenchOptions], argv, SMALL if small else None)
    folder = open_folder(options.output_dir, resume=True)
    models = [model.model] if model.model else options.models
    arguments: Recipe = {
        name: getattr(options, name) for name in ("reward_workers", "overlap_rewards", "pad_to_multiple_of")
    }
    arguments |= {"optim": options.optim} if options.optim else {}
    plan = BenchPlan(
        models=models,
        shapes=options.shapes,
        methods=options.methods,
        samples=options.num_samples,
        settings=options.settings,
        batch_sizes=options.batch_size,
        warmup=options.warmup,
        steps=options.steps,
        window=options.window,
        candidates=options.candidates,
        on_policy_samples=options.on_policy_samples,
        reward=options.reward,
        device=model.checked_device(),
        dtype=model.dtype,
        arguments=arguments,
    )
    made = about("bench", argv)

    def keep(rows: list[CaseResult]) -> None:
        write_atomically(folder / "bench.json", json.dumps(BenchResult(made, plan, rows).to_json(), indent=1))

    if int(os.environ.get("RANK", "0")) > 0:  # several processes measure together; the first one tells
        measure_all(plan, lambda text: None, lambda rows: None)
        return
    rows = measure_all(plan, lambda text: print(text, flush=True), keep)
    paths = draw(rows, folder)
    print(f"{folder / 'bench.json'}; plots: {', '.join(path.name for path in paths) or 'none'}")
