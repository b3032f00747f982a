"""semioffline bench: what a step of every method costs on this machine."""

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
        ["bart-large", "t5-large", "pegasus-large", "smollm2-135m"], "Sizes by name (random weights), or folders."
    )
    shapes: list[str] = setting(
        ["cnndm", "samsum", "squad", "xsum"], "Lengths of the texts: those of the paper's data."
    )
    methods: list[str] = setting(
        ["trainer", "ft", "mft", "mft-2", "semi_offline", "brio", "self_critic", "avg"],
        "What is measured; trainer is Transformers' own, mft-2 is mft with two decoder rows.",
    )
    num_samples: list[int] = setting([2, 16, 64, 256, 1024], "K of semi_offline.", allowed=SAMPLES)
    settings: list[str] = setting(["plain"], "plain | compile | graphs | compile+graphs")
    batch_size: list[int] = setting([16], "Inputs in one step.", allowed=BATCH)
    steps: int = setting(20, "Steps that are timed (fewer for methods that generate).", allowed=_FEW)
    warmup: int = setting(8, "Steps before them.", allowed=_FEW._replace(low=0))
    window: int = setting(
        4, "Steps between two looks at the clock; the result is the median of these windows.", allowed=_FEW
    )
    candidates: int = setting(16, "Candidates of brio.", allowed=BEAMS)
    on_policy_samples: int = setting(16, "K of avg.", allowed=SAMPLES)
    reward: str = setting("rouge", "Reward of the methods that have one.")
    small: bool = setting(False, "Tiny models and texts: two minutes on two cores.")
    output_dir: str = setting("runs/bench", "Where bench.json and the plots go.", place=True)
    reward_workers: int | None = setting(None, "As in training.", allowed=PROCESSES)
    overlap_rewards: bool = setting(True, "As in training.")
    pad_to_multiple_of: int = setting(1, "As in training.", allowed=BATCH)
    optim: str | None = setting(None, "As in training.")


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
    """What would end every measurement, before the first one."""
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
