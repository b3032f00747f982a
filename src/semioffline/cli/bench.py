"""semioffline bench: measure what a step of every method costs on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass

from semioffline.bench.results import BenchPlan, BenchResult, CaseResult
from semioffline.cli.options import parse
from semioffline.cli.recipes import Recipe
from semioffline.cli.run_folder import about
from semioffline.config import MethodConfig
from semioffline.data.options import ModelOptions
from semioffline.errors import UserError, unknown
from semioffline.printing import say
from semioffline.scoring.reward_set import check_names
from semioffline.storage.files import write_atomically
from semioffline.tasks.reading.kinds import model_kind
from semioffline.training.run_folder import open_folder, process_rank
from semioffline.validation import BATCH, BEAMS, PROCESSES, SAMPLES, Options, Range, setting

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


_FEW = Range(1, 10**5)


@dataclass
class BenchOptions(Options):
    models: list[str] = setting(
        ["bart-large", "t5-large", "pegasus-large", "smollm2-135m"],
        "Names of model sizes (random weights), or model folders.",
    )
    shapes: list[str] = setting(
        ["cnndm", "samsum", "squad", "xsum"], "Datasets of the paper whose text lengths are used."
    )
    methods: list[str] = setting(
        ["trainer", "ft", "mft", "mft-2", "semi_offline", "brio", "self_critic", "avg"],
        "Methods to measure. trainer: Transformers' Trainer; mft-2: mft with two decoder rows.",
    )
    num_samples: list[int] = setting([2, 16, 64, 256, 1024], "Values of num_samples for semi_offline.", allowed=SAMPLES)
    settings: list[str] = setting(["plain"], "How to run: plain | compile | graphs | compile+graphs")
    batch_size: list[int] = setting([16], "Inputs per step.", allowed=BATCH)
    steps: int = setting(20, "Steps to time; methods that generate get fewer.", allowed=_FEW)
    warmup: int = setting(8, "Steps before the timing begins.", allowed=_FEW._replace(low=0))
    window: int = setting(4, "Steps per time measurement; the result is the median measurement.", allowed=_FEW)
    candidates: int = setting(16, "Candidates per input for brio.", allowed=BEAMS)
    on_policy_samples: int = setting(16, "Samples per input for avg.", allowed=SAMPLES)
    reward: str = setting("rouge", "Reward for the methods that use one.")
    small: bool = setting(False, "Use tiny models and short texts: two minutes on two cores.")
    output_dir: str = setting("runs/bench", "Folder for bench.json and the plots.", place=True)
    reward_workers: int | None = setting(None, "The setting of the same name in training.", allowed=PROCESSES)
    overlap_rewards: bool = setting(True, "The setting of the same name in training.")
    pad_to_multiple_of: int = setting(1, "The setting of the same name in training.", allowed=BATCH)
    optim: str | None = setting(None, "The setting of the same name in training.")


def run(argv: list[str]) -> None:
    from semioffline.bench.measure import run as measure_all
    from semioffline.report.bench import draw

    small = "--small" in argv
    model, options = parse("bench", [ModelOptions, BenchOptions], argv, SMALL if small else None)
    models = [model.model] if model.model else options.models
    _check(models, options)
    folder = open_folder(options.output_dir, resume=True)
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

    if process_rank() > 0:  # several processes measure together; the first one tells
        measure_all(plan, lambda text: None, lambda rows: None)
        return
    rows = measure_all(plan, say, keep)
    failed = [row.error for row in rows if row.measured is None]
    if len(failed) == len(rows):
        raise UserError(f"nothing could be measured: {failed[0]}" if failed else "there is nothing to measure")
    paths = draw(rows, folder)
    say(f"{folder / 'bench.json'}; plots: {', '.join(path.name for path in paths) or 'none'}")


def _check(models: list[str], options: BenchOptions) -> None:
    """Check for problems that would fail every measurement."""
    from semioffline.bench.measure import METHODS, SETTINGS
    from semioffline.bench.models import MODELS, SHAPES

    for kind, known, given in (
        ("model", [*MODELS, "ads", "NAME/ON-THE-HUB", "path/to/folder"], [name for name in models if "/" not in name]),
        ("shape", SHAPES, options.shapes),
        ("method", METHODS, options.methods),
        ("setting", SETTINGS, options.settings),
    ):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    for name in models:
        if name not in MODELS and name != "ads":
            model_kind(name)  # whether there is such a model
    if options.window > options.steps:
        raise UserError(f"--window {options.window} must be at most --steps {options.steps}")
    check_names([options.reward])
    if options.optim:
        MethodConfig(output_dir=options.output_dir, use_cpu=True, optim=options.optim)
