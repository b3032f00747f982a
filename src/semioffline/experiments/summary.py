"""The runs of a comparison as one result: seeds averaged, intervals, p-values, what matched what."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semioffline.errors import UserError
from semioffline.evaluation.metrics import SURFACE, bootstrap_interval, corpus_value, paired_p_value
from semioffline.rewards import load_reward

if TYPE_CHECKING:
    from semioffline.experiments.comparison import Plan

_PERCENT = ("rouge", "bleu", "corpus_bleu", "chrf", "lmqg", "meteor")
"""How the names of metrics begin that one is used to see times 100."""


def summarise(plan: Plan) -> dict[str, Any]:
    """One entry for each method: seeds averaged input by input, interval over inputs, p against the reference and, of
    the first metric, against every other method. Of runs that are not done, `missing` tells."""
    results: dict[str, list[dict[str, Any]]] = {}
    missing = plan.missing()
    for method in plan.methods:
        done = [seed for seed in plan.seeds[method] if (method, seed) not in missing]
        if done:
            paths = [plan.run_folder(method, seed) / "result.json" for seed in done]
            results[method] = [json.loads(path.read_text()) for path in paths]
    if not results:
        raise UserError(f"no run of this comparison is done in {plan.folder}")
    beside = {}
    for label, folder in plan.beside.items():
        told, others = _beside(folder, label)
        _check_beside(label, others, results)
        results |= others
        beside[label] = {key: told.get(key, {}) for key in ("about", "preparation")}
    every = [run for runs in results.values() for run in runs]
    metrics = list(every[0]["values"])
    first = _reference(plan.reference, list(results))
    reference = results[first]
    p_values = {pair: _p_value(metrics[0], *(results[name] for name in pair)) for pair in combinations(results, 2)}
    methods = {}
    for method, runs in results.items():
        other = None if method == first else reference
        curve = _mean_curve(runs)
        methods[method] = {
            "seeds": [run["seed"] for run in runs],
            "metrics": {name: _score(name, runs, other) for name in metrics},
            "forward_passes": _mean(runs, lambda r: r["cost_per_input"]["forward_passes"]),
            "cost_per_input": runs[0]["cost_per_input"],
            "steps": _mean(runs, lambda r: r["steps"]),
            "best_steps": [run["best_step"] for run in runs],
            "seconds": _mean_if_known(runs, "seconds"),
            "timed": runs[0]["timed"],
            "peak_mb": _mean_if_known(runs, "peak_mb"),
            "curve": curve,
            "matched_after": _matched_after(curve, other),
            "p_by_method": {
                one if other == method else other: p for (one, other), p in p_values.items() if method in (one, other)
            },
        }
    return {
        "metrics": metrics,
        "percent": {name: name.startswith(_PERCENT) for name in metrics if name not in SURFACE},
        "reference": first,
        "methods": methods,
        "missing": [f"{method}:{seed}" for method, seed in missing],
        "wall_seconds": sum(run["wall_seconds"] for run in every),
        "about": _about(plan, [run.get("about", plan.about) for run in every]),
        "beside": beside,
    } | plan.extra


def _reference(wanted: str, methods: list[str]) -> str:
    """What the others are tested against: the method of that name, or else with settings of its own, or else the first
    that is more than the start."""
    if wanted in methods:
        return wanted
    own = [method for method in methods if method.partition("@")[0] == wanted]
    if own:
        return own[0]
    return methods[1] if len(methods) > 1 else methods[0]


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Of one run, in the folder of its comparison."""
    return folder / "runs" / f"{method}-seed{seed}"


def labelled_folders(words: list[str]) -> dict[str, Path]:
    """LABEL=FOLDER, of other comparisons."""
    found = {}
    for word in words:
        label, _, folder = word.partition("=")
        if not label or not folder:
            raise UserError(f"--beside {word} must be LABEL=FOLDER")
        if label in found:
            raise UserError(f"--beside {word}: another folder has the label {label}")
        if not (Path(folder) / "comparison.json").is_file():
            raise UserError(f"--beside {word}: a finished comparison has a comparison.json")
        found[label] = Path(folder)
    return found


