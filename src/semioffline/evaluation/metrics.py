"""Score outputs: metrics by name or as functions, and the surface of the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from semioffline.config import MethodConfig
from semioffline.data.examples import Examples
from semioffline.errors import unknown
from semioffline.evaluation.decode import generate_ids
from semioffline.evaluation.results import Evaluation
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.rewards.contract import CorpusMetric, Reward, RewardFunction
from semioffline.scoring.calls import RewardError, raised, reward_columns
from semioffline.scoring.named import find_reward
from semioffline.scoring.reward_set import RewardSet

SURFACE = ("length", "repetition", "distinct")
"""Metrics that are always measured: text properties that a narrow reward does not see."""
Metric = str | RewardFunction
"""A reward function, by name or as an object, that is reported and not trained."""


def best_metric(args: MethodConfig, rewards: RewardSet, examples: object) -> str | None:
    """Return the name of the metric that chooses the best checkpoint: the reward if there is one, unless the settings
    name another.

    Raises an error for a metric that does not exist, before the first evaluation. examples: the validation data.
    """
    metrics = RewardSet(args.eval_metrics).functions  # by the names in the log
    best = args.metric_for_best_model
    if best == "reward" and not rewards.functions and args.eval_metrics:
        best = args.eval_metrics[0]
    known = {*metrics, *rewards.functions, *SURFACE} | ({"reward"} if rewards.functions else set())
    if isinstance(examples, Examples) and best is not None and best.removeprefix("eval_") not in known:
        raise unknown("metric_for_best_model", best, known)
    return best


def score(
    predictions: list[str], rows: Sequence[Mapping[str, object]], metrics: RewardSet, ids: list[list[int]]
) -> dict[str, list[float]]:
    """Score predictions. Return metric -> one value for each prediction. rows: the columns of each input."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return metrics(reward_columns(columns, predictions, ids))[1]


def evaluate(
    policy: Policy,
    examples: Examples,
    metrics: Sequence[Metric],
    decoding: Decoding,
    batch_size: int = 32,
    progress: bool = True,
    kept: Path | None = None,
    timeout: float | None = None,
) -> Evaluation:
    """Decode every example, and measure `metrics` and the surface of the outputs. kept: see `generate_ids`. timeout:
    seconds that one call of a metric may take."""
    with policy.meter.paused():
        ids = generate_ids(policy, examples, decoding, batch_size, progress, kept=kept)
    return measure(policy.tokens.decode(ids), examples, metrics, decoding, ids, policy.device, timeout)


def measure(
    predictions: list[str],
    examples: Examples,
    metrics: Sequence[Metric],
    decoding: Decoding,
    ids: list[list[int]],
    device: torch.device | None = None,
    timeout: float | None = None,
) -> Evaluation:
    """Score outputs. Metrics that are models run on `device`; a metric that is given twice is measured once."""
    named = [metric for metric in metrics if metric not in SURFACE]
    functions: list[Reward] = []
    for metric in named:
        function = find_reward(metric, device=device)[1]
        functions += [] if function in functions else [function]
    reward_set = RewardSet([*functions, *SURFACE], timeout=timeout)
    rows = [example.columns for example in examples.examples]
    values = score(predictions, rows, reward_set, ids)
    tail = f"|dec:{decoding.signature()}"
    said = {name: function.signature for name, function in reward_set.functions.items()}
    signatures = {name: (name if signature is None else signature) + tail for name, signature in said.items()}
    evaluation = Evaluation(predictions, values, signatures)
    references = [cast(list[str], row["references"]) for row in rows]
    for name, function in reward_set.functions.items():
        if isinstance(function, CorpusMetric):
            evaluation.statistics[name] = _statistics(name, function, predictions, references)
            evaluation.corpus_scores[name] = partial(_corpus_score, name, function)
    return evaluation


def _statistics(
    name: str, metric: CorpusMetric, predictions: list[str], references: list[list[str]]
) -> list[list[float]]:
    """Return the statistics of each input, checked because a metric may come from the user."""
    try:
        array = np.asarray(metric.statistics(predictions, references), dtype=float)
    except Exception as error:
        raise raised(name, error) from error
    if array.ndim != 2 or len(array) != len(predictions) or not np.isfinite(array).all():
        raise RewardError(
            f"the statistics of '{name}' have the shape {array.shape}: they must be finite, and a list for each of "
            f"{len(predictions)} inputs"
        )
    return array.tolist()


def _corpus_score(name: str, metric: CorpusMetric, sums: Sequence[float]) -> float:
    try:
        return float(metric.corpus_score(sums))
    except Exception as error:
        raise raised(name, error) from error
