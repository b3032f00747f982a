"""Seconds until a command answers, median of five processes each: run it where nothing else runs.

    python -m benchmarks.start_up

`train --help`; and `train` from the start of its process until it calls the trainer: all imports, the command line,
four rows and the demo's model. Exit code 1: one of them takes longer than it should.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMES = 5
HELP, TRAINER = "train --help", "train, until the trainer"
LIMITS = {HELP: 1.5, TRAINER: 3.0}
UNTIL_THE_TRAINER = """
import os, sys
from semioffline.cli import command, main
command("train")
from semioffline.training.trainer import SemiOfflineTrainer
SemiOfflineTrainer.__init__ = lambda *args, **kwargs: os._exit(0)
main(sys.argv[1:])
os._exit(1)
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_inputs(folder)
        words = ["train", "mft", "--model", f"{folder}/model", "--train_file", f"{folder}/train.jsonl"]
        words += ["--device", "cpu", "--output_dir", f"{folder}/run"]
        commands = {
            HELP: [sys.executable, "-m", "semioffline", "train", "--help"],
            TRAINER: [sys.executable, "-c", UNTIL_THE_TRAINER, *words],
        }
        found = {name: statistics.median(seconds_of(argv) for _ in range(TIMES)) for name, argv in commands.items()}
    for name, seconds in found.items():
        print(f"{name:<28}{seconds:6.2f} s  (limit {LIMITS[name]:g} s)")
    return int(any(seconds > LIMITS[name] for name, seconds in found.items()))


def make_inputs(folder: Path) -> None:
    """The demo's model and some of its rows."""
    from semioffline.cli.demo import tiny_policy
    from semioffline.tasks import ads

    tiny_policy(seed=0).save(folder / "model")
    ads.build({"train": 4})["train"].to_json(folder / "train.jsonl")


def seconds_of(argv: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    raise SystemExit(main())
