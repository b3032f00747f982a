"""The plan of a comparison: methods, seeds, data, budget, and the folders of the runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from datasets import Dataset

from semioffline.config import MethodConfig
from semioffline.errors import UserError
from semioffline.evaluation.metrics import Metric
from semioffline.experiments.provenance import Provenance
from semioffline.experiments.results import RunResult
from semioffline.policy.policy import Policy
from semioffline.storage.files import read_content
from semioffline.storage.untrusted import check_name

START = "start"
"""The name of the initial checkpoint, which all methods start from."""
RESULT = "result.json"


class Heading(TypedDict, total=False):
    """Description of a comparison, stored next to its results."""

    kind: str
    title: str
    own_settings: dict[str, dict[str, object]]
    preparation: dict[str, float]


@dataclass
class Plan:
    """What a comparison runs, and with which data, budget and settings."""

    folder: Path
    methods: list[str]
    seeds: dict[str, list[int]]
    rewards: Sequence[Metric]
    rows: Dataset | None
    """Training rows. None, as for `dev` and `test`: only a table of finished runs is made."""
    dev: Dataset | None
    test: Dataset | None
    load: Callable[[], Policy]
    """Loads the initial checkpoint."""
    settings: Callable[..., MethodConfig]
    """Returns the settings of a method, given its name and changes by keyword."""
    budget_seconds: float | None
    budget_steps: int | None
    steps: dict[str, int] = field(default_factory=dict)
    """method -> its own number of steps, independent of the budget"""
    reference: str = "semi_offline"
    evaluations: int = 6
    """Number of evaluations on validation: at the end, at half of the steps, at a quarter, ..."""
    keep: str = "best"
    """The checkpoint that is tested: "best" (by validation reward) or "last"."""
    jobs: int = 1
    """Number of runs at a time. With several, and a budget in seconds, each method is timed alone first. With a budget
    in steps, seconds are unknown."""
    command: Callable[[str, int], list[str]] | None = None
    """Returns the command that runs one method and seed in its own process, for jobs > 1."""
    about: Provenance = field(default_factory=lambda: Provenance("", None, {}))
    """The command, commit and versions of this process."""
    made_with: Mapping[str, object] = field(default_factory=dict)
    """What all runs depend on, in addition to `settings`."""
    beside: dict[str, Path] = field(default_factory=dict)
    """label -> folder of a finished comparison from the same initial checkpoint, whose runs are added to the table"""
    extra: Heading = field(default_factory=lambda: Heading())

    def run_folder(self, method: str, seed: int) -> Path:
        return run_folder(self.folder, method, seed)

    def every(self) -> list[tuple[str, int]]:
        """Return every (method, seed). Seeds are interleaved, so an interrupted comparison covers every method, and
        runs of one method that need much memory rarely overlap."""
        turns = range(max(len(self.seeds[method]) for method in self.methods))
        return [(method, seed) for n in turns for method in self.methods for seed in self.seeds[method][n : n + 1]]

    def missing(self) -> list[tuple[str, int]]:
        """Return every (method, seed) without a result."""
        return [run for run in self.every() if not (self.run_folder(*run) / RESULT).exists()]


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Return the folder of one run, inside the folder of its comparison."""
    return folder / "runs" / f"{check_name('method', method)}-seed{seed}"


def read_run(folder: Path) -> RunResult:
    """Read the result of a finished run."""
    path = folder / RESULT
    try:
        return RunResult.from_json(json.loads(read_content(path)))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} cannot be read as the result of a run: {told}") from error
