"""Find the weight of the RL term from the ratio of its gradient norm to that of the MLE term.

The right weight depends on the scale of the reward, on K, on the data and on the loss scale; the ratio of the two
gradients does not. It is measured in the first steps, at the input of the LM head: there the gradient of each row comes
from a single term, so one backward pass measures all terms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semioffline.algorithm.tensors import StepOutput
from semioffline.storage.files import read_content, write_atomically

STEPS = 10
"""Number of steps in which the ratio is measured."""
FIRST = 1e-6
"""The weight in the first step, which only measures."""
FILE = "balance.json"
TERMS = ("rl", "ranking")
"""Terms whose weight is found: the RL term and BRIO's ranking term."""


@dataclass
class _Measured:
    """The number of measured steps, and the sums of the gradient norms of the MLE term and of this term at weight 1."""

    steps: int = 0
    mle: float = 0.0
    own: float = 0.0

    def add(self, mle: float, own: float) -> None:
        """Add the norms of one more step."""
        self.steps, self.mle, self.own = self.steps + 1, self.mle + mle, self.own + own


class Balance:
    """Finds the weight at which the gradient norm of each term is `ratio` times that of the MLE term."""

    def __init__(self, ratio: float):
        self.ratio = ratio
        self.measured: dict[str, _Measured] = {}
        """term -> its measurements"""
        self._squares: Any = 0.0
        """Sums of squared norms over the micro-batches of this step."""

    @property
    def measures(self) -> bool:
        return not self.measured or any(term.steps < STEPS for term in self.measured.values())

    def weight(self, name: str = "rl") -> float:
        term = self.measured.get(name)
        return self.ratio * term.mle / term.own if term is not None and term.own else FIRST

    def weigh(self, output: StepOutput) -> StepOutput:
        """Set the weights of the terms. They are also logged as metrics."""
        for term in output.terms:
            if term.name in TERMS:
                self.measured.setdefault(term.name, _Measured())
        weights = {term.name: self.weight(term.name) for term in output.terms if term.name in TERMS}
        terms = [replace(term, weight=weights.get(term.name, term.weight)) for term in output.terms]
        metrics = {**output.metrics, **{f"{name}_weight": weight for name, weight in weights.items()}}
        return replace(output, terms=terms, metrics=metrics)

    def see(self, watched: Mapping[str, Tensor], device: torch.device) -> None:
        """Add the gradient norms of one micro-batch."""
        nothing = torch.zeros((), device=device)
        self._squares = self._squares + torch.stack([watched.get(name, nothing) for name in ("mle", *TERMS)])

    def end_step(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """End the measurement of a step. add_up: sums over all processes."""
        squares, self._squares = add_up(self._squares), 0.0
        self.add(squares)

    def add(self, squares: Tensor) -> None:
        """Add the measurement of one step. squares: squared gradient norms of the MLE term and of TERMS, the latter
        with their weights."""
        mle, *norms = squares.sqrt().tolist()
        for name, norm in zip(TERMS, norms, strict=True):
            term = self.measured.get(name)
            if term is not None and term.steps < STEPS and mle > 0 and norm > 0:  # without any reward it tells nothing
                term.add(mle, norm / self.weight(name))

    def save(self, folder: Path) -> None:
        write_atomically(folder / FILE, json.dumps({name: asdict(term) for name, term in self.measured.items()}))

    def load(self, folder: Path) -> None:
        if (folder / FILE).exists():
            found = json.loads(read_content(folder / FILE))
            self.measured = {name: _Measured(**term) for name, term in found.items()}
