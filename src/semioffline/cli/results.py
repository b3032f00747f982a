"""What commands write to the result.json of a run folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.statistics import Difference
from semioffline.storage.records import Record


@dataclass(frozen=True)
class TrainResult(Record):
    """What `train` writes."""

    method: str
    steps: int
    seconds: float
    """Of training, also before a resume."""
    cost_per_input: dict[str, float]
    truncation: str
    metrics: dict[str, MetricResult] | None = None
    """On the validation split; None: there is none."""
    differences: dict[str, Difference] | None = None
    """How much better than the initial checkpoint's outputs (before.jsonl), over the same inputs; None: there are
    none."""

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in super().to_json().items() if value is not None}


@dataclass(frozen=True)
class EvaluateResult(Record):
    """What `evaluate` writes."""

    split: str
    seconds: float
    metrics: dict[str, MetricResult]
    truncation: str
    against: dict[str, dict[str, Difference]] = field(default_factory=dict)
    """run folder or model -> metric -> how much better than its outputs, over the same inputs"""


@dataclass(frozen=True)
class Output(Record):
    """An input and what the model wrote."""

    prompt: str
    output: str


@dataclass(frozen=True)
class StageResult(Record):
    """One of the stages that `demo` writes, by method: a model on the held-out records."""

    metrics: dict[str, MetricResult]
    cost_per_input: dict[str, float]
    inputs: int
    """Training inputs."""
    seconds: float
    example: Output
    """The first record."""
