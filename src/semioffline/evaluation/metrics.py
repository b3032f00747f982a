"""Generate, score, confidence intervals, signatures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from semioffline.data.examples import Collator, Examples
from semioffline.errors import unknown
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.rewards import load_reward
from semioffline.scoring.calls import reward_columns
from semioffline.scoring.reward_set import RewardSet

SURFACE = ("length", "repetition", "distinct")
"""Always measured: what a narrow reward does not see."""


CorpusScore = Callable[[Sequence[float]], float]
"""Statistics summed over inputs -> the value over the whole set."""


@dataclass
class Evaluation:
    predictions: list[str]
    values: dict[str, list[float]]
    """metric -> one value for each input; of a metric over the whole set, its sentence form"""
    signatures: dict[str, str]
    statistics: dict[str, list[list[float]]] = field(default_factory=dict)
    """metric over the whole set (corpus BLEU) -> for each input, what adds up over inputs"""
    corpus_scores: dict[str, CorpusScore] = field(default_factory=dict)
    """metric over the whole set -> its value from summed statistics"""

    def means(self) -> dict[str, float]:
        """metric -> mean over inputs, or value over the whole set"""
        return {name: self._value(name) for name in self.values}

    def _value(self, name: str) -> float:
        if name in self.statistics:
            return corpus_value(self.statistics[name], self.corpus_scores[name])
        return float(np.nanmean(self.values[name]))

    def result(self, resamples: int = 1000, seed: int = 0) -> dict[str, dict[str, Any]]:
        """metric -> mean (or value over the whole set), 95 % interval, signature, number of inputs."""
        out = {}
        for name, values in self.values.items():
            inputs = self.statistics.get(name, values)
            low, high = bootstrap_interval(inputs, resamples, seed, self.corpus_scores.get(name))
            out[name] = {
                "mean": self._value(name),
                "low": low,
                "high": high,
                "inputs": len(values),
                "signature": self.signatures[name],
            }
        return out


def corpus_value(statistics: Any, corpus_score: CorpusScore) -> float:
    """The value over the set whose inputs have these (N, S) statistics."""
    return corpus_score(np.sum(np.asarray(statistics, dtype=float), axis=0).tolist())


def _resampled(values: np.ndarray, resamples: int, seed: int, corpus_score: CorpusScore | None) -> np.ndarray:
    """The mean, or the value over the set, of so many sets drawn from the inputs with replacement."""
    rng = np.random.default_rng(seed)
    draws = (values[rng.integers(len(values), size=len(values))] for _ in range(resamples))
    if corpus_score is None:
        return np.array([np.mean(draw) for draw in draws])
    return np.array([corpus_value(draw, corpus_score) for draw in draws])


def bootstrap_interval(
    values: Sequence[Any], resamples: int = 1000, seed: int = 0, corpus_score: CorpusScore | None = None
) -> tuple[float, float]:
    """95 % percentile interval, resampling inputs: of the mean of `values`, or, with `corpus_score`, of the value over
    the set, where `values` are statistics."""
    array = np.asarray(values, dtype=float)
    if corpus_score is None:
        array = array[~np.isnan(array)]
    if not len(array):
        return math.nan, math.nan
    low, high = np.percentile(_resampled(array, resamples, seed, corpus_score), [2.5, 97.5])
    return float(low), float(high)


def paired_p_value(
    values: Sequence[Any],
    others: Sequence[Any],
    resamples: int = 2000,
    seed: int = 0,
    corpus_score: CorpusScore | None = None,
) -> float:
    """Two-sided paired bootstrap over inputs: how often the sign of the difference is not the observed one.

    The difference is that of the means of `values` and `others`, or, with `corpus_score`, that of the values over the
    set, where both are statistics.
    """
    one, other = np.asarray(values, dtype=float), np.asarray(others, dtype=float)
    if corpus_score is None:
        inputs, score_difference = one - other, None
        inputs = inputs[~np.isnan(inputs)]
        same = not inputs.any()
    else:
        inputs, same = np.concatenate([one, other], axis=1), np.array_equal(one, other)

        def score_difference(sums: Sequence[float]) -> float:
            half = len(sums) // 2
            return corpus_score(sums[:half]) - corpus_score(sums[half:])

    if len(inputs) < 2 or same:  # one input shows nothing
        return 1.0
    differences = _resampled(inputs, resamples, seed, score_difference)
    fewer = min((differences <= 0).sum(), (differences >= 0).sum())
    return float(min(1.0, 2 * (fewer + 1) / (resamples + 1)))  # what was observed counts, too: p is never 0


def best_metric(args: Any, rewards: RewardSet, examples: Any) -> str | None:
    """What the best checkpoint is chosen by: the reward where there is one, unless the settings say otherwise. A metric
    that does not exist is told now, not at the first evaluation. examples: what will be looked at, if anything."""
    metrics = RewardSet(args.eval_metrics).functions  # by the names that the log has
    best = args.metric_for_best_model
    if best == "reward" and not rewards.functions and args.eval_metrics:
        best = args.eval_metrics[0]
    known = {*metrics, *rewards.functions, *SURFACE} | ({"reward"} if rewards.functions else set())
    if isinstance(examples, Examples) and best is not None and best.removeprefix("eval_") not in known:
        raise unknown("metric_for_best_model", best, known)
    return best


def generate_ids(
    policy: Policy,
    examples: Examples,
    decoding: Decoding,
    batch_size: int = 32,
    progress: bool = True,
    part: slice = slice(None),
) -> list[list[int]]:
    """Tokens of one output for each example of `part`, in order. Long sources go together, so that padding is low."""
    numbers = list(range(len(examples)))[part]
    by_length = sorted(numbers, key=lambda n: -len(examples[n].source.ids))
    collate = Collator(policy.pad_id)
    outputs: dict[int, list[int]] = {}
    starts = range(0, len(by_length), batch_size)
    for start in tqdm(starts, desc="generate", disable=not progress, leave=False):
        chosen = by_length[start : start + batch_size]
        batch = collate([examples[n] for n in chosen]).to(policy.device)
        outputs.update(zip(chosen, policy.generate(batch.source, decoding), strict=True))
    return [outputs[n] for n in numbers]


def score(
    predictions: list[str], rows: list[dict[str, Any]], metrics: RewardSet, ids: list[list[int]]
) -> dict[str, list[float]]:
    """metric -> one value for each prediction. A metric is a reward that is only looked at."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return metrics(reward_columns(columns, predictions, ids))[1]


