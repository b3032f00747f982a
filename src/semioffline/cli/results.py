"""What commands write to the result.json of a run folder."""

from __future__ import annotations

from dataclasses import dataclass

from semioffline.evaluation.results import MetricResult
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

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in super().to_json().items() if value is not None}


@dataclass(frozen=True)
class EvaluateResult(Record):
    """What `evaluate` writes."""

    split: str
    seconds: float
    metrics: dict[str, MetricResult]
    truncation: str
