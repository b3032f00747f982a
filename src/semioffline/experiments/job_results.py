"""Results of a job (`semioffline run`): every tested model, and the difference of the result from it."""

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
    """The scores of one model of a job on the test split."""

    label: str
    """The name in tables: `initial checkpoint`, `M-FT`, `more M-FT` or `semi-offline RL`."""
    folder: str
    """Its run folder, relative to that of the job, with metrics.jsonl, config.yaml, predictions.jsonl and before.jsonl.
    That of the initial checkpoint has only predictions.jsonl."""
    metrics: dict[str, MetricResult]
    """metric -> result; `reward` is the trained reward, or the sum of several."""
    seconds: float
    """Seconds of the stages that made it from its initial model. They are the same for more M-FT and the result."""
    cost_per_input: dict[str, float] = field(default_factory=dict)
    difference: Difference | None = None
    """The result's reward minus that of this model, over the same test inputs; None for the result."""


@dataclass(frozen=True, kw_only=True)
class JobResult(Record):
    """The result.json of a job."""

    kind: str = "job"
    title: str
    reward: str
    """Name of the trained reward."""
    sentence: str
    models: dict[str, ModelResult]
    """Models in the order of the table: INITIAL, MFT, MORE_MFT, RESULT. MFT is absent if it was not needed."""
    preparation: dict[str, float] = field(default_factory=dict)
    """other stage, such as the candidates -> its seconds"""
    about: Provenance
