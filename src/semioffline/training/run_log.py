"""What training leaves in the run folder: metrics.jsonl and sampled completions."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from semioffline.algorithm.tensors import CompletionRow


class RunLog(TrainerCallback):
    """metrics.jsonl: one line for every log, and nothing twice after a resume. Also the seconds of a step."""

    def __init__(self) -> None:
        self.started = 0.0
        self.total = 0.0
        self.before = 0.0
        """Seconds of the steps that were made before a resume."""
        self.seconds: list[float] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        path = Path(str(args.output_dir)) / "metrics.jsonl"
        if state.is_world_process_zero and path.exists():
            kept = [line for line in path.read_text().splitlines() if _step_of(line) <= state.global_step]
            path.write_text("".join(line + "\n" for line in kept) if state.global_step else "")
            self.before = json.loads(kept[-1]).get("time/train", 0.0) if state.global_step and kept else 0.0
            self.total = self.before

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)
        self.total += self.seconds[-1]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs and self.seconds:
            logs["time/step"] = sum(self.seconds) / len(self.seconds)
            self.seconds.clear()
        if state.is_world_process_zero and logs:
            with open(Path(str(args.output_dir)) / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"step": state.global_step} | logs | {"time/train": self.total}) + "\n")


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; infinity for one that a kill left half written."""
    try:
        return json.loads(line)["step"]
    except ValueError:
        return math.inf


def as_numbers(values: list[float | Tensor]) -> list[float]:
    """Metrics of several steps as plain numbers; those on a device come in one piece."""
    on_device = [value for value in values if isinstance(value, Tensor)]
    if not on_device:
        return values  # type: ignore[return-value]
    numbers = iter(torch.stack([value.detach().float() for value in on_device]).tolist())
    return [next(numbers) if isinstance(value, Tensor) else value for value in values]


def write_completions(folder: Path, step: int, rows: list[CompletionRow], to_print: int) -> None:
    """completions/step-*.parquet: the sampled completions of one micro-batch."""
    import pyarrow
    import pyarrow.parquet

    (folder / "completions").mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "completions" / f"step-{step}.parquet")
    for row in rows[:to_print]:
        print(f"step {step}  reward {row['reward']:.3f}  {row['masked_target']}  ->  {row['sample']}", flush=True)
