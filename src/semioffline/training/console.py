"""Show a run: a header, one live line, one line per evaluation, and advice. Without a terminal, one plain line per
log."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from semioffline.data.examples import Examples
from semioffline.evaluation.metrics import SURFACE
from semioffline.printing import Activity, activity, figure, fitted, is_terminal, left, say, terminal_width
from semioffline.storage.files import read_log
from semioffline.training.diagnostics import Diagnostics
from semioffline.training.run_log import LOG

if TYPE_CHECKING:
    from semioffline.training.trainer import SemiOfflineTrainer

Logs = Mapping[str, float]
HEADING = ("method", "model", "data", "reward")
"""The lines of the header."""
_HIDDEN = ("runtime", "identical", "identical_references", "length_references", "frac_reward_none")
"""Evaluation metrics that are not shown: they are for advice and reports."""


class Advice(TrainerCallback):
    """A callback that reports signs of trouble in the log, each once in a run: see `diagnostics`."""

    def __init__(self) -> None:
        self.diagnostics = Diagnostics()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Skip the advice that a resumed run has given already."""
        self.diagnostics = Diagnostics()
        path = Path(str(args.output_dir)) / LOG
        for line in read_log(path) if state.global_step and path.exists() else []:
            self.diagnostics.add(line)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Logs | None = None,
        **kwargs: object,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        for finding in self.diagnostics.add({"step": state.global_step, **logs}):
            say(f"advice, step {finding.step}: {finding.text}", strong=True, margin=4)
            say(f"  {finding.advice}", margin=4)


class Console(TrainerCallback):
    """A callback that shows a run while it trains. The trainer adds one, unless `verbose` keeps Transformers' own."""

    def __init__(self, task: str = "", heading: Collection[str] = HEADING, brief: str = "") -> None:
        """Args: task: The name of the data in the header. heading: The lines of the header. brief: Show nothing but
        this and the step, in the live line: for steps that are made to measure their speed."""
        self.task, self.heading, self.brief = task, heading, brief
        self.trainer: SemiOfflineTrainer | None = None
        self.open = ExitStack()
        """The live line."""
        self.activity: Activity | None = None
        self.began, self.first = 0.0, 0
        self.last: dict[str, float] = {}
        """What the live line shows of the last logs."""
        self.columns: list[str] = []
        """The columns of the evaluations, once their heading is printed."""
        self.best: float | None = None

    def follow(self, trainer: SemiOfflineTrainer) -> None:
        """Replace Transformers' progress bars and log lines. A notebook keeps its table."""
        self.trainer = trainer
        for theirs in (ProgressCallback, PrinterCallback):
            trainer.remove_callback(theirs)

    def close(self) -> None:
        """Remove the live line, also after an error."""
        self.open.close()
        self.activity = None

    # ---- events ----

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.last, self.columns, self.best = {}, [], None
        self.began, self.first = time.monotonic(), state.global_step
        if not state.is_world_process_zero:
            return
        if self.trainer is not None and self.heading:
            if len(self.heading) > 1:
                say()
            for name, text in header(self.trainer, self.task):
                if name in self.heading:
                    say(f"{name:<8} {text}")
        if state.global_step:
            say(f"resumed  after step {state.global_step}")
        if not args.disable_tqdm:
            self.activity = self.open.enter_context(activity())
            self.activity.show(*self._parts(state))

    def _parts(self, state: TrainerState, *more: str) -> list[str]:
        if self.brief:
            return [f"{self.brief}, step {state.global_step}"]
        return [f"step {state.global_step}/{state.max_steps}", *more]

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.activity is not None:
            done, to_do = state.global_step - self.first, state.max_steps - state.global_step
            shown = [f"{name} {figure(value)}" for name, value in self.last.items()]
            self.activity.show(*self._parts(state, left(self.began, done, to_do), *shown))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Logs | None = None,
        **kwargs: object,
    ) -> None:
        if not state.is_world_process_zero or not logs or self.brief:
            return
        moves = is_terminal() and not args.disable_tqdm
        if "loss" in logs:
            self.last = training_figures(logs) | {k: v for k, v in self.last.items() if k.startswith("validation")}
            if not moves:
                self._say_line(state, self.last, logs.get("time/step"))
        elif any(name.startswith("eval_") for name in logs):
            found = evaluation_figures(logs, self._reward_names())
            first = next(iter(found), "")
            if first:
                self.last = {k: v for k, v in self.last.items() if not k.startswith("validation")}
                self.last = _after_reward(self.last, f"validation {first}", found[first])
            if moves:
                self._say_row(state.global_step, found)
            else:
                self._say_line(state, found, None, "validation: ")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.close()
        if not state.is_world_process_zero:
            return
        if args.load_best_model_at_end and state.best_global_step:
            say(f"best     step {state.best_global_step} on validation: its checkpoint is loaded")

    # ---- lines ----

    def _reward_names(self) -> list[str]:
        return [] if self.trainer is None else list(self.trainer.reward_set.functions)

    def _say_line(self, state: TrainerState, shown: Logs, seconds: float | None, before: str = "") -> None:
        """Print a log line without a terminal."""
        parts = [f"{name} {figure(value)}" for name, value in shown.items() if before or "validation" not in name]
        if seconds is not None:
            to_do = state.max_steps - state.global_step
            parts += [f"{seconds:.3g} s/step", left(self.began, state.global_step - self.first, to_do)]
        say(f"step {state.global_step}/{state.max_steps}  {before}{'  '.join(parts)}")

    def _say_row(self, step: int, found: Logs) -> None:
        """Print one line of the table of evaluations, as wide as the terminal."""
        first = next(iter(found), "")
        is_best = bool(first) and (self.best is None or found[first] > self.best)
        self.best = found[first] if is_best else self.best
        if not self.columns:
            self.columns = [name for name in found if name != "step"]
            say(_cells("step", [name.replace("_", " ") for name in self.columns], self.columns))
        values = [figure(found[name]) if name in found else "" for name in self.columns]
        say(_cells(str(step), values, self.columns), strong=is_best)


