"""How many reward calls does semi-offline RL need? Independent samples (REINFORCE) against counterfactual samples.

    python -m benchmarks.estimators --model FLAN_T5_SMALL --data_dir DATA --output_dir runs/estimators --jobs 9

DATA has the folders commongen and samsum; `ads` needs none and has its tiny model. The parts:

start: an M-FT checkpoint of each task.
timing: seconds of a step, while nothing else runs (ads, commongen).
learning: 100 steps with 2, 4, 8, 16 and 64 samples and three seeds, from that checkpoint (ads, commongen). This is
    `semioffline compare --config compare-TASK-estimators`; OUTPUT_DIR/TASK/comparison.json has the results.
errors: the error of the gradient at the logits, on validation inputs; OUTPUT_DIR/TASK/errors.json has the results.

What is done is not done again. Further flags, such as --budget_steps 2, are those of `semioffline compare`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks.gradient_error import BATCH, CHUNK, Problem, measure
from semioffline.cli.run_folder import shown_command
from semioffline.experiments.provenance import commit
from semioffline.printing import say
from semioffline.storage.files import make_folder, read_json, write_atomically
from semioffline.training.run_folder import versions

PARTS = ("start", "timing", "learning", "errors")
TASKS = ("ads", "commongen", "samsum")
LEARNING = ("ads", "commongen")
SAMSUM = ["--max_steps", "300", "--per_device_train_batch_size", "32", "--learning_rate", "1e-3", "--disable_dropout"]
SAMSUM += ["--write_result", "false", "--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "true"]
"""M-FT of the task that has no comparison."""
SAMPLES = (2, 4, 8, 16, 32, 64)
COUNTERFACTUAL = {"estimator": "counterfactual"}
VARIANTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "REINFORCE": ({}, (*SAMPLES, 128, 256)),
    "counterfactual": (COUNTERFACTUAL, SAMPLES),
}
"""name -> settings, numbers of samples"""
FEWEST, MOST = 8, 64
"""Repeated estimates of one gradient."""


def start_of(task: str, options: argparse.Namespace) -> Path:
    return Path(options.output_dir) / task / "start" / "model"


def command(task: str, options: argparse.Namespace, *words: str) -> list[str]:
    """Of the comparison of a task, or of M-FT for a task that has none."""
    folder = Path(options.output_dir) / task
    flags = ["compare", "--config", f"compare-{task}-estimators", "--jobs", str(options.jobs), *words, *options.more]
    if task not in LEARNING:
        flags, folder = ["train", "mft", "--task", task, *SAMSUM], folder / "start"
    if task != "ads":
        flags += ["--model", options.model, "--data_dir", str(Path(options.data_dir) / task)]
    return [sys.executable, "-m", "semioffline", *flags, "--device", options.device, "--output_dir", str(folder)]


def run_side_by_side(commands: list[list[str]]) -> None:
    children = [subprocess.Popen(words) for words in commands]
    codes = [child.wait() for child in children]
    if any(codes):
        raise SystemExit("a command failed: its message is above")


def train(options: argparse.Namespace) -> None:
    """The parts that train."""
    if "start" in options.parts:
        missing = [task for task in options.tasks if not (start_of(task, options) / "tokenizer_config.json").exists()]
        run_side_by_side([command(task, options, "--only", "start:0") for task in missing])
    learning = [task for task in options.tasks if task in LEARNING]
    for task in learning if "timing" in options.parts else ():
        run_side_by_side([command(task, options, "--only", "timing")])
    for task in learning if "learning" in options.parts else ():
        run_side_by_side([command(task, options)])


def errors_of(task: str, options: argparse.Namespace) -> tuple[Path, list[dict[str, Any]]]:
    """errors.json of a task and its rows."""
    path = Path(options.output_dir) / task / "errors.json"
    return path, read_json(path)["rows"] if path.exists() else []


def measure_errors(options: argparse.Namespace) -> None:
    """What errors.json lacks, in --jobs processes; it is written after each result."""
    every = [(name, number) for name, (_, numbers) in VARIANTS.items() for number in numbers]
    context, pending = multiprocessing.get_context("spawn"), {}
    with ProcessPoolExecutor(options.jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for task in options.tasks:
            problem = Problem(
                task=task,
                model=str(start_of(task, options)),
                data_dir=None if task == "ads" else str(Path(options.data_dir) / task),
                device=options.device,
                inputs=options.inputs,
                chunks=options.chunks,
            )
            known = {(row["variant"], row["num_samples"]) for row in errors_of(task, options)[1]}
            for name, number in sorted(every, key=lambda piece: -piece[1]):  # the longest ones first
                if (name, number) not in known and number <= options.most_samples:
                    repeats = min(max(options.samples // number, FEWEST), MOST) // 2 * 2
                    future = pool.submit(measure, problem, number, VARIANTS[name][0], repeats)
                    pending[future] = (task, name, number)
        for future in as_completed(pending):
            task, name, number = pending[future]
            path, rows = errors_of(task, options)
            row = {"variant": name, "num_samples": number} | future.result()
            rows = sorted([*rows, row], key=lambda each: every.index((each["variant"], each["num_samples"])))
            write(task, rows, options, path)
            say(f"{task}: {name}, {number} samples: {row['input']['error']:.3f}")


def write(task: str, rows: list[dict[str, Any]], options: argparse.Namespace, path: Path) -> None:
    shown = shown_command("", sys.argv[1:]).replace("semioffline ", "python -m benchmarks.estimators", 1)
    about = {"command": shown, "commit": commit(), "versions": versions(system=False)}
    settings = {"task": task, "batch": BATCH, "reference_samples": options.chunks * CHUNK}
    result = {"kind": "estimator_errors", **settings, "rows": rows, "about": about}
    write_atomically(path, json.dumps(result, indent=1))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="flan-t5-small, for all tasks but ads")
    parser.add_argument("--data_dir", help="folder with a folder for each task")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs or measurements at a time")
    parser.add_argument("--inputs", type=int, default=96, help="errors: inputs of each task")
    parser.add_argument("--samples", type=int, default=1024, help="errors: of each input, in all repeated estimates")
    parser.add_argument("--chunks", type=int, default=16, help=f"errors: {CHUNK} samples of the reference; even")
    parser.add_argument("--most_samples", type=int, default=256, help="errors: the largest number of samples")
    options, options.more = parser.parse_known_args(argv)
    make_folder(Path(options.output_dir))
    train(options)
    if "errors" in options.parts:
        measure_errors(options)


if __name__ == "__main__":
    main()
