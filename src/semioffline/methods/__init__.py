"""One file for each method. A module here defines a class `Method`; its file name is the method's name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Protocol

from semioffline.errors import unknown
from semioffline.policy import Policy
from semioffline.scoring import Scorer
from semioffline.types import Batch, Randomness, StepOutput


class MethodProtocol(Protocol):
    """What the trainer needs of a method. It never steps an optimizer; every use of a parameter goes through
    `policy.predict`, so that it also works inside DDP and FSDP."""

    needs_reward: bool
    """Whether `step` calls the scorer."""

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput: ...


def method_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_method(name: str, args: Any) -> MethodProtocol:
    if name not in method_names():
        raise unknown("method", name, method_names())
    return importlib.import_module(f"{__name__}.{name}").Method(args)
