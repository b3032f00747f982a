"""What commands write to the result.json of a run folder."""

from __future__ import annotations

from dataclasses import dataclass

from semioffline.evaluation.results import MetricResult
from semioffline.storage.records import Record


@dataclass(frozen=True)
class EvaluateResult(Record):
    """What `evaluate` writes."""

    split: str
    seconds: float
    metrics: dict[str, MetricResult]
    truncation: str
