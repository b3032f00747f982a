"""Checkpoints that are complete or not there: a run can be killed at any time."""

from __future__ import annotations

import os
import shutil
from typing import Any

from torch import nn
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

from semioffline.errors import UserError

STAGING = "incomplete-checkpoint"


class SafeCheckpoints(Trainer):
    """Writes checkpoints aside and renames them; goes on from the last one."""

    policy: Any
    _staging: str | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """`resume_from_checkpoint=True` takes the last complete checkpoint, or starts when there is none."""
        if resume_from_checkpoint is True:
            folder = str(self.args.output_dir)
            resume_from_checkpoint = get_last_checkpoint(folder) if os.path.isdir(folder) else None
        done = super().train(resume_from_checkpoint, *args, **kwargs)
        self._check_weights()
        return done

    def _check_weights(self) -> None:
        """What the last step has made, and nothing was computed with yet."""
        whole = not self.is_fsdp_enabled and not self.is_deepspeed_enabled  # else each process has a part
        if whole and not self.policy.is_finite():
            step = self.state.global_step
            raise UserError(f"the weights are not finite after step {step}: lower the learning rate or rl_weight")

    def _get_output_dir(self, trial: Any) -> str:
        return self._staging or super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint aside and rename it, so that a kill while saving leaves the last complete one."""
        self._check_weights()
        folder = super()._get_output_dir(trial)
        staging = os.path.join(folder, STAGING)
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._staging = staging
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = None
        self.accelerator.wait_for_everyone()
        name = f"checkpoint-{self.state.global_step}"
        if self.state.best_global_step:
            best = os.path.join(folder, f"checkpoint-{self.state.best_global_step}")
            is_there = self.state.best_global_step == self.state.global_step or os.path.isdir(best)
            self.state.best_model_checkpoint = best if is_there else None
        if self.args.should_save:
            self.state.save_to_json(os.path.join(staging, name, "trainer_state.json"))
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
            os.rename(os.path.join(staging, name), os.path.join(folder, name))
            shutil.rmtree(staging, ignore_errors=True)
            rotate_checkpoints(
                output_dir=folder,
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
            )
        self.accelerator.wait_for_everyone()
