"""The table of claims: each verdict is computed from the results."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.sample_tables import row_of, wins_of
from semioffline.errors import UserError
from semioffline.experiments.results import Comparison, MethodSummary, MetricSummary
from semioffline.report.table import LEVEL, p_between, read_result, score

ERRORS = 2.0
"""A difference counts if p < LEVEL over inputs and it exceeds this many standard errors over seeds."""
HOLDS, FAILS, UNCLEAR, OPEN = "holds", "does not hold here", "unclear", "not tested yet"
UNMEASURED = "not measurable"
"""No evaluation lies between the limit of a claim about time and the moment at which the reward was seen."""


def markdown(result: dict[str, Any], folder: Path) -> str:
    """Return one table for each table or section of the paper, with a row for each of result["claims"].

    A claim says that `better` has a higher `metric` than `worse`, or (with `share`) that the comparison's reference
    reached the best reward of `worse` within that share of its seconds. `file` is a comparison or, for a claim about
    samples at one `mask_rate`, a result of benchmarks/samples.py, relative to the page. `why` is shown where a claim
    does not hold. Rows with the same claim follow each other.
    """
    claims, verdicts, parts = result["claims"], Counter[str](), list[str]()
    for paper in sorted({claim["paper"] for claim in claims}):
        parts += ["", f"### {paper[0].upper()}{paper[1:]}", ""]
        parts += ["| claim | here | figures | verdict |", "| --- | --- | --- | --- |"]
        own = [claim for claim in claims if claim["paper"] == paper]
        order = list(dict.fromkeys(claim["claim"] for claim in own))
        for claim in sorted(own, key=lambda claim: order.index(claim["claim"])):
            figures, verdict = judge(claim, folder)
            verdicts[verdict] += 1
            why = f": {claim['why']}" if verdict in (FAILS, UNCLEAR, UNMEASURED) and claim.get("why") else ""
            parts.append(f"| {claim['claim']} | {claim['on']} | {figures} | {verdict}{why} |")
    counted = ", ".join(f"{verdict}: {verdicts[verdict]}" for verdict in (HOLDS, FAILS, UNCLEAR, UNMEASURED, OPEN))
    return "\n".join([f"Claims: {len(claims)}; {counted}.", *parts, ""])


def judge(claim: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Return (figures, verdict) of one claim."""
    path = folder / claim["file"]
    if not path.exists():
        return "–", OPEN
    result = read_result(path)
    if result.get("kind") == "samples":
        return _in_samples(claim, result, path)
    comparison = Comparison.from_json(result)
    methods = comparison.methods
    not_run = {run.rpartition(":")[0] for run in comparison.missing} - methods.keys()
    if not_run & {claim["better"], claim["worse"]}:
        return "–", OPEN
    for name in ("better", "worse"):
        if claim[name] not in methods:
            raise UserError(f"{path} has no method '{claim[name]}' (it has: {', '.join(methods)})")
    if "share" not in claim:
        return _in_value(claim, comparison, path)
    if claim["better"] != comparison.reference:
        raise UserError(f"{path} knows when {comparison.reference} had a reward, not others: {claim['claim']}")
    return _in_time(claim, methods)


def _in_value(claim: dict[str, Any], comparison: Comparison, path: Path) -> tuple[str, str]:
    metric = claim["metric"]
    better, worse = (comparison.methods[claim[name]].metrics[metric] for name in ("better", "worse"))
    p = p_between(comparison, claim["better"], claim["worse"], metric)
    if p is None:
        raise UserError(
            f"{path} tests methods against {comparison.reference} only, not as in the claim: {claim['claim']}"
        )
    return _compared(better, worse, p, comparison.percent.get(metric, False))


def _in_samples(claim: dict[str, Any], result: dict[str, Any], path: Path) -> tuple[str, str]:
    """`better` and `worse` are static targets there, `metric` what samples win over."""
    found = [row_of(result, claim[name], claim["mask_rate"]) for name in ("better", "worse")]
    if None in found:
        raise UserError(f"{path} does not have both '{claim['better']}' and '{claim['worse']}' at {claim['mask_rate']}")
    better, worse = (wins_of(row, claim["metric"]) for row in found if row)
    p = worse.p if better.p is None else better.p
    return _compared(better, worse, p, percent=True, unit=" %")


def _compared(better: MetricSummary, worse: MetricSummary, p: float, percent: bool, unit: str = "") -> tuple[str, str]:
    """Two scores, and p of their difference."""
    said = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    shown = [score(replace(own, p=None), percent) for own in (better, worse)]  # no star: it is for the reference
    figures = f"{shown[0]}{unit} against {shown[1]}{unit}, {said}"
    difference, limit = better.mean - worse.mean, ERRORS * _error(better.by_seed, worse.by_seed)
    if p >= LEVEL:
        return figures, UNCLEAR
    if abs(difference) <= limit:
        shown = [f"{100 * value:.2f}" if percent else f"{value:.3f}" for value in (abs(difference), limit)]
        return f"{figures}; difference {shown[0]}, two standard errors over seeds {shown[1]}", UNCLEAR
    return figures, HOLDS if difference > 0 else FAILS


def _error(*groups: list[float]) -> float:
    """Standard error of the difference of two means over seeds; 0 where there is only one seed to judge by."""
    return math.sqrt(sum(statistics.variance(group) / len(group) for group in groups if len(group) > 1))


def _in_time(claim: dict[str, Any], methods: dict[str, MethodSummary]) -> tuple[str, str]:
    other = methods[claim["worse"]]
    seconds, matched = other.seconds, other.matched_after
    if seconds is None:
        return "no seconds are known", UNCLEAR
    figures = f"its reward after {'no' if matched is None else f'{matched:.1f}'} seconds, of {seconds:.1f}"
    limit = claim["share"] * seconds
    if matched is not None and matched <= limit:
        return figures, HOLDS
    later = (point.seconds for point in methods[claim["better"]].curve if point.seconds > limit)
    return figures, UNMEASURED if matched is not None and matched == next(later, None) else FAILS
