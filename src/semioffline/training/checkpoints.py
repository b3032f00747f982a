"""Write checkpoints that are complete or absent, because a run can be killed at any time."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import rotate_checkpoints

from semioffline.errors import UserError
from semioffline.storage.files import find_damage, replace_folder, sync_file, write_atomically, write_sums, writing
from semioffline.training.rollouts import Rollouts
from semioffline.training.run_log import LOG, as_numbers

STAGING = "incomplete-checkpoint"
PROGRESS = "progress-{rank}.json"
NEEDED = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
"""Files without which a resumed run would reach other weights."""
logger = logging.getLogger(__name__)


class SafeCheckpoints(Trainer):
    """Writes each checkpoint under another name and renames it when it is complete. Resumes from the last complete one,
    and restores the counts of the log."""

    policy: Any
    step_metrics: dict[str, list[float | Tensor]]
    staging: str | None = None
    rollouts: Rollouts | None = None
    _resumed: str | None = None
    at_start: Mapping[str, float] = {}
    """Measurements before the first step, for the first line of the log."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train. `resume_from_checkpoint=True` continues from the last complete checkpoint, or starts if there is
        none."""
        if self.train_dataset is None:
            raise UserError("train_dataset must be given: rows with a prompt and a completion")
        if not isinstance(resume_from_checkpoint, (str, Path, bool, type(None))):
            raise UserError(f"resume_from_checkpoint={resume_from_checkpoint!r} must be True, False or a folder")
        whole = not self.is_fsdp_enabled and not self.is_deepspeed_enabled  # else they have files of other names
        needed = NEEDED if whole and self.args.world_size == 1 else ()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete(Path(str(self.args.output_dir)), needed)
        elif resume_from_checkpoint:
            _check_needed(Path(resume_from_checkpoint), needed)
            if damage := _damage(Path(resume_from_checkpoint)):
                raise UserError(f"{damage}: name another checkpoint")
        self._resumed = resume_from_checkpoint or None
        self.at_start = {} if self._resumed else self.measure_start()
        self.policy.train()  # all of it: PEFT leaves the base of a loaded model in evaluation mode
        first = self.args.eval_on_start
        self.args.eval_on_start = first and self._resumed is None
        try:
            done = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.eval_on_start = first
        self._check_weights()
        if self._resumed is not None and self.args.should_save:  # a kill may have come before
            self._remove_old()
        return done._replace(training_loss=done.metrics["train_loss"])

    def measure_start(self) -> Mapping[str, float]:
        """Return measurements at the start of a run that does not resume."""
        return {}

    def _check_weights(self) -> None:
        """Check the weights after the last step, which no forward pass has used yet."""
        whole = not self.is_fsdp_enabled and not self.is_deepspeed_enabled  # else each process has a part
        if whole and not self.policy.is_finite():
            step = self.state.global_step
            raise UserError(f"the weights are not finite after step {step}: lower the learning rate or rl_weight")

    def _get_output_dir(self, trial: Any) -> str:
        return self.staging or super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint aside and rename it, so that a kill while saving leaves the last complete one."""
        self._check_weights()
        folder = super()._get_output_dir(trial)
        staging = os.path.join(folder, STAGING)
        name = f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        with writing(Path(folder, name), Path(staging) if self.args.should_save else None):
            self.staging = staging
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.staging = None
            self._save_progress(Path(staging, name))
            self.accelerator.wait_for_everyone()
            if self.state.best_global_step:
                best = os.path.join(folder, f"checkpoint-{self.state.best_global_step}")
                is_there = self.state.best_global_step == self.state.global_step or os.path.isdir(best)
                self.state.best_model_checkpoint = best if is_there else None
            if self.args.should_save:
                self.state.save_to_json(os.path.join(staging, name, "trainer_state.json"))
                write_sums(Path(staging, name))
                sync_file(Path(folder, LOG))  # a checkpoint continues the log that is there
                replace_folder(Path(staging, name), Path(folder, name))
                self._remove_old()
        self.accelerator.wait_for_everyone()

    def _remove_old(self) -> None:
        """Remove incomplete checkpoints, and those beyond `save_total_limit`."""
        folder, best = super()._get_output_dir(None), self.state.best_model_checkpoint
        shutil.rmtree(os.path.join(folder, STAGING), ignore_errors=True)
        rotate_checkpoints(output_dir=folder, save_total_limit=self.args.save_total_limit, best_model_checkpoint=best)

    # ---- what was counted ----

    def _save_progress(self, checkpoint: Path) -> None:
        """Save the counts that the log and the result sum over steps. Each process has its own."""
        progress = {
            "counts": dict(self.policy.meter.counts),
            "loss": self._tr_loss.item(),
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "metrics": {name: as_numbers(values) for name, values in self.step_metrics.items()},
            "at_start": dict(self.at_start),
            "patience": [stopping.early_stopping_patience_counter for stopping in self._early_stopping()],
        }
        write_atomically(checkpoint / PROGRESS.format(rank=self.args.process_index), json.dumps(progress))
        if self.rollouts is not None:
            self.rollouts.save(checkpoint, self.args.process_index, self.state.global_step)

    def restore_progress(self, control: TrainerControl) -> None:
        """Restore the counts at the checkpoint. Checkpoints of earlier versions have none."""
        if self._resumed is None:
            return
        if self.rollouts is not None:
            self.rollouts.load(Path(self._resumed), self.args.process_index, self.state.global_step)
        paths = [Path(self._resumed, PROGRESS.format(rank=rank)) for rank in (self.args.process_index, 0)]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            self._resumed = None
            return
        progress = json.loads(path.read_text(encoding="utf-8"))
        self.policy.meter.counts.update(progress["counts"])
        self._tr_loss.fill_(progress["loss"])
        self._total_loss_scalar = progress["total_loss"]
        self._globalstep_last_logged = progress["last_logged"]
        self.step_metrics.update(progress["metrics"])
        self.at_start = progress.get("at_start", {})
        for stopping, seen in zip(self._early_stopping(), progress["patience"], strict=False):
            stopping.early_stopping_patience_counter = seen
            control.should_training_stop |= seen >= stopping.early_stopping_patience

    def _early_stopping(self) -> list[EarlyStoppingCallback]:
        return [found for found in self.callback_handler.callbacks if isinstance(found, EarlyStoppingCallback)]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs and self._resumed is not None:  # of this call's steps alone
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 1)
        super().log(logs, start_time)


