"""One file for each method. A module here defines a class `Method`; its file name is the method's name."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from semioffline.errors import unknown
from semioffline.policy import Policy
from semioffline.scoring import Scorer
from semioffline.types import Batch, Randomness, StepOutput


class BaseMethod:
    """What the trainer needs of a method: derive from it and write `step`.

    A method never steps an optimizer, and every use of a parameter goes through `policy.predict`, so that it also
    works inside DDP and FSDP.
    """

    needs_reward = False
    """Whether `step` calls the scorer."""
    needs_candidates = False
    """Whether `step` reads `batch.candidates`."""

    def __init__(self, args: Any):
        self.args = args

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        raise NotImplementedError

    def prepare(self, policy: Policy, examples: Any) -> None:
        """Called once, before training, with the tokenised training data: for what must be computed or added first."""

    def save(self, folder: Path) -> None:
        """Write what the method itself has learnt or drawn into a checkpoint."""

    def load(self, folder: Path) -> None:
        """Read it back."""


def method_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_method(name: str, args: Any) -> BaseMethod:
    if name not in method_names():
        raise unknown("method", name, method_names())
    return importlib.import_module(f"{__name__}.{name}").Method(args)
