"""Choose the default weight and learning rate of semi-offline RL on validation data. No test split is read.

python -m benchmarks.defaults --model FLAN_T5_SMALL --data_dir DATA --output_dir runs/defaults

DATA has a folder for each task (commongen, nqg, samsum, scitldr); `ads` needs none and has its tiny model. Each task is
fine-tuned with masks once, for as many steps as `semioffline run` plans for 20 minutes on two CPU cores. Every variant
then is `semioffline.run` from that checkpoint: one half of the validation rows chooses the checkpoint of the RL stage,
the other half measures it. More M-FT from the same checkpoint is measured once per task. Variants that are already in
OUTPUT_DIR/defaults.json are not measured again; --jobs runs several variants at a time.

defaults.json has, for each task and variant, the reward before and after, the paired difference, and the metrics that
were not rewarded; and for each variant the share of the best variant's gain that it has, the mean over tasks and the
lowest. A default must not fail anywhere: of the variants that keep the facts of `ads`, the one with the highest lowest
share is named.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semioffline.cli.demo import tiny_policy
from semioffline.cli.run_folder import shown_command
from semioffline.data.options import DataOptions
from semioffline.data.splits import load_splits
from semioffline.experiments.job_results import INITIAL, MFT, MORE_MFT, RESULT, JobResult
from semioffline.experiments.provenance import commit
from semioffline.printing import say
from semioffline.report.job import run
from semioffline.storage.files import make_folder, read_json, write_atomically
from semioffline.storage.records import Record
from semioffline.training.run_folder import versions

STEPS = {
    "ads": (300, 150, 200),
    "commongen": (445, 220, 330),
    "nqg": (200, 100, 150),
    "samsum": (90, 60, 80),
    "scitldr": (60, 45, 60),
}
"""task -> steps of M-FT, of RL, and of more M-FT for about the same time."""
KEPT = 0.95
OF_ADS = {"batch_size": 32, "num_samples": 32}


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
class Measured(Record):
    """One variant on one task, on validation rows that nothing was chosen by."""

    before: float
    after: float
    ahead: dict[str, float]
    """mean, low, high and p of the paired difference from the initial checkpoint"""
    over_more_mft: float
    """Mean difference from more M-FT."""
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


def train_start(task: str, options: argparse.Namespace) -> float:
    """The M-FT checkpoint of a task, and the reward of more M-FT: a job whose RL stage is one step."""
    first, _, more = STEPS[task]
    own: dict[str, Any] = {"mft_learning_rate": 2e-3, **OF_ADS} if task == "ads" else {}
    result = run(
        tiny_policy(0) if task == "ads" else options.model,
        read_rows(task, options),
        output_dir=Path(options.output_dir) / task / "start",
        task=task,
        device=options.device,
        mft_steps=first,
        rl_steps=1,
        more_mft_steps=more,
        static_target="ground_truth",
        **own,
    )
    assert result is not None
    return result.models[MORE_MFT].metrics["reward"].mean


def measure(task: str, variant: Variant, more_mft: float, options: argparse.Namespace) -> Measured:
    """One variant from the checkpoint of its task."""
    folder = Path(options.output_dir) / task / variant.label
    result = run(
        Path(options.output_dir) / task / "start" / MFT / "model",
        read_rows(task, options),
        output_dir=folder,
        task=task,
        device=options.device,
        mft_steps=0,
        more_mft_steps=0,
        rl_steps=STEPS[task][1],
        rl_ratio=variant.ratio,
        rl_learning_rate=(1e-3 if task == "ads" else options.rl_learning_rate) * variant.rate,
        **(OF_ADS if task == "ads" else {}),
    )
    assert result is not None
    target = json.loads((folder / "static_target.json").read_text(encoding="utf-8"))["target"]
    return read_result(result, target, more_mft)


def read_result(result: JobResult, target: str, more_mft: float) -> Measured:
    before, after = result.models[INITIAL], result.models[RESULT]
    difference = before.difference
    assert difference is not None
    return Measured(
        before=before.metrics["reward"].mean,
        after=after.metrics["reward"].mean,
        ahead={name: float(value) for name, value in asdict(difference).items()},
        over_more_mft=after.metrics["reward"].mean - more_mft,
        others={name: [before.metrics[name].mean, one.mean] for name, one in after.metrics.items()},
        static_target=target,
        seconds=after.seconds,
    )


def shares(found: dict[str, dict[str, Measured]]) -> dict[str, dict[str, float]]:
    """variant -> its share of the best variant's gain: the mean over the tasks and the lowest. Tasks where no variant
    gains significantly say nothing."""
    found = {task: own for task, own in found.items() if any(one.ahead["low"] > 0 for one in own.values())}
    labels = [label for label in next(iter(found.values()), {}) if all(label in own for own in found.values())]
    by_variant: dict[str, list[float]] = {label: [] for label in labels}
    for own in found.values():
        best = max(one.ahead["mean"] for one in own.values())
        for label in labels:
            by_variant[label].append(own[label].ahead["mean"] / best)
    return {label: {"mean": sum(each) / len(each), "lowest": min(each)} for label, each in by_variant.items()}


def read(folder: Path) -> dict[str, dict[str, Measured]]:
    """What defaults.json has already."""
    path = folder / "defaults.json"
    tasks = read_json(path)["tasks"] if path.exists() else {}
    return {task: {label: Measured.from_json(one) for label, one in own.items()} for task, own in tasks.items()}


def keeps_facts(label: str, found: dict[str, dict[str, Measured]]) -> bool:
    """Whether a variant games no reward where that can be measured: advertisements keep KEPT of their facts."""
    own = found.get("ads", {})
    return label in own and own[label].others["facts_right"][1] >= KEPT * own[label].others["facts_right"][0]


def write(found: dict[str, dict[str, Measured]], folder: Path) -> None:
    summary = shares(found)
    kept = [label for label in summary if keeps_facts(label, found)]
    chosen = max(kept, key=lambda label: summary[label]["lowest"], default=None)
    tasks = {task: {label: one.to_json() for label, one in own.items()} for task, own in found.items()}
    told = {"kind": "defaults", "chosen": chosen, "shares": summary, "tasks": tasks}
    command = shown_command("", sys.argv[1:]).replace("semioffline ", "python -m benchmarks.defaults", 1)
    about = {"command": command, "commit": commit(), "versions": versions(system=False)}
    write_atomically(folder / "defaults.json", json.dumps(told | {"about": about}, indent=1))


def measure_all(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Measured]]:
    """Every variant on every task, in --jobs processes; defaults.json is written after each."""
    variants = [Variant(ratio, rate) for rate in options.rates for ratio in options.ratios]
    found = {task: {} for task in options.tasks} | read(folder)
    missing = {task: [one for one in variants if one.label not in found[task]] for task in options.tasks}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        starts = {pool.submit(train_start, task, options): task for task in missing if missing[task]}
        pending: dict[Future[Measured], tuple[str, Variant]] = {}
        for start in as_completed(starts):
            task = starts[start]
            for variant in missing[task]:
                pending[pool.submit(measure, task, variant, start.result(), options)] = (task, variant)
        for future in as_completed(pending):
            task, variant = pending[future]
            found[task][variant.label] = future.result()
            say(f"== {task}: {variant.label}: {found[task][variant.label]}")
            write(found, folder)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="flan-t5-small, for all tasks but ads")
    parser.add_argument("--data_dir", help="folder with a folder for each task")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.3, 1, 3, 10])
    parser.add_argument("--rates", nargs="+", type=float, default=[1, 3, 10], help="times --rl_learning_rate")
    parser.add_argument("--rl_learning_rate", type=float, default=5e-5, help="of flan-t5-small; ads has 1e-3")
    parser.add_argument("--limit", type=int, default=8000, help="training rows")
    parser.add_argument("--validation_rows", type=int, default=300, help="rows of each half")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    options = parser.parse_args(argv)
    folder = Path(options.output_dir)
    make_folder(folder)
    for label, share in shares(measure_all(options, folder)).items():
        say(f"{label}: {share['mean']:.2f} of the best gain on average, {share['lowest']:.2f} at least")


if __name__ == "__main__":
    main()