def evaluate(
    policy: Policy,
    examples: Examples,
    metrics: Sequence[Any],
    decoding: Decoding,
    batch_size: int = 32,
    progress: bool = True,
) -> Evaluation:
    """Decode every example and measure `metrics` and the surface of the outputs."""
    with policy.meter.paused():
        ids = generate_ids(policy, examples, decoding, batch_size, progress)
    return measure(policy.decode(ids), examples, metrics, decoding, ids, policy.device)


def measure(
    predictions: list[str],
    examples: Examples,
    metrics: Sequence[Any],
    decoding: Decoding,
    ids: list[list[int]],
    device: Any = None,
) -> Evaluation:
    """Score outputs. Metrics that are models run on `device`; a metric that is given twice is measured once."""
    named = [metric for metric in metrics if metric not in SURFACE]
    functions: list[Any] = []
    for metric in named:
        function = load_reward(metric, device=device)[1]
        functions += [] if any(function is other for other in functions) else [function]
    reward_set = RewardSet([*functions, *SURFACE])
    rows = [example.columns for example in examples.examples]
    values = score(predictions, rows, reward_set, ids)
    tail = f"|dec:{decoding.signature()}"
    signatures = {name: getattr(f, "signature", name) + tail for name, f in reward_set.functions.items()}
    evaluation = Evaluation(predictions, values, signatures)
    references = [row["references"] for row in rows]
    corpus: dict[str, Any] = {name: f for name, f in reward_set.functions.items() if hasattr(f, "corpus_score")}
    for name, metric in corpus.items():
        evaluation.statistics[name] = metric.statistics(predictions, references)
        evaluation.corpus_scores[name] = metric.corpus_score
    return evaluation


def write_predictions(path: str | Path, evaluation: Evaluation, examples: Examples) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for n, (text, example) in enumerate(zip(evaluation.predictions, examples.examples, strict=True)):
            row = {"prompt": example.columns["prompt"], "prediction": text, "references": example.columns["references"]}
            row |= {name: values[n] for name, values in evaluation.values.items()}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
