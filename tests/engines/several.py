"""Several jobs as one, for tests of the engines: their workers are loaded once. Workers import this file by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semioffline.data.candidate_job import CandidateJob
from semioffline.data.shards import RowShard
from semioffline.engines.base import Tell


@dataclass(frozen=True)
class SeveralJobs:
    jobs: list[CandidateJob]

    def places(self) -> dict[str, Path]:
        return {}

    def load(self) -> SeveralWorkers:
        return SeveralWorkers([job.load() for job in self.jobs])


@dataclass(frozen=True)
class OneOfSeveral:
    job: int
    shard: RowShard

    @property
    def number(self) -> int:
        return 100 * self.job + self.shard.number


class SeveralWorkers:
    def __init__(self, workers: list[Any]) -> None:
        self.workers = workers

    @property
    def about(self) -> Mapping[str, Any]:
        return {"workers": len(self.workers)}

    def make(self, shard: OneOfSeveral, tell: Tell) -> Any:
        return self.workers[shard.job].make(shard.shard, tell)
