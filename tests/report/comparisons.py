"""Comparisons as JSON files hold them, without a run."""

from semioffline.experiments.provenance import Provenance
from semioffline.experiments.results import Comparison, CurvePoint, MethodSummary, MetricSummary


def comparison_of(names: list[str]) -> Comparison:
    """Methods with these names; the first is also the metric and the reference, the second the title."""
    metric = MetricSummary(0.5, 0.4, 0.6, 0.01, [0.5], "signature")
    method = MethodSummary(
        seeds=[0], metrics={names[0]: metric}, forward_passes=1, steps=2, seconds=1.0, peak_mb=None,
        curve=[CurvePoint(0.4), CurvePoint(0.5, 2, 1.0, 8)], matched_after=None,
    )  # fmt: skip
    about = Provenance(names[0], None, {"python": "3", "torch": "2", "transformers": "5", "gpus": [], "cores": 1})
    return Comparison([names[0]], {names[0]: False}, names[0], dict.fromkeys(names, method), 1.0, about, title=names[1])
