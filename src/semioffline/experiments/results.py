"""Results of a comparison: one run, one method over its seeds, the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from semioffline.evaluation.results import MetricResult
from semioffline.experiments.provenance import Provenance
from semioffline.storage.records import Record


@dataclass(frozen=True)
class CurvePoint(Record):
    """One evaluation on the validation split during training."""

    reward: float
    step: float = 0
    seconds: float = 0.0
    """Seconds of training steps so far."""
    forward_passes: float = 0.0
    """Forward passes so far, over all inputs."""
    stderr: float | None = None
    """Standard error of the reward over the inputs, where it is known."""

    def to_json(self) -> dict[str, object]:
        names = ("step", "seconds", "forward_passes", "reward", *(() if self.stderr is None else ("stderr",)))
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Timing(Record):
    """Seconds of the steps of a method, as stored in plan.json."""

    seconds_per_step: float
    seconds_recording: float
    """Seconds of capturing CUDA graphs, once."""
    steps: int | None = None
    """Steps that fit into the budget; None for a budget in steps."""

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in super().to_json().items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class RunResult(Record):
    """The result.json of one run: one method with one seed."""

    method: str
    seed: int
    steps: int
    best_step: int | None = None
    """Step of the checkpoint that was tested; None: the last one."""
    validation_inputs: int = 0
    seconds: float | None
    """Seconds of training; None if runs share the machine."""
    timed: str
    wall_seconds: float
    peak_mb: float | None
    cost_per_input: dict[str, float]
    metrics: dict[str, MetricResult]
    values: dict[str, list[float]]
    """metric -> one value for each test input"""
    statistics: dict[str, list[list[float]]]
    """corpus metric -> statistics of each test input"""
    curve: list[CurvePoint]
    about: Provenance | None = None


@dataclass(frozen=True)
class MetricSummary(Record):
    """One metric of a method, averaged over seeds."""

    mean: float
    low: float
    """Lower end of the 95 % interval over inputs."""
    high: float
    p: float | None = None
    """p-value of the difference from the reference method; None for the reference."""
    by_seed: list[float] = field(default_factory=list)
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class MethodSummary(Record):
    """One method of a comparison, averaged over seeds."""

    seeds: list[int]
    metrics: dict[str, MetricSummary]
    forward_passes: float
    """Forward passes per input."""
    cost_per_input: dict[str, float] = field(default_factory=dict)
    steps: float
    best_steps: list[int | None] = field(default_factory=list)
    seconds: float | None
    timed: str = ""
    peak_mb: float | None
    curve: list[CurvePoint]
    matched_after: float | None
    """Seconds that the reference needed to reach the best validation reward of this method; None: it never did, or it
    is unknown."""
    p_by_method: dict[str, float] = field(default_factory=dict)
    """other method -> p-value of the difference of the first metric"""

    @property
    def best_reward(self) -> float:
        """The best reward on validation."""
        return max(point.reward for point in self.curve)


@dataclass(frozen=True)
class OtherComparison(Record):
    """Provenance of another comparison whose runs are the rows METHOD@LABEL."""

    about: Provenance
    preparation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison(Record):
    """The content of comparison.json: every method, tested against the reference."""

    metrics: list[str]
    percent: dict[str, bool]
    """metric -> whether it is shown times 100, without the metrics of the surface"""
    reference: str
    methods: dict[str, MethodSummary]
    wall_seconds: float
    """Sum of the seconds of all runs."""
    about: Provenance
    missing: list[str] = field(default_factory=list)
    """Unfinished runs, as METHOD:SEED."""
    others: dict[str, OtherComparison] = field(default_factory=dict)
    """label -> another comparison whose runs are rows of this one (key `beside` in the file)"""
    title: str = ""
    own_settings: dict[str, dict[str, object]] = field(default_factory=dict)
    """method -> settings that differ from the shared ones"""
    preparation: dict[str, float] = field(default_factory=dict)
    """stage that all methods share -> its seconds"""

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        return super().from_json({**data, "others": data.get("beside", {})})

    def to_json(self) -> dict[str, object]:
        found = super().to_json()
        found |= {"beside": found["others"], "kind": "comparison"}
        return {name: found[name] for name in _IN_THE_FILE}


_IN_THE_FILE = (
    *("metrics", "percent", "reference", "methods", "missing", "wall_seconds", "about", "beside"),
    *("kind", "title", "own_settings", "preparation"),
)
"""The keys of comparison.json, in their order."""
