"""Choose the weights of a run to test: the best on validation, or the last."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class BestCheckpoint(TrainerCallback):
    """A callback that evaluates on validation after 1/1, 1/2, 1/4, ... of the steps, and keeps the best weights in
    memory."""

    def __init__(self, model: nn.Module, steps: int, evaluations: int, keep: str, first: float | None) -> None:
        """first: the validation reward of the initial checkpoint, if it is known."""
        self.model = model
        self.due = {max(1, round(steps / 2**n)) for n in range(evaluations)}
        self.keep = keep
        self.best: float | None = None
        self.best_step: int | None = None
        self.weights: dict[str, torch.Tensor] = {}
        if first is not None:
            self._see(first, 0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_evaluate = state.global_step in self.due

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._see(kwargs["metrics"]["eval_reward"], state.global_step)

    def _see(self, reward: float, step: int) -> None:
        if self.keep == "best" and (self.best is None or reward > self.best):
            self.best, self.best_step = reward, step
            self.weights = {name: weight.to("cpu", copy=True) for name, weight in self.model.state_dict().items()}

    def restore(self) -> None:
        """Load the best weights into the model."""
        if self.weights:
            self.model.load_state_dict(self.weights)