def _beside(folder: Path, label: str) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """What another comparison says of itself, and its runs: METHOD@LABEL."""
    try:
        told = json.loads((folder / "comparison.json").read_text())
        runs = {
            f"{method}@{label}": [
                json.loads((run_folder(folder, method, seed) / "result.json").read_text()) for seed in result["seeds"]
            ]
            for method, result in told["methods"].items()
            if method.rpartition("@")[2] not in told.get("beside", {})  # theirs stand beside, too
        }
        missing = ", ".join(told.get("missing", []))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"--beside {label}={folder} cannot be read as a comparison: {what}") from error
    if missing:
        raise UserError(f"--beside {label}={folder} is not finished: {missing} (method:seed)")
    return told, runs


def _check_beside(label: str, others: Any, results: dict[str, list[dict[str, Any]]]) -> None:
    """The other runs must begin with the same start, tested alike. Its own row is not needed twice."""
    start, own = others.pop(f"start@{label}", None), results.get("start")
    if own is None:
        raise UserError(f"--beside {label}: the start of this comparison must be tested first (--only start:SEED)")
    if start is None or start[0]["values"] != own[0]["values"]:
        raise UserError(f"--beside {label}: it does not begin with the same start, or tests it in another way")
    taken = sorted(others.keys() & results.keys())
    if taken:
        raise UserError(f"--beside {label}: {taken[0]} is a method of this comparison, too")


def _about(plan: Plan, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the whole, whose runs may have been made elsewhere: the versions and the machine are those of the runs."""
    commits = dict.fromkeys(str(about["commit"]) for about in runs)
    mixed = any(about["versions"] != runs[0]["versions"] for about in runs)
    about = {"command": plan.about["command"], "commit": ", ".join(commits), "versions": runs[0]["versions"]}
    return about | ({"mixed": True} if mixed else {})


def _score(name: str, runs: list[dict[str, Any]], others: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Of one metric: its mean (or its value over the set), a 95 % interval over inputs, and p against the others."""
    values, corpus_score = _per_input(runs, name), _corpus_score(name, runs)
    low, high = bootstrap_interval(values, corpus_score=corpus_score)
    p = None if others is None else _p_value(name, runs, others)
    mean = float(np.nanmean(values)) if corpus_score is None else corpus_value(values, corpus_score)
    signature = runs[0]["metrics"][name]["signature"]
    by_seed = [run["metrics"][name]["mean"] for run in runs]
    return {"mean": mean, "low": low, "high": high, "p": p, "by_seed": by_seed, "signature": signature}


def _p_value(name: str, runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    return paired_p_value(_per_input(runs, name), _per_input(others, name), corpus_score=_corpus_score(name, runs))


def _corpus_score(name: str, runs: list[dict[str, Any]]) -> Any:
    """What makes one value of the statistics of all inputs; None where each input has a value of its own."""
    metric: Any = load_reward(name)[1] if name in runs[0]["statistics"] else None
    return None if metric is None else metric.corpus_score


def _per_input(runs: list[dict[str, Any]], name: str) -> list[Any]:
    """One value, or one list of statistics, for each input: the mean over seeds."""
    kind = "statistics" if name in runs[0]["statistics"] else "values"
    return np.mean([run[kind][name] for run in runs], axis=0).tolist()


def _mean(runs: list[dict[str, Any]], get: Callable[[dict[str, Any]], float]) -> float:
    return float(np.mean([get(run) for run in runs]))


def _mean_if_known(runs: list[dict[str, Any]], key: str) -> float | None:
    return None if any(run[key] is None for run in runs) else _mean(runs, lambda run: run[key])


def _mean_curve(runs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Seeds of one method have the same steps, so their curves are averaged point by point."""
    points = zip(*(run["curve"] for run in runs), strict=True)
    return [{key: float(np.mean([p[key] for p in same])) for key in same[0]} for same in points]


def _matched_after(curve: list[dict[str, float]], reference: list[dict[str, Any]] | None) -> float | None:
    """Seconds after which the reference first had, on validation, the best reward of this curve; None: never, or not
    known."""
    if reference is None or any(run["seconds"] is None for run in reference):
        return None
    best = max(point["reward"] for point in curve)
    return next((point["seconds"] for point in _mean_curve(reference) if point["reward"] >= best), None)
