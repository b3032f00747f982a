"""Write the logs of training: metrics.jsonl and sampled completions."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from semioffline.algorithm.tensors import CompletionRow, StepOutput, TokenRow
from semioffline.printing import one_line, say
from semioffline.storage.files import append_line, keep_lines, make_folder, read_log, write_atomically

LOG = "metrics.jsonl"


class RunLog(TrainerCallback):
    """A callback that writes metrics.jsonl: one line for every log, and none twice after a resume. It also measures the
    seconds of a step."""

    def __init__(self) -> None:
        self.started = 0.0
        self.total = 0.0
        self.before = 0.0
        """Seconds of the steps before a resume."""
        self.seconds: list[float] = []
        self.found_all = self.finished = False
        """Whether this call of `train` found all steps done and logged. It then logs nothing more."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        path = Path(str(args.output_dir)) / LOG
        self.found_all = self.finished = False
        if state.is_world_process_zero and path.exists():
            ended = control.should_training_stop or state.global_step >= state.max_steps
            kept = list(takewhile(lambda line: _is_before(line, state.global_step, ended), read_log(path)))
            keep_lines(path, len(kept))
            self.before = kept[-1].get("time/train", 0.0) if kept else 0.0
            self.total = self.before
            self.found_all = self.finished = any("train_loss" in line for line in kept)

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
        if state.is_world_process_zero and logs and not self.finished:
            line = json.dumps({"step": state.global_step} | logs | {"time/train": self.total})
            append_line(Path(str(args.output_dir)) / LOG, line)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.finished = False  # what is evaluated later is logged


def _is_before(line: dict[str, Any], step: int, ended: bool) -> bool:
    """Return whether a line of metrics.jsonl is kept when training continues after this step. A summary stays where it
    ended."""
    return 0 < step >= line.get("step", math.inf) and (ended or "train_loss" not in line)


def as_numbers(values: list[float | Tensor]) -> list[float]:
    """Return metrics of several steps as plain numbers. Those on a device are copied together."""
    on_device = [value for value in values if isinstance(value, Tensor)]
    if not on_device:
        return values  # type: ignore[return-value]
    numbers = iter(torch.stack([value.detach().float() for value in on_device]).tolist())
    return [next(numbers) if isinstance(value, Tensor) else value for value in values]


def write_samples(
    folder: Path, step: int, output: StepOutput, to_print: int, extra: Mapping[str, Sequence[Any]] = {}
) -> None:
    """Write completions/step-*.parquet, the sampled completions of one micro-batch, and, for methods that mask,
    tokens/step-*.parquet, the tokens that were drawn for the first of its inputs. extra: columns that reward functions
    have logged."""
    if output.completions is None:
        return
    rows = output.completions()
    for column, values in extra.items():
        if len(values) == len(rows):  # else of another call
            rows = [{column: _plain(value)} | row for row, value in zip(rows, values, strict=True)]
    _write_parquet(folder / "completions" / f"step-{step}.parquet", rows)
    if output.tokens is not None:
        _write_parquet(folder / "tokens" / f"step-{step}.parquet", output.tokens())
    for best in _best_of_inputs(rows)[:to_print]:
        say(f"step {step}  {one_line(best['prompt'])}", margin=10)
        if best["masked_target"]:
            say(f"  masked  {one_line(best['masked_target'])}", margin=10)
        say(f"  {best['reward']:.3f}  {one_line(best['sample'])}", margin=9)


def _best_of_inputs(rows: Sequence[CompletionRow]) -> list[CompletionRow]:
    """Return the sample with the highest reward, for each input."""
    best: dict[object, CompletionRow] = {}
    for row in rows:
        known = best.get(row["example"])
        if known is None or math.isnan(float(known["reward"])) or float(row["reward"]) > float(known["reward"]):
            best[row["example"]] = row
    return list(best.values())


def _plain(value: Any) -> str | int | float:
    return value if isinstance(value, (str, int, float)) else str(value)


def _write_parquet(path: Path, rows: Sequence[CompletionRow | TokenRow]) -> None:
    import pyarrow
    import pyarrow.parquet

    make_folder(path.parent)
    stored = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), stored)
    write_atomically(path, stored.getvalue())
