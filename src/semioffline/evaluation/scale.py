"""The scale on which scores are shown: the same in every table, plot and page."""

from __future__ import annotations

from semioffline.evaluation.metrics import SURFACE

_PERCENT = ("rouge", "bleu", "corpus_bleu", "chrf", "lmqg", "meteor")
"""Prefixes of metrics that papers show times 100."""


def is_percent(metric: str) -> bool:
    """Return whether a metric is shown times 100, as ROUGE, BLEU, chrF and METEOR are in papers. Files, logs and
    rewards have the value that the metric returns."""
    return metric.startswith(_PERCENT) and " + " not in metric  # a sum of rewards is no ROUGE


def shown_value(metric: str, value: float, sign: str = "", digits: int = 4) -> str:
    """Format a value of a metric for a table: 21.53 for a ROUGE of 0.2153. sign: "+" for differences."""
    return f"{100 * value:{sign}.2f}" if is_percent(metric) else f"{value:{sign}.{digits}f}"


def percent_by_metric(metrics: list[str]) -> dict[str, bool]:
    """Return metric -> whether it is shown times 100, without the metrics of the surface."""
    return {name: is_percent(name) for name in metrics if name not in SURFACE}
