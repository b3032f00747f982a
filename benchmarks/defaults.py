"""Choose the default weight (and learning rate) of semi-offline RL on validation data. No test split is read.

python -m benchmarks.defaults --model FLAN_T5_SMALL --data_dir DATA --output_dir runs/defaults

DATA has a folder for each task (commongen, samsum, scitldr); `ads` needs none and has its tiny model. Each task is
fine-tuned with masks once. Every variant then is `semioffline.run` from that checkpoint: one half of the validation
rows chooses the checkpoint of the RL stage, the other half measures it. Stopped and started again it goes on.

defaults.json has, for each task and variant, the reward before and after, the paired difference, and the metrics that
were not rewarded; and for each variant the share of the best variant's gain that it has, the mean over tasks and the
lowest. The variant with the highest lowest share is named: a default must not fail anywhere.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semioffline.cli.demo import tiny_policy
from semioffline.data.options import DataOptions
from semioffline.data.splits import load_splits
from semioffline.experiments.job_results import INITIAL, MFT, RESULT, JobResult
from semioffline.experiments.provenance import commit
from semioffline.experiments.whole_job import run
from semioffline.printing import say
from semioffline.storage.files import make_folder, write_atomically
from semioffline.training.run_folder import versions

TASKS = ("ads", "commongen", "samsum", "scitldr")


@dataclass(frozen=True)
class Variant:
    """Settings of the RL stage."""

    ratio: float
    rate: float
    """Of the RL stage's own learning rate."""

    @property
    def label(self) -> str:
        return f"ratio-{self.ratio:g}-rate-{self.rate:g}"


@dataclass(frozen=True)
class Measured:
    """One variant on one task, on validation rows that nothing was chosen by."""

    before: float
    after: float
    ahead: dict[str, float]
    """mean, low, high and p of the paired difference"""
    others: dict[str, list[float]]
    """metric -> before and after"""
    static_target: str
    seconds: float


def read_rows(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train rows, and the two halves of the validation rows by the names of validation and test."""
    own = None if task == "ads" else options.model
    data = DataOptions(task=task, data_dir=None if task == "ads" else str(Path(options.data_dir) / task))
    data.read_by(own)
    rows = load_splits(data, seed=0).rows
    train, dev = rows["train"], rows["validation"].shuffle(seed=0)
    half = min(len(dev) // 2, options.validation_rows)
    parts = {"train": train.shuffle(seed=0).select(range(min(len(train), options.limit)))}
    return parts | {"validation": dev.select(range(half)), "test": dev.select(range(half, 2 * half))}


def train_start(task: str, rows: dict[str, Any], options: argparse.Namespace, folder: Path) -> Path:
    """The M-FT checkpoint of a task, by a job whose RL stage is one step."""
    steps: dict[str, Any] = {} if options.mft_steps is None else {"mft_steps": options.mft_steps}
    own: dict[str, Any] = {"mft_steps": 300, "mft_learning_rate": 2e-3, "batch_size": 32} if task == "ads" else {}
    run(
        tiny_policy(0) if task == "ads" else options.model,
        rows,
        output_dir=folder,
        task=task,
        device=options.device,
        rl_steps=1,
        more_mft_steps=0,
        static_target="ground_truth",
        minutes=options.minutes,
        **own | steps,
    )
    return folder / MFT / "model"


def measure(task: str, rows: dict[str, Any], start: Path, variant: Variant, options: argparse.Namespace) -> Measured:
    """One variant from the checkpoint of its task."""
    base = 1e-3 if task == "ads" else options.rl_learning_rate
    folder = Path(options.output_dir) / task / variant.label
    own: dict[str, Any] = {"batch_size": 32, "num_samples": 32} if task == "ads" else {}
    result = run(
        start,
        rows,
        output_dir=folder,
        task=task,
        device=options.device,
        mft_steps=0,
        more_mft_steps=0,
        rl_steps=options.rl_steps,
        rl_ratio=variant.ratio,
        rl_learning_rate=base * variant.rate,
        **own,
    )
    assert result is not None
    return read_result(result, json.loads((folder / "static_target.json").read_text(encoding="utf-8"))["target"])


def read_result(result: JobResult, target: str) -> Measured:
    before, after = result.models[INITIAL], result.models[RESULT]
    difference = before.difference
    assert difference is not None
    return Measured(
        before=before.metrics["reward"].mean,
        after=after.metrics["reward"].mean,
        ahead={name: float(value) for name, value in asdict(difference).items()},
        others={name: [before.metrics[name].mean, one.mean] for name, one in after.metrics.items()},
        static_target=target,
        seconds=after.seconds,
    )


def shares(found: dict[str, dict[str, Measured]]) -> dict[str, dict[str, float]]:
    """variant -> its share of the best variant's gain: the mean over tasks, and the lowest."""
    labels = [label for label in next(iter(found.values())) if all(label in own for own in found.values())]
    by_variant: dict[str, list[float]] = {label: [] for label in labels}
    for own in found.values():
        best = max(max(one.ahead["mean"] for one in own.values()), 1e-9)
        for label in labels:
            by_variant[label].append(own[label].ahead["mean"] / best)
    return {label: {"mean": sum(each) / len(each), "lowest": min(each)} for label, each in by_variant.items()}


def write(found: dict[str, dict[str, Measured]], folder: Path) -> None:
    summary = shares(found)
    chosen = max(summary, key=lambda label: summary[label]["lowest"]) if summary else None
    tasks = {task: {label: asdict(one) for label, one in own.items()} for task, own in found.items()}
    told = {"kind": "defaults", "chosen": chosen, "shares": summary, "tasks": tasks}
    about = {"commit": commit(), "versions": versions(system=False)}
    write_atomically(folder / "defaults.json", json.dumps(told | {"about": about}, indent=1))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="flan-t5-small, for all tasks but ads")
    parser.add_argument("--data_dir", help="folder with a folder for each task")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.3, 1, 3, 10])
    parser.add_argument("--rates", nargs="+", type=float, default=[1], help="times --rl_learning_rate")
    parser.add_argument("--rl_learning_rate", type=float, default=5e-5, help="of flan-t5-small; ads has 1e-3")
    parser.add_argument("--rl_steps", type=int, default=150)
    parser.add_argument("--mft_steps", type=int, help="as `run` decides when not given")
    parser.add_argument("--minutes", type=float, default=20.0, help="of `run`, for the M-FT stage")
    parser.add_argument("--limit", type=int, default=3000, help="training rows")
    parser.add_argument("--validation_rows", type=int, default=200, help="rows of each half")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(argv)
    folder = Path(options.output_dir)
    make_folder(folder)
    found: dict[str, dict[str, Measured]] = {}
    for task in options.tasks:
        rows = read_rows(task, options)
        start = train_start(task, rows, options, folder / task / "start")
        found[task] = {}
        for variant in [Variant(ratio, rate) for rate in options.rates for ratio in options.ratios]:
            say(f"== {task}: {variant.label}")
            found[task][variant.label] = measure(task, rows, start, variant, options)
            write(found, folder)
    summary = shares(found)
    for label, share in summary.items():
        say(f"{label}: {share['mean']:.2f} of the best gain on average, {share['lowest']:.2f} at least")


if __name__ == "__main__":
    main()
