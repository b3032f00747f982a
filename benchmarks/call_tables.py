"""Tables of benchmarks/estimators.py: learning and the error of the gradient, by the number of reward calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from semioffline.experiments.results import Comparison, MethodSummary
from semioffline.report.table import LEVEL, as_lines, p_between, read_result, score

NAMES = {"reinforce": "REINFORCE", "counterfactual": "counterfactual"}
MISSING = "not measured"


class Run(NamedTuple):
    """An estimator with one number of samples in a comparison."""

    estimator: str
    samples: int
    method: str
    """Its name in the comparison."""
    summary: MethodSummary

    @property
    def calls(self) -> float:
        """Distinct texts per input."""
        return self.summary.cost_per_input["reward_calls"]


def runs_of(comparison: Comparison, reference: str) -> list[Run]:
    """By estimator and number of samples. reference: the method that has no suffix, which is REINFORCE with 64."""
    found = []
    for method, summary in comparison.methods.items():
        _, _, own = method.partition("@")
        estimator, _, samples = ("reinforce-64" if method == reference else own).partition("-")
        if samples:
            found.append(Run(estimator, int(samples), method, summary))
    return sorted(found, key=lambda run: (list(NAMES).index(run.estimator), run.samples))


def comparisons(result: dict[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], Comparison | None]]:
    """Each of result["rows"] and its comparison, None if there is none yet."""
    for row in result["rows"]:
        path = folder / row["file"]
        yield row, Comparison.from_json(read_result(path)) if path.exists() else None


def fewest(runs: list[Run], comparison: Comparison, reference: str, metric: str) -> Run | None:
    """The run with the smallest number of samples from which on no number is significantly worse than the reference."""
    best = comparison.methods[reference].metrics[metric].mean
    found = None
    for run in reversed(runs):
        p = p_between(comparison, reference, run.method, metric)
        if p is not None and p < LEVEL and run.summary.metrics[metric].mean < best:
            break
        found = run
    return found


def markdown(result: dict[str, Any], folder: Path) -> str:
    """The smallest number of samples that loses nothing; for each task, the scores by the number of samples."""
    return f"{_smallest(result, folder)}\n{_scores(result, folder)}"


def _smallest(result: dict[str, Any], folder: Path) -> str:
    lines, reference = [], result["reference"]
    for row, comparison in comparisons(result, folder):
        cells = []
        for estimator in NAMES:
            runs = [] if comparison is None else runs_of(comparison, reference)
            own = [run for run in runs if run.estimator == estimator]
            found = fewest(own, comparison, reference, row["metric"]) if comparison and own else None
            told = f"**{found.samples}** ({found.calls:.1f} calls)" if found else "none of them"
            cells.append(told if own else MISSING)
        lines.append([row["on"], *cells])
    return "\n".join([*as_lines(["smallest K that loses nothing", *NAMES.values()], lines), ""])


def _scores(result: dict[str, Any], folder: Path) -> str:
    parts = []
    for row, comparison in comparisons(result, folder):
        if comparison is None:
            parts.append(f"{row['on']}: {MISSING}.\n")
            continue
        parts.append("\n".join([*_learning(row, comparison, result), ""]))
    return "\n".join(parts)


def _learning(row: dict[str, Any], comparison: Comparison, result: dict[str, Any]) -> list[str]:
    metric, reference = row["metric"], result["reference"]
    header = [f"{row['on']}: K"]
    for name in NAMES.values():
        header += [f"{name}: {metric}", "calls", "seconds"]
    by_samples: dict[int, dict[str, Run]] = {}
    for run in runs_of(comparison, reference):
        by_samples.setdefault(run.samples, {})[run.estimator] = run
    lines = []
    for samples, own in sorted(by_samples.items()):
        cells = [str(samples)]
        for estimator in NAMES:
            cells += _cells(own.get(estimator), row, comparison, result["seconds_per_call"])
        lines.append([*cells, _p(own, comparison, metric)])
    start = score(comparison.methods["start"].metrics[metric], comparison.percent[metric])
    lines.insert(0, ["0 (M-FT)", start, "0", "–", start, "0", "–", "–"])
    return as_lines([*header, "p"], lines)


def _cells(run: Run | None, row: dict[str, Any], comparison: Comparison, per_call: float) -> list[str]:
    if run is None:
        return [MISSING, "–", "–"]
    slow = run.summary.steps * row["batch"] * run.calls * per_call
    shown = score(run.summary.metrics[row["metric"]], comparison.percent[row["metric"]])
    return [shown, f"{run.calls:.1f}", f"{slow + (run.summary.seconds or 0):,.0f}"]


def _p(own: dict[str, Run], comparison: Comparison, metric: str) -> str:
    """Of the difference between the estimators."""
    if len(own) < len(NAMES):
        return "–"
    p = p_between(comparison, *(own[name].method for name in NAMES), metric)
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.2g}"


def errors_markdown(result: dict[str, Any]) -> str:
    """The error of each estimate by the number of samples; below it bias and variance."""
    variants = list(dict.fromkeys(row["variant"] for row in result["rows"]))
    rows = {(row["variant"], row["num_samples"]): row for row in result["rows"]}
    parts = []
    for what, name in (("input", "one input"), ("batch", f"mean of {result['batch']} inputs")):
        lines = []
        for samples in sorted({number for _, number in rows}):
            found = [rows.get((variant, samples)) for variant in variants]
            lines.append([str(samples), *(_error(row[what]) if row else "–" for row in found)])
        parts += [*as_lines([f"{name}: K", *variants], lines), ""]
    about = (
        f"Error: 1 − cos² with the reference gradient, which has {result['reference_samples']:,} samples per input. In "
        "brackets: the squared norms of bias and noise of the scaled estimate, in units of the reference."
    )
    return "\n".join([*parts, about, ""])


def _error(found: dict[str, float]) -> str:
    bias = abs(found["bias"]) if abs(found["bias"]) < 0.005 else found["bias"]  # the estimate of 0 may be negative
    return f"{found['error']:.3f} ({bias:.2f}, {found['variance']:.2f})"
