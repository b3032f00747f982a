"""The weight of the RL term by how large its gradient is beside that of the MLE term.

The right weight depends on the scale of the reward, on K, on the data and on the loss scale; the ratio of the two
gradients does not. It is measured in the first steps, where the output map meets the model: there each row's gradient
comes from its own term, so that one backward tells both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semioffline.types import StepOutput

STEPS = 10
"""In which it is measured."""
FIRST = 1e-6
"""The weight of the first step, of which nothing is known yet: it only measures."""
FILE = "balance.json"


class Balance:
    """Finds the weight at which the norm of the RL term's gradient is `ratio` times that of the MLE term's."""

    def __init__(self, ratio: float):
        self.ratio = ratio
        self.steps, self.mle, self.rl = 0, 0.0, 0.0
        """Steps that were measured, and their norms added: of the MLE term, and of the RL term at weight 1."""
        self._squares: Any = 0.0
        """Of the micro-batches of this step."""

    @property
    def measures(self) -> bool:
        return self.steps < STEPS

    @property
    def weight(self) -> float:
        return self.ratio * self.mle / self.rl if self.rl else FIRST

    def weigh(self, output: StepOutput) -> None:
        """Give the RL term its weight."""
        for term in output.terms:
            if term.name == "rl":
                term.weight = self.weight
                output.metrics = {**output.metrics, "rl_weight": term.weight}

    def see(self, watched: Mapping[str, Tensor], device: torch.device) -> None:
        """What the policy watched in one micro-batch."""
        nothing = torch.zeros((), device=device)
        self._squares = self._squares + torch.stack([watched.get(name, nothing) for name in ("mle", "rl")])

    def end_step(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """add_up: over all processes."""
        squares, self._squares = add_up(self._squares), 0.0
        self.add(squares)

    def add(self, squares: Tensor) -> None:
        """squares: of the norms that a whole step had, MLE and RL, the latter with its weight."""
        mle, rl = squares.sqrt().tolist()
        if mle > 0 and rl > 0:  # a step without any reward tells nothing
            weight = self.weight
            self.steps, self.mle, self.rl = self.steps + 1, self.mle + mle, self.rl + rl / weight

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps({"steps": self.steps, "mle": self.mle, "rl": self.rl}))

    def load(self, folder: Path) -> None:
        if (folder / FILE).exists():
            found = json.loads((folder / FILE).read_text())
            self.steps, self.mle, self.rl = found["steps"], found["mle"], found["rl"]
