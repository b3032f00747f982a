"""Compare two sets of outputs for the same inputs, from their predictions.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from semioffline.errors import UserError
from semioffline.evaluation.scale import shown_value
from semioffline.evaluation.statistics import CorpusScore, Difference, corpus_value, paired_difference
from semioffline.rewards.contract import CorpusMetric
from semioffline.scoring.named import find_reward, reward_names
from semioffline.storage.files import read_content

REWARD = "reward"
"""The name of the weighted sum of several rewards."""
_TEXTS = ("prompt", "prediction", "references")


@dataclass(frozen=True)
class Predictions:
    """The content of a predictions.jsonl or before.jsonl."""

    path: Path
    predictions: list[str]
    references: list[list[str]]
    values: dict[str, list[float]]
    """metric -> one value for each input"""

    @classmethod
    def read(cls, path: Path) -> Predictions:
        try:
            rows: list[dict[str, Any]] = [json.loads(line) for line in read_content(path).splitlines()]
            names = [name for name in (rows[0] if rows else {}) if name not in _TEXTS]
            values = {name: [float(row[name]) for row in rows] for name in names}
            return cls(path, [str(row["prediction"]) for row in rows], [row["references"] for row in rows], values)
        except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
            raise UserError(f"{path} does not hold predictions: {type(error).__name__}: {error}") from error

    def first(self, number: int) -> Predictions:
        """Return the predictions for the first inputs."""
        values = {name: each[:number] for name, each in self.values.items()}
        return replace(self, predictions=self.predictions[:number], references=self.references[:number], values=values)

    def with_reward(self, weights: Mapping[str, float]) -> Predictions:
        """Return predictions with the weighted sum of several rewards added. weights: name -> weight."""
        if len(weights) < 2 or not weights.keys() <= self.values.keys():
            return self
        total = sum(weight * np.asarray(self.values[name]) for name, weight in weights.items())
        return replace(self, values={REWARD: cast(np.ndarray, total).tolist(), **self.values})


@dataclass(frozen=True)
class Change:
    """One metric of two sets of outputs, and their difference."""

    before: float
    after: float
    difference: Difference


def paired_changes(before: Predictions, after: Predictions) -> dict[str, Change]:
    """Return the change of every metric that both sets have, over the same inputs."""
    if len(before.predictions) != len(after.predictions):
        raise UserError(
            f"{before.path} has {len(before.predictions)} outputs and {after.path} {len(after.predictions)}: "
            "two runs are compared on the same inputs"
        )
    for n, (one, other) in enumerate(zip(before.references, after.references, strict=True)):
        if one != other:
            raise UserError(
                f"row {n} of {before.path} has other references than row {n} of {after.path}: two runs are compared on "
                "the same inputs, in the same order"
            )
    return {name: _change(name, before, after) for name in after.values if name in before.values}


def _change(name: str, before: Predictions, after: Predictions) -> Change:
    metric = _corpus_metric(name)
    if metric is None:
        each = [np.asarray(outputs.values[name]) for outputs in (before, after)]
        means = [float(np.nanmean(values)) if not np.isnan(values).all() else float("nan") for values in each]
        return Change(means[0], means[1], paired_difference(each[1], each[0]))
    score: CorpusScore = metric.corpus_score
    sums = [metric.statistics(outputs.predictions, outputs.references) for outputs in (before, after)]
    difference = paired_difference(sums[1], sums[0], corpus_score=score)
    return Change(corpus_value(sums[0], score), corpus_value(sums[1], score), difference)


def _corpus_metric(name: str) -> CorpusMetric | None:
    """Return the metric of this name if its value is defined over the whole set only."""
    metric = find_reward(name)[1] if name in reward_names() else None
    return metric if isinstance(metric, CorpusMetric) else None


def as_rows(found: Mapping[str, Change], rewards: Sequence[str]) -> list[tuple[str, str, str, str, str, str]]:
    """Return rows of a table: metric, before, after, difference, its 95 % interval and p-value. Rewards come first,
    marked."""
    first = [name for name in (REWARD, *rewards) if name in found]
    rows = []
    for name in dict.fromkeys([*first, *found]):
        change = found[name]
        before, after = (shown_value(name, value) for value in (change.before, change.after))
        difference = change.difference
        mean, low, high = (
            shown_value(name, value, "+") for value in (difference.mean, difference.low, difference.high)
        )
        title = f"{name} (reward)" if name in first else name
        rows.append((title, before, after, mean, f"{low} to {high}", p_value(change.difference.p)))
    return rows


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
