"""Summarise the runs of a comparison: averages over seeds, intervals, p-values, time to match."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np

from semioffline.errors import UserError
from semioffline.evaluation.scale import percent_by_metric
from semioffline.evaluation.statistics import CorpusScore, bootstrap_interval, corpus_value, paired_p_value
from semioffline.experiments.other_comparisons import Runs, read_other
from semioffline.experiments.plan import Plan, read_run
from semioffline.experiments.provenance import Provenance
from semioffline.experiments.results import (
    Comparison,
    CurvePoint,
    MethodSummary,
    MetricSummary,
    OtherComparison,
    RunResult,
)
from semioffline.rewards.contract import CorpusMetric
from semioffline.scoring.named import find_reward


def summarise(plan: Plan) -> Comparison:
    """Summarise the finished runs. Seeds are averaged input by input; intervals are over inputs.

    Every metric is tested against the reference; the first metric also against every other method.
    """
    results, missing = _finished(plan), plan.missing()
    others: dict[str, OtherComparison] = {}
    for label, folder in plan.beside.items():
        others[label], other_runs = read_other(folder, label, results)
        results |= other_runs
    every = [run for runs in results.values() for run in runs]
    metrics = list(every[0].values)
    reference = find_reference(plan.reference, list(results))
    p_values = {pair: _p_value(metrics[0], *(results[name] for name in pair)) for pair in combinations(results, 2)}
    methods = {}
    for method, runs in results.items():
        p_by_method = {b if a == method else a: p for (a, b), p in p_values.items() if method in (a, b)}
        other = None if method == reference else results[reference]
        methods[method] = _summarise_method(metrics, runs, other, p_by_method)
    return Comparison(
        metrics=metrics,
        percent=percent_by_metric(metrics),
        reference=reference,
        methods=methods,
        missing=[f"{method}:{seed}" for method, seed in missing],
        wall_seconds=sum(run.wall_seconds for run in every),
        about=_joint_provenance(plan.about.command, [run.about or plan.about for run in every]),
        others=others,
        title=plan.extra.get("title", ""),
        own_settings=plan.extra.get("own_settings", {}),
        preparation=plan.extra.get("preparation", {}),
    )


def _finished(plan: Plan) -> Runs:
    missing = plan.missing()
    done = {method: [s for s in plan.seeds[method] if (method, s) not in missing] for method in plan.methods}
    results = {
        method: [read_run(plan.run_folder(method, seed)) for seed in seeds] for method, seeds in done.items() if seeds
    }
    if not results:
        raise UserError(f"no run of this comparison is done in {plan.folder}")
    return results


def _summarise_method(
    metrics: list[str], runs: list[RunResult], reference: list[RunResult] | None, p_by_method: dict[str, float]
) -> MethodSummary:
    """Summarise one method over its seeds. reference: the runs of the reference method; None if this is the reference
    itself."""
    curve = _mean_curve(runs)
    return MethodSummary(
        seeds=[run.seed for run in runs],
        metrics={name: _summarise_metric(name, runs, reference) for name in metrics},
        forward_passes=_mean(runs, lambda run: run.cost_per_input["forward_passes"]),
        cost_per_input=runs[0].cost_per_input,
        steps=_mean(runs, lambda run: run.steps),
        best_steps=[run.best_step for run in runs],
        seconds=_mean_if_known([run.seconds for run in runs]),
        timed=runs[0].timed,
        peak_mb=_mean_if_known([run.peak_mb for run in runs]),
        curve=curve,
        matched_after=_matched_after(curve, reference),
        p_by_method=p_by_method,
    )


def find_reference(wanted: str, methods: list[str]) -> str:
    """Return the method that the others are tested against: the wanted one, else the first METHOD@LABEL of it, else the
    first after the initial checkpoint."""
    if wanted in methods:
        return wanted
    own = [method for method in methods if method.partition("@")[0] == wanted]
    if own:
        return own[0]
    return methods[1] if len(methods) > 1 else methods[0]


def _joint_provenance(command: str, runs: list[Provenance]) -> Provenance:
    """Return the provenance of the comparison: the commits of all runs, the versions and the machine of the first."""
    commits = dict.fromkeys(str(about.commit) for about in runs)
    mixed = any(about.versions != runs[0].versions for about in runs)
    return Provenance(command, ", ".join(commits), runs[0].versions, mixed)


def _summarise_metric(name: str, runs: list[RunResult], others: list[RunResult] | None) -> MetricSummary:
    values, corpus_score = _per_input(runs, name), _corpus_score(name, runs)
    low, high = bootstrap_interval(values, corpus_score=corpus_score)
    return MetricSummary(
        mean=float(np.nanmean(values)) if corpus_score is None else corpus_value(values, corpus_score),
        low=low,
        high=high,
        p=None if others is None else _p_value(name, runs, others),
        by_seed=[run.metrics[name].mean for run in runs],
        signature=runs[0].metrics[name].signature,
    )


def _p_value(name: str, runs: list[RunResult], others: list[RunResult]) -> float:
    return paired_p_value(_per_input(runs, name), _per_input(others, name), corpus_score=_corpus_score(name, runs))


def _corpus_score(name: str, runs: list[RunResult]) -> CorpusScore | None:
    """Return the function from summed statistics to a value; None for metrics that have a value per input."""
    if name not in runs[0].statistics:
        return None
    metric = find_reward(name)[1]
    if not isinstance(metric, CorpusMetric):
        raise UserError(f"the runs have statistics of {name}, which is not a metric over a whole set")
    return metric.corpus_score


def _per_input(runs: list[RunResult], name: str) -> np.ndarray:
    """Return the mean over seeds: (N,) values, or (N, S) statistics of a corpus metric."""
    if name in runs[0].statistics:
        return np.mean([run.statistics[name] for run in runs], axis=0)
    return np.mean([run.values[name] for run in runs], axis=0)


def _mean(runs: list[RunResult], get: Callable[[RunResult], float]) -> float:
    return float(np.mean([get(run) for run in runs]))


def _mean_if_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _mean_curve(runs: list[RunResult]) -> list[CurvePoint]:
    """Average the curves of all seeds point by point. They are evaluated at the same steps."""
    return [
        CurvePoint(
            reward=float(np.mean([point.reward for point in same])),
            step=float(np.mean([point.step for point in same])),
            seconds=float(np.mean([point.seconds for point in same])),
            forward_passes=float(np.mean([point.forward_passes for point in same])),
            stderr=_mean_if_known([point.stderr for point in same]),  # all seeds have the same inputs
        )
        for same in zip(*(run.curve for run in runs), strict=True)
    ]


def _matched_after(curve: list[CurvePoint], reference: list[RunResult] | None) -> float | None:
    """Return the seconds that the reference needed to reach the best validation reward of this curve; None: it never
    did, or it is unknown."""
    if reference is None or any(run.seconds is None for run in reference):
        return None
    best = max(point.reward for point in curve)
    return next((point.seconds for point in _mean_curve(reference) if point.reward >= best), None)
