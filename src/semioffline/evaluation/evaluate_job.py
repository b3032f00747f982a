"""Evaluation as a job for an engine: a worker decodes and scores shards, and writes two files for each."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from semioffline.config import MethodConfig
from semioffline.data.candidate_job import model_place
from semioffline.data.examples import Examples
from semioffline.data.lengths import Truncation, text_limits
from semioffline.data.options import ModelOptions
from semioffline.data.shards import RowShard
from semioffline.engines.base import Tell
from semioffline.evaluation.decode import generate_ids
from semioffline.evaluation.metrics import Metrics
from semioffline.evaluation.results import MetricResult, metric_result, prediction_lines
from semioffline.evaluation.statistics import CorpusScore
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.storage.files import join_files, make_folder, read_json, write_atomically, write_pieces


@dataclass(frozen=True)
class OutputFolder:
    """The outputs of an evaluation, in shards. A shard's file is complete or not there, and is not made again."""

    path: Path
    rows: int
    shard_size: int

    @property
    def shards(self) -> int:
        return math.ceil(self.rows / self.shard_size)

    def ids(self, number: int) -> Path:
        """The token ids of a shard's outputs, and the seconds that they took."""
        return self.path / "outputs" / f"{number:05d}-of-{self.shards:05d}.json"

    def scored(self, number: int) -> Path:
        """A shard's part of predictions.jsonl, until all are there."""
        return self.ids(number).with_suffix(".jsonl")

    def begin(self) -> list[int]:
        """The numbers of the shards that are there."""
        make_folder(self.path / "outputs")
        return [number for number in range(self.shards) if self.ids(number).exists()]

    def seconds(self, numbers: Sequence[int]) -> float:
        return sum(float(read_json(self.ids(number))["seconds"]) for number in numbers)

    def join(self, path: Path) -> None:
        """Write predictions.jsonl, and remove its parts."""
        parts = [self.scored(number) for number in range(self.shards)]
        join_files(path, parts)
        for part in parts:
            part.unlink()


@dataclass(frozen=True)
class ShardScores:
    """The scores of a shard."""

    first: int
    values: dict[str, np.ndarray]
    """metric -> (inputs,)"""
    statistics: dict[str, np.ndarray]
    """corpus metric -> (inputs, S)"""
    signatures: dict[str, str]
    cut: Truncation


@dataclass(frozen=True)
class EvaluateJob:
    """What a worker needs to evaluate."""

    folder: OutputFolder
    model: ModelOptions
    metrics: list[str]
    config: Callable[[Path, bool], MethodConfig]
    """(folder, whether it is on the CPU) -> the settings for truncating and decoding texts"""
    batch_size: int
    restore: Callable[[Policy, Path], None]
    """Adds to the policy what a method has saved next to its model."""
    timeout: float | None = None
    cuda_graphs: bool = False

    def places(self) -> dict[str, Path]:
        return {"--output_dir": self.folder.path} | model_place(self.model)

    def load(self) -> EvaluateWorker:
        device = self.model.checked_device()
        policy = self.model.load().to(device)
        self.restore(policy, Path(str(self.model.model)))
        if self.cuda_graphs:
            policy.generator.replay_decoding()
        return EvaluateWorker(self, policy, self.config(self.folder.path, device == "cpu"))


class EvaluateWorker:
    """Decodes and scores shards."""

    def __init__(self, job: EvaluateJob, policy: Policy, args: MethodConfig) -> None:
        self.job, self.policy = job, policy
        self.limits, self.side = text_limits(policy, args), args.truncation_side
        self.decoding = Decoding.for_evaluation(args, self.limits[1])
        self.metrics = Metrics(job.metrics, self.decoding, policy.device, job.timeout)

    @property
    def about(self) -> Mapping[str, Any]:
        return {"decoding": self.decoding}

    def make(self, shard: RowShard, tell: Tell) -> ShardScores:
        examples = Examples(shard.rows, self.policy, *self.limits, self.side, progress=False, first=shard.first)
        ids = self._outputs(shard.number, examples)
        evaluation = self.metrics.measure(self.policy.tokens.decode(ids), examples, ids)
        lines = prediction_lines(evaluation, examples)
        write_pieces(self.job.folder.scored(shard.number), (line.encode() for line in lines))
        tell(len(examples))
        return ShardScores(
            first=shard.first,
            values={name: np.asarray(values, dtype=float) for name, values in evaluation.values.items()},
            statistics={name: np.asarray(each, dtype=float) for name, each in evaluation.statistics.items()},
            signatures=evaluation.signatures,
            cut=examples.truncation,
        )

    def _outputs(self, number: int, examples: Examples) -> list[list[int]]:
        """The token ids of a shard: those that are there, or new ones."""
        path = self.job.folder.ids(number)
        if path.exists():
            return [list(map(int, ids)) for ids in read_json(path)["outputs"]]
        began = time.perf_counter()
        with self.policy.meter.paused():
            ids = generate_ids(self.policy, examples, self.decoding, self.job.batch_size, progress=False)
        write_atomically(path, json.dumps({"seconds": time.perf_counter() - began, "outputs": ids}))
        return ids


@dataclass
class Collected:
    """The scores of all shards, in the order of the inputs."""

    rows: int
    values: dict[str, np.ndarray] = field(default_factory=dict)
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    cut: Truncation = field(default_factory=Truncation)

    def add(self, scores: ShardScores) -> None:
        for own, found in ((self.values, scores.values), (self.statistics, scores.statistics)):
            for name, values in found.items():
                whole = own.setdefault(name, np.full((self.rows, *values.shape[1:]), math.nan))
                whole[scores.first : scores.first + len(values)] = values
        self.signatures |= scores.signatures
        self.cut = self.cut.join(scores.cut)

    def result(self, corpus_scores: Mapping[str, CorpusScore], seed: int) -> dict[str, MetricResult]:
        """metric -> its mean with an interval"""
        return dict(self._results(corpus_scores, seed))

    def _results(self, corpus_scores: Mapping[str, CorpusScore], seed: int) -> Iterator[tuple[str, MetricResult]]:
        for name, values in self.values.items():
            score = corpus_scores[name] if name in self.statistics else None
            yield name, metric_result(self.statistics.get(name, values), self.signatures[name], score, seed=seed)
