"""Results of a comparison: one run, one method over its seeds, the whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from semioffline.evaluation.results import FromJson, JsonObject, MetricResult
from semioffline.experiments.provenance import Provenance


@dataclass(frozen=True)
class CurvePoint(FromJson):
    """One evaluation on the validation split during training."""

    reward: float
    step: float = 0
    seconds: float = 0.0
    """Of training steps so far."""
    forward_passes: float = 0.0
    """Over all inputs so far."""

    def to_json(self) -> JsonObject:
        names = ("step", "seconds", "forward_passes", "reward")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Timing(FromJson):
    """How long the steps of a method take, as plan.json has it."""

    seconds_per_step: float
    seconds_recording: float
    """Once, for capturing CUDA graphs."""
    steps: int | None = None
    """Steps that fit into the budget; None for a budget in steps."""

    def to_json(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class RunResult:
    """One method with one seed: result.json in the folder of a run."""

    method: str
    seed: int
    steps: int
    best_step: int | None
    """Step of the checkpoint that was tested; None: the last one."""
    validation_inputs: int
    seconds: float | None
    """Of training; None where runs share the machine."""
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

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        known = _known(cls, {"best_step": None, "validation_inputs": 0} | data)
        known["metrics"] = {name: MetricResult.from_json(found) for name, found in data["metrics"].items()}
        known["curve"] = [CurvePoint.from_json(point) for point in data["curve"]]
        known["about"] = Provenance.from_json(data["about"]) if data.get("about") else None
        return cls(**known)

    def to_json(self) -> JsonObject:
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["metrics"] = {name: metric.to_json() for name, metric in self.metrics.items()}
        found["curve"] = [point.to_json() for point in self.curve]
        return found | {"about": None if self.about is None else self.about.to_json()}


@dataclass(frozen=True)
class MetricSummary(FromJson):
    """One metric of a method, averaged over seeds."""

    mean: float
    low: float
    """Lower end of the 95 % interval over inputs."""
    high: float
    p: float | None = None
    """Of the difference from the reference method; None for the reference."""
    by_seed: list[float] = field(default_factory=list)
    signature: str = ""


@dataclass(frozen=True)
class MethodSummary:
    """One method of a comparison, averaged over seeds."""

    seeds: list[int]
    metrics: dict[str, MetricSummary]
    forward_passes: float
    """Per input."""
    cost_per_input: dict[str, float]
    steps: float
    best_steps: list[int | None]
    seconds: float | None
    timed: str
    peak_mb: float | None
    curve: list[CurvePoint]
    matched_after: float | None
    """Seconds after which the reference reached the best validation reward of this method; None: never, or unknown."""
    p_by_method: dict[str, float] = field(default_factory=dict)
    """other method -> p of the difference of the first metric"""

    @property
    def best_reward(self) -> float:
        """The best reward on validation."""
        return max(point.reward for point in self.curve)

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        known = _known(cls, {"cost_per_input": {}, "best_steps": [], "timed": ""} | data)
        known["metrics"] = {name: MetricSummary.from_json(found) for name, found in data["metrics"].items()}
        known["curve"] = [CurvePoint.from_json(point) for point in data["curve"]]
        return cls(**known)

    def to_json(self) -> JsonObject:
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["metrics"] = {name: metric.to_json() for name, metric in self.metrics.items()}
        return found | {"curve": [point.to_json() for point in self.curve]}


@dataclass(frozen=True)
class OtherComparison:
    """Where the rows METHOD@LABEL of a comparison come from."""

    about: Provenance
    preparation: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        return cls(Provenance.from_json(data["about"]), data.get("preparation", {}))

    def to_json(self) -> JsonObject:
        return {"about": self.about.to_json(), "preparation": self.preparation}


@dataclass(frozen=True)
class Comparison:
    """comparison.json: every method, tested against the reference."""

    metrics: list[str]
    percent: dict[str, bool]
    """metric that is not of the surface -> whether it is shown times 100"""
    reference: str
    methods: dict[str, MethodSummary]
    wall_seconds: float
    """Of all runs, added."""
    about: Provenance
    missing: list[str] = field(default_factory=list)
    """METHOD:SEED of runs that are not done."""
    others: dict[str, OtherComparison] = field(default_factory=dict)
    """label -> another comparison whose runs are rows of this one (`beside` in the file)"""
    title: str = ""
    own_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """method -> the settings that it does not share"""
    preparation: dict[str, float] = field(default_factory=dict)
    """stage before the runs, which all methods share -> its seconds"""

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        known = _known(cls, data)
        known["methods"] = {name: MethodSummary.from_json(found) for name, found in data["methods"].items()}
        known["about"] = Provenance.from_json(data["about"])
        others = data.get("beside", {})
        return cls(**known, others={label: OtherComparison.from_json(found) for label, found in others.items()})

    def to_json(self) -> JsonObject:
        return {
            "metrics": self.metrics,
            "percent": self.percent,
            "reference": self.reference,
            "methods": {name: method.to_json() for name, method in self.methods.items()},
            "missing": self.missing,
            "wall_seconds": self.wall_seconds,
            "about": self.about.to_json(),
            "beside": {label: other.to_json() for label, other in self.others.items()},
            "kind": "comparison",
            "title": self.title,
            "own_settings": self.own_settings,
            "preparation": self.preparation,
        }


def _known(cls: type[RunResult | MethodSummary | Comparison], data: JsonObject) -> JsonObject:
    """Without keys that a class of this version does not have."""
    names = {item.name for item in fields(cls)}
    return {name: value for name, value in data.items() if name in names}
