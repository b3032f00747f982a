"""Generate, score, confidence intervals, signatures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from semioffline.data import Collator, Examples
from semioffline.decoding import Decoding
from semioffline.policy import Policy
from semioffline.scoring import RewardSet, reward_columns

SURFACE = ("length", "repetition", "distinct")
"""Always measured: what a narrow reward does not see."""


@dataclass
class Evaluation:
    predictions: list[str]
    values: dict[str, list[float]]
    """metric -> one value for each input"""
    signatures: dict[str, str]

    def means(self) -> dict[str, float]:
        return {name: float(np.nanmean(values)) for name, values in self.values.items()}

    def result(self, resamples: int = 1000, seed: int = 0) -> dict[str, dict[str, Any]]:
        """metric -> mean, 95 % interval, signature, number of inputs."""
        out = {}
        for name, values in self.values.items():
            low, high = bootstrap_interval(values, resamples, seed)
            out[name] = {
                "mean": float(np.nanmean(values)),
                "low": low,
                "high": high,
                "inputs": len(values),
                "signature": self.signatures[name],
            }
        return out


def bootstrap_interval(values: Sequence[float], resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean, resampling inputs."""
    array = np.asarray(values, dtype=float)
    array = array[~np.isnan(array)]
    if not len(array):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = [np.mean(array[rng.integers(len(array), size=len(array))]) for _ in range(resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def paired_p_value(values: Sequence[float], others: Sequence[float], resamples: int = 2000, seed: int = 0) -> float:
    """Two-sided paired bootstrap over inputs: how often the sign of the mean difference is not the observed one."""
    differences = np.asarray(values, dtype=float) - np.asarray(others, dtype=float)
    differences = differences[~np.isnan(differences)]
    if not len(differences) or not differences.any():
        return 1.0
    rng = np.random.default_rng(seed)
    means = np.array(
        [differences[rng.integers(len(differences), size=len(differences))].mean() for _ in range(resamples)]
    )
    return float(min(1.0, 2 * min((means <= 0).mean(), (means >= 0).mean())))


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
    return measure(policy.decode(ids), examples, metrics, decoding, ids)


def measure(
    predictions: list[str], examples: Examples, metrics: Sequence[Any], decoding: Decoding, ids: list[list[int]]
) -> Evaluation:
    named = [m for m in metrics if m not in SURFACE]
    reward_set = RewardSet([*named, *SURFACE])
    values = score(predictions, [e.columns for e in examples.examples], reward_set, ids)
    tail = f"|dec:{decoding.signature()}"
    signatures = {name: getattr(f, "signature", name) + tail for name, f in reward_set.functions.items()}
    return Evaluation(predictions, values, signatures)


def write_predictions(path: str | Path, evaluation: Evaluation, examples: Examples) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for n, (text, example) in enumerate(zip(evaluation.predictions, examples.examples, strict=True)):
            row = {"prompt": example.columns["prompt"], "prediction": text, "references": example.columns["references"]}
            row |= {name: values[n] for name, values in evaluation.values.items()}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
