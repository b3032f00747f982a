"""Tasks by name, one file for each: how its rows become prompt, completion and references; its reward, metrics and
decoding.

A module here defines `TASK`; its file name is the task's name. `reading` has the code that tasks share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semioffline import tasks
from semioffline.errors import unknown
from semioffline.tasks.reading.formats import MAX_ROW_MB
from semioffline.tasks.reading.places import has_split


@dataclass(frozen=True)
class Source:
    """Where the data of a task are."""

    data_dir: str | None = None
    """A folder with one file for each split, or the name of a Hugging Face dataset."""
    files: dict[str, str] = field(default_factory=dict)
    """split -> file, if the files are not in one folder"""
    columns: dict[str, str] = field(default_factory=dict)
    prompt_template: str | None = None
    limit: int | None = None
    """Read only this many rows of each split."""
    seed: int = 0
    raw: bool = False
    """Whether to return the rows as stored, without renamed columns and template."""
    max_row_mb: float = MAX_ROW_MB
    """Limit of the length of a row of a file."""
    model: str | None = None
    """Name or folder of the model that will read the prompts; selects the task's prompt form. None: no form."""

    def where(self, split: str) -> str | None:
        return self.files.get(split) or self.data_dir


def _has(source: Source, split: str) -> bool:
    where = source.where(split)
    return where is not None and (split in source.files or has_split(where, split))


@dataclass(frozen=True)
class Task:
    """A dataset: its rows, reward, metrics and decoding settings."""

    load: Callable[[Source, str], Any]
    """(source, split) -> datasets.Dataset with the columns prompt and completion"""
    reward: str | None = None
    """Default reward."""
    metrics: tuple[str, ...] = ("rouge1", "rouge2", "rougeL")
    java_metrics: tuple[str, ...] = ()
    """Further metrics of `evaluate` and `compare` if METEOR and Java are installed."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Defaults for lengths and decoding, by the names of SemiOfflineConfig."""
    has: Callable[[Source, str], bool] = _has
    """(source, split) -> whether the split exists. For a dataset on the Hub this is not checked."""


TASK_REWARDS = {"click_rate": "ads", "facts_right": "ads"}
"""Rewards that belong to a task: the function's name -> the task."""


def task_names() -> list[str]:
    return sorted(
        module.name for module in pkgutil.iter_modules(tasks.__path__) if not module.ispkg and module.name != "registry"
    )


def load_task(name: str) -> Task:
    """Load the task with this name, for example "samsum"."""
    if name not in task_names():
        raise unknown("task", name, task_names())
    return importlib.import_module(f"{tasks.__name__}.{name}").TASK