class Progress(TrainerCallback):
    """A callback that restores the counts after the training loop has reset them."""

    def __init__(self, trainer: SafeCheckpoints) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.restore_progress(control)


class SaveByTime(TrainerCallback):
    """A callback that writes a checkpoint when `save_minutes` have passed since the last one. It does nothing with
    several processes, because their clocks would not agree."""

    def __init__(self) -> None:
        self.saved = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.saved = time.monotonic()

    on_save = on_train_begin

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        minutes = getattr(args, "save_minutes", None)
        if minutes is None or args.save_strategy == "no" or args.world_size > 1:
            return
        control.should_save = control.should_save or time.monotonic() - self.saved >= 60 * minutes


def last_complete(folder: Path, needed: tuple[str, ...] = NEEDED) -> str | None:
    """Return the last undamaged checkpoint in a run folder; None if there is no checkpoint."""
    steps = {
        path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.glob("checkpoint-*") if path.is_dir()
    }
    paths = sorted((path for path in steps if steps[path]), key=lambda path: int(path.name.rpartition("-")[2]))
    problem = None
    for path in reversed(paths):
        _check_needed(path, needed)
        damage = _damage(path)
        if damage is None:
            if problem:
                logger.warning("%s: going on from %s", problem, path)
            return str(path)
        problem = problem or damage
    if problem:
        raise UserError(
            f"{problem}, and there is no other checkpoint: remove {paths[-1]} to train from the first step again "
            "(save_total_limit=2 keeps the one before the last, too)"
        )
    return None


def _damage(checkpoint: Path) -> str | None:
    state = checkpoint / "trainer_state.json"
    return find_damage(checkpoint) if state.is_file() else f"{state} is missing"


def _check_needed(checkpoint: Path, needed: tuple[str, ...]) -> None:
    for name in needed:
        if not (checkpoint / name).exists():
            raise UserError(
                f"{checkpoint} has no {name}, so a resumed run would reach other weights: put the file back, or remove "
                "this checkpoint to continue from the one before"
            )
