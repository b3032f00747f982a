"""Show a comparison in the report: the table, the matrix of p-values, and reward against cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semioffline.experiments.plan import START
from semioffline.experiments.results import Comparison, CurvePoint
from semioffline.report import table

Z = 1.96
"""Standard errors on each side of a 95 % interval."""


@dataclass(frozen=True)
class MatrixCell:
    """One cell of the matrix: compares the method of the row with that of the column."""

    text: str
    kind: str
    """better | worse | chance | none"""


@dataclass(frozen=True)
class ComparisonView:
    """The content of the page for a comparison."""

    title: str
    header: list[str]
    lines: list[list[str]]
    explanations: list[tuple[str, str]]
    """column -> its explanation"""
    caption: str
    metric: str
    names: list[str]
    matrix: list[list[MatrixCell]]


def view(comparison: Comparison) -> ComparisonView:
    header, lines = table.rows(comparison)
    names, metric = list(comparison.methods), comparison.metrics[0]
    return ComparisonView(
        title=comparison.title,
        header=header,
        lines=lines,
        explanations=table.explanations(comparison),
        caption=table.caption(comparison),
        metric=metric,
        names=names,
        matrix=[[_cell(comparison, one, other, metric) for other in names] for one in names],
    )


def _cell(comparison: Comparison, one: str, other: str, metric: str) -> MatrixCell:
    if one == other:
        return MatrixCell("", "none")
    p = table.p_between(comparison, one, other, metric)
    if p is None:
        return MatrixCell("–", "none")
    ahead = comparison.methods[one].metrics[metric].mean - comparison.methods[other].metrics[metric].mean
    text = f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
    if p >= table.LEVEL:
        return MatrixCell(text, "chance")
    return MatrixCell(text, "better" if ahead > 0 else "worse")


def plot_data(comparison: Comparison) -> dict[str, Any]:
    """Return the data of the charts: curves, and the range of the reward axis."""
    every = [point for method in comparison.methods.values() for point in method.curve]
    return {"curves": _curves(comparison), "range": list(limits(every)) if every else [0, 1]}


def _curves(comparison: Comparison) -> list[dict[str, Any]]:
    """Return for each method the validation reward with its interval, against steps, seconds and forward passes."""
    found = []
    for name, method in comparison.methods.items():
        points = method.curve
        if not points:
            continue
        band = [interval(point) for point in points]
        found.append(
            {
                "label": name,
                "is_start": name == START,
                "step": [point.step for point in points],
                "seconds": None if method.seconds is None else [_short(point.seconds) for point in points],
                "passes": [_short(point.forward_passes) for point in points],
                "reward": [_short(point.reward) for point in points],
                "low": [_short(low) for low, _ in band],
                "high": [_short(high) for _, high in band],
            }
        )
    return found


def interval(point: CurvePoint) -> tuple[float, float]:
    """Return the 95 % interval of an evaluation over its inputs; the value alone if the standard error is unknown."""
    half = Z * (point.stderr or 0.0)
    return point.reward - half, point.reward + half


def limits(points: Sequence[CurvePoint]) -> tuple[float, float]:
    """Return the range of a reward axis, wide enough that noise does not look like a ranking: at least six times the
    half-width of the widest interval, and at least 2 % of the largest value."""
    low, high = min(interval(point)[0] for point in points), max(interval(point)[1] for point in points)
    widest = max(Z * (point.stderr or 0.0) for point in points)
    least = max(6 * widest, 0.02 * max(abs(low), abs(high)), 1e-6)
    spare = max(0.0, least - (high - low)) / 2 + 0.04 * (high - low)
    return low - spare, high + spare


def _short(value: float) -> float:
    return float(f"{value:.5g}")
