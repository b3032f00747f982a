"""Results that commands write to the result.json of a run folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.statistics import Difference
from semioffline.storage.records import Record


@dataclass(frozen=True)
class EvaluateResult(Record):
    """The result.json of `evaluate`."""

    split: str
    seconds: float
    metrics: dict[str, MetricResult]
    truncation: str
    against: dict[str, dict[str, Difference]] = field(default_factory=dict)
    """run folder or model -> metric -> difference from its outputs, over the same inputs"""
