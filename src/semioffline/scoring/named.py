"""Find rewards by name: those of the package `rewards`, and those that belong to a task."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from semioffline import tasks
from semioffline.rewards.contract import Reward, RewardFunction
from semioffline.rewards.registry import REWARDS, load_reward
from semioffline.tasks.registry import TASK_REWARDS


def _of_task(name: str) -> Callable[[], RewardFunction]:
    return lambda: getattr(importlib.import_module(f"{tasks.__name__}.{TASK_REWARDS[name]}"), name)


_OF_TASKS = {name: _of_task(name) for name in TASK_REWARDS}


def reward_names() -> list[str]:
    return [*REWARDS, *_OF_TASKS]


def find_reward(given: Any, processing_class: Any = None, device: Any = None) -> tuple[str, Reward]:
    """Return (name, reward), as `rewards.registry.load_reward` does, with the rewards of tasks among the names."""
    return load_reward(given, processing_class, device, _OF_TASKS)
