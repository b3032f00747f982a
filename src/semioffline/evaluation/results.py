"""The result of an evaluation: predictions, one value per input and metric, means with intervals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from semioffline.data.examples import Examples
from semioffline.evaluation.statistics import CorpusScore, bootstrap_interval, corpus_value
from semioffline.storage.files import write_atomically
from semioffline.storage.records import Record


@dataclass(frozen=True)
class MetricResult(Record):
    """One metric over a set of inputs."""

    mean: float
    """Mean over inputs; for a corpus metric, the value over the whole set."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    inputs: int
    signature: str


@dataclass
class Evaluation:
    """Outputs of a policy and their scores."""

    predictions: list[str]
    values: dict[str, list[float]]
    """metric -> one value for each input; for a corpus metric, its sentence form"""
    signatures: dict[str, str]
    statistics: dict[str, list[list[float]]] = field(default_factory=dict)
    """corpus metric (corpus BLEU) -> for each input, the statistics that are summed over inputs"""
    corpus_scores: dict[str, CorpusScore] = field(default_factory=dict)
    """corpus metric -> its value from summed statistics"""

    def put_first(self, name: str, values: list[float], signature: str) -> None:
        """Add a metric with a value for each input before the others. It replaces one of the same name."""
        self.values = {name: values} | {other: own for other, own in self.values.items() if other != name}
        self.signatures[name] = signature
        self.statistics.pop(name, None)

    def means(self) -> dict[str, float]:
        """Return metric -> mean over inputs, or value over the whole set."""
        return {name: self._value(name) for name in self.values}

    def _value(self, name: str) -> float:
        if name in self.statistics:
            return corpus_value(self.statistics[name], self.corpus_scores[name])
        known = [value for value in self.values[name] if not math.isnan(value)]
        return float(np.mean(known)) if known else math.nan

    def result(self, resamples: int = 1000, seed: int = 0) -> dict[str, MetricResult]:
        """Return metric -> its mean with a bootstrap interval. seed: of the bootstrap."""
        found = {}
        for name, values in self.values.items():
            inputs = self.statistics.get(name, values)
            low, high = bootstrap_interval(inputs, resamples, seed, self.corpus_scores.get(name))
            found[name] = MetricResult(self._value(name), low, high, len(values), self.signatures[name])
        return found


def write_predictions(path: str | Path, evaluation: Evaluation, examples: Examples) -> None:
    """Write predictions.jsonl: prompt, prediction, references and the value of each metric, one line per input."""
    lines = []
    for n, (text, example) in enumerate(zip(evaluation.predictions, examples.examples, strict=True)):
        row = {"prompt": example.columns["prompt"], "prediction": text, "references": example.columns["references"]}
        row |= {name: values[n] for name, values in evaluation.values.items()}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_atomically(Path(path), "".join(lines))
