"""Confidence intervals and significance tests, by resampling inputs (bootstrap)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semioffline.storage.records import Record

CorpusScore = Callable[[Sequence[float]], float]
"""A function from statistics summed over inputs to the value over the whole set."""


def corpus_value(statistics: ArrayLike, corpus_score: CorpusScore) -> float:
    """Return the value over a set of inputs. statistics: (N, S)."""
    return corpus_score(np.sum(np.asarray(statistics, dtype=float), axis=0).tolist())


def _resampled(values: np.ndarray, resamples: int, seed: int, corpus_score: CorpusScore | None) -> np.ndarray:
    """Return the mean, or the value over the set, of `resamples` sets drawn from the inputs with replacement."""
    rng = np.random.default_rng(seed)
    draws = (values[rng.integers(len(values), size=len(values))] for _ in range(resamples))
    if corpus_score is None:
        return np.array([np.mean(draw) for draw in draws])
    return np.array([corpus_value(draw, corpus_score) for draw in draws])


def bootstrap_interval(
    values: ArrayLike, resamples: int = 1000, seed: int = 0, corpus_score: CorpusScore | None = None
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean, or of the value over the set.

    Args:
        values: One value per input; with `corpus_score`, one list of statistics per input. NaN values are left out.
    """
    array = np.asarray(values, dtype=float)
    if corpus_score is None:
        array = array[~np.isnan(array)]
    if not len(array):
        return math.nan, math.nan
    low, high = np.percentile(_resampled(array, resamples, seed, corpus_score), [2.5, 97.5])
    return float(low), float(high)


def standard_error(values: ArrayLike) -> float:
    """Return the standard error of the mean of these values; NaN values are left out."""
    array = np.asarray(values, dtype=float)
    array = array[~np.isnan(array)]
    return float(np.std(array, ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan


@dataclass(frozen=True)
class Difference(Record):
    """The difference between two sets of outputs, over the same inputs."""

    mean: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    p: float
    """Two-sided p-value: how often the difference of a resampled set does not have the observed sign."""


def paired_difference(
    values: ArrayLike,
    others: ArrayLike,
    resamples: int = 2000,
    seed: int = 0,
    corpus_score: CorpusScore | None = None,
) -> Difference:
    """Return the mean of `values` minus that of `others`, with interval and p-value from a paired bootstrap over
    inputs.

    Args:
        values: One value per input; with `corpus_score`, one list of statistics per input, and the difference is that
            of the values over the set. An input for which either value is NaN is left out.
        others: The same for the other outputs, input by input.
    """
    one, other = np.asarray(values, dtype=float), np.asarray(others, dtype=float)
    score_difference: CorpusScore | None = None
    if corpus_score is None:
        inputs = one - other
        inputs = inputs[~np.isnan(inputs)]
        same = not inputs.any()
    else:
        inputs, same = np.concatenate([one, other], axis=1), np.array_equal(one, other)
        score_difference = _difference_of(corpus_score)
    if not len(inputs):
        return Difference(math.nan, math.nan, math.nan, 1.0)
    mean = float(np.mean(inputs)) if score_difference is None else corpus_value(inputs, score_difference)
    if len(inputs) < 2 or same:  # one input shows nothing
        return Difference(mean, mean, mean, 1.0)
    differences = _resampled(inputs, resamples, seed, score_difference)
    low, high = np.percentile(differences, [2.5, 97.5])
    fewer = min((differences <= 0).sum(), (differences >= 0).sum())
    p = float(min(1.0, 2 * (fewer + 1) / (resamples + 1)))  # the observed sample counts too: p is never 0
    return Difference(mean, float(low), float(high), p)


def paired_p_value(
    values: ArrayLike,
    others: ArrayLike,
    resamples: int = 2000,
    seed: int = 0,
    corpus_score: CorpusScore | None = None,
) -> float:
    """Return the p-value of `paired_difference`."""
    return paired_difference(values, others, resamples, seed, corpus_score).p


def _difference_of(corpus_score: CorpusScore) -> CorpusScore:
    """Return a score function: the score of the first half of the statistics minus that of the second half."""

    def score_difference(sums: Sequence[float]) -> float:
        half = len(sums) // 2
        return corpus_score(sums[:half]) - corpus_score(sums[half:])

    return score_difference
