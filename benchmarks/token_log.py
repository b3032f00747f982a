"""What the log of drawn tokens adds to a step: semi-offline RL on `ads` with K = 64, windows of one logging interval,
with and without the log in turn.

    python -m benchmarks.token_log --output docs/results/token-log.json

The two differ in nothing but writing tokens/step-*.parquet. Seconds are of CPU time, which other work on the machine
disturbs least, and of the clock. Exits with 1 if the median of the windows' ratios, in CPU time, is above 1.02.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from transformers import TrainerCallback

from semioffline.algorithm.tensors import StepOutput
from semioffline.experiments.provenance import commit
from semioffline.methods.semi_offline import SemiOfflineConfig
from semioffline.policy.policy import Policy
from semioffline.tasks import ads
from semioffline.training import run_log, trainer
from semioffline.training.run_folder import versions


class Windows(TrainerCallback):
    """Times windows of `length` steps: with the log of tokens in every second one."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.logs_tokens = False
        self.seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        self.began = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.length == 0:
            self.began = (time.process_time(), time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.length == 0:
            now = (time.process_time(), time.perf_counter())
            self.seconds[self.logs_tokens].append((now[0] - self.began[0], now[1] - self.began[1]))
            self.logs_tokens = not self.logs_tokens

    def write(self, folder: Path, step: int, output: StepOutput, to_print: int, extra: Any = None) -> None:
        output = output if self.logs_tokens else replace(output, tokens=None)
        run_log.write_samples(folder, step, output, to_print, extra)


def measure(pairs: int, every: int, num_samples: int) -> dict[str, Any]:
    windows = Windows(every)
    rows = ads.build({"train": 2000}, 0)["train"]
    with tempfile.TemporaryDirectory() as folder, patch.object(trainer, "write_samples", windows.write):
        config = SemiOfflineConfig(
            output_dir=folder, max_steps=2 * every * (pairs + 1), logging_steps=every, num_samples=num_samples,
            per_device_train_batch_size=32, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            learning_rate=1e-4, max_prompt_length=48, max_completion_length=32,
        )  # fmt: skip
        policy = Policy(ads.build_model(0), ads.build_tokenizer())
        trained = trainer.SemiOfflineTrainer(policy, "click_rate", config, rows)
        trained.add_callback(windows)
        trained.train()
        assert len(list(Path(folder).glob("tokens/*.parquet"))) == pairs + 1
    without, with_log = windows.seconds[False][1:], windows.seconds[True][1:]  # the first ones load modules
    ratios = [[a / b for a, b in zip(one, other, strict=True)] for one, other in zip(with_log, without, strict=True)]
    return {
        "num_samples": num_samples,
        "steps_per_window": every,
        "windows": pairs,
        "cpu_ratio": median(ratio[0] for ratio in ratios),
        "clock_ratio": median(ratio[1] for ratio in ratios),
        "cpu_seconds_per_step": median(each[0] for each in without) / every,
        "cpu_ratios": [ratio[0] for ratio in ratios],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=30, help="pairs of windows")
    parser.add_argument("--logging_steps", type=int, default=10, help="as in training; 10 is its default")
    parser.add_argument("--num_samples", type=int, default=64)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    measured = measure(args.windows, args.logging_steps, args.num_samples)
    print(f"median ratio of {args.windows} pairs: {measured['cpu_ratio']:.4f} in CPU time, "
          f"{measured['clock_ratio']:.4f} by the clock")  # fmt: skip
    about = {"command": "python -m benchmarks.token_log", "commit": commit(), "versions": versions(system=False)}
    if args.output is not None:
        args.output.write_text(json.dumps({"kind": "token_log", "about": about, **measured}, indent=1))
    return 0 if measured["cpu_ratio"] <= 1.02 else 1


if __name__ == "__main__":
    sys.exit(main())