def _cells(step: str, cells: Sequence[str], columns: Sequence[str]) -> str:
    padded = [cell.rjust(max(len(name), 7)) for cell, name in zip(cells, columns, strict=True)]
    return fitted([step.rjust(8), *padded], terminal_width())


def _after_reward(last: Mapping[str, float], name: str, value: float) -> dict[str, float]:
    """Insert the validation reward after the reward of the samples and before the losses."""
    first = {k: v for k, v in last.items() if k == "reward"}
    return first | {name: value} | {k: v for k, v in last.items() if k not in first}


def training_figures(logs: Logs) -> dict[str, float]:
    """Return the numbers of a training line: the reward of the samples and the terms of the loss."""
    terms = {name.removeprefix("loss/"): value for name, value in logs.items() if name.startswith("loss/")}
    reward = {"reward": logs["reward"]} if "reward" in logs else {}
    return reward | ({f"loss {name}": value for name, value in terms.items()} or {"loss": logs["loss"]})


def evaluation_figures(logs: Logs, rewards: Sequence[str] = ()) -> dict[str, float]:
    """Return the numbers of an evaluation: the reward and its parts, the metrics, then text statistics. If there is
    only one reward function, it is not repeated as a metric."""
    found = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
    found = {name: value for name, value in found.items() if name not in _HIDDEN and not name.endswith("_stderr")}
    own = rewards[0] if len(rewards) == 1 and found.get(rewards[0]) == found.get("reward") else None
    order = [name for name in ("reward", *rewards) if name in found]
    order += [name for name in found if name not in (*order, *SURFACE)] + [name for name in SURFACE if name in found]
    return {name: found[name] for name in order if name != own}


def header(trainer: SemiOfflineTrainer, task: str = "") -> list[tuple[str, str]]:
    """Return the lines of the header: method, model, data and reward."""
    args, policy, state = trainer.args, trainer.policy, trainer.state
    every = [(name, parameter) for name, parameter in policy.model.named_parameters()]
    number = sum(parameter.numel() for _, parameter in every)
    trained = sum(parameter.numel() for _, parameter in every if parameter.requires_grad)
    name = str(policy.base.config._name_or_path) or type(policy.base).__name__
    size = f"{number / 1e6:,.1f} M parameters" + (f", {trained / 1e6:,.1f} M trained" if trained < number else "")
    inputs = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    rows = [f"{len(trainer.train_dataset):,} training rows"] if trainer.train_dataset is not None else []
    if isinstance(trainer.eval_dataset, Examples):
        rows.append(f"{len(trainer.eval_dataset):,} validation rows")
    lines = [
        ("method", f"{args.method or type(trainer.method).__name__}: {state.max_steps} steps of {inputs} inputs, "
                   f"learning rate {args.learning_rate:g}"),
        ("model", f"{name} ({size}) on {args.device}"),
        ("data", (f"{task}: " if task else "") + ", ".join(rows)),
    ]  # fmt: skip
    rewards = list(zip(trainer.reward_set.functions, trainer.reward_set.weights, strict=True))
    if trainer.method.needs_reward:
        lines.append(("reward", " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in rewards)))
    return lines
