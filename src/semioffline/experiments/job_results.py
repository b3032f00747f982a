"""Results of a job (`semioffline run`): every model that was tested, and how far the result is ahead of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.statistics import Difference
from semioffline.experiments.provenance import Provenance
from semioffline.storage.records import Record

INITIAL, MFT, MORE_MFT, RESULT = "initial", "mft", "more_mft", "semi_offline"
"""The models of a job, by the names of their folders."""


@dataclass(frozen=True, kw_only=True)
class ModelResult(Record):
    """One model of a job on the test split."""

    label: str
    """As tables show it: `initial checkpoint`, `M-FT`, `more M-FT`, `semi-offline RL`."""
    folder: str
    """Its run folder, relative to that of the job: metrics.jsonl, config.yaml, predictions.jsonl, before.jsonl. The
    initial checkpoint has predictions alone."""
    metrics: dict[str, MetricResult]
    """`reward` is the trained reward, also if it is a sum of several."""
    seconds: float
    """Of the stages that made it from the model before it; more M-FT and the result have the same time."""
    cost_per_input: dict[str, float] = field(default_factory=dict)
    difference: Difference | None = None
    """The result's reward minus that of this model, over the same test inputs; None for the result."""


@dataclass(frozen=True, kw_only=True)
class JobResult(Record):
    """result.json of a job."""

    kind: str = "job"
    title: str
    reward: str
    """Name of the trained reward."""
    sentence: str
    models: dict[str, ModelResult]
    """In the order of the table: INITIAL, MFT, MORE_MFT, RESULT. MFT is absent where none was needed."""
    preparation: dict[str, float] = field(default_factory=dict)
    """stage that is not a model's training -> its seconds"""
    about: Provenance
