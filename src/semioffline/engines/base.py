"""Work that is cut into shards: what a job, a worker and an engine are, and the engine of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Tell = Callable[[Any], None]
"""What a worker calls with a part of its progress: the same part is told once, wherever the worker is."""


class Shard(Protocol):
    """A part of the work. It is sent to a worker, and sent to another one if that fails."""

    @property
    def number(self) -> int: ...


class ShardWorker(Protocol):
    """Holds what is loaded once, such as a model, and takes shards."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What is known after loading, such as the model's limits: plain values."""

    def make(self, shard: Any, tell: Tell) -> Any:
        """The result of a shard. It depends on the shard alone, and not on the shards before it."""


class ShardJob(Protocol):
    """Everything that a worker needs to load: plain data, which can be sent to another process."""

    def places(self) -> dict[str, Path]:
        """Files and folders that every worker must see: the flag that names it -> its path."""

    def load(self) -> ShardWorker: ...


@dataclass(frozen=True)
class ShardResult:
    """The result of one shard."""

    shard: Any
    result: Any


class Workers(Protocol):
    """Workers that have loaded their job."""

    @property
    def about(self) -> Mapping[str, Any]: ...

    def make(self, shards: Iterable[Any], tell: Tell) -> Iterator[ShardResult]:
        """The results, in the order in which they are ready. `shards` is read as workers get free, never at once."""


class Engine(Protocol):
    """Where the work is done."""

    def open(self, job: ShardJob, folder: Path) -> AbstractContextManager[Workers]:
        """Workers with this job loaded, until the block ends. folder: where they write, and what they print."""


class _Here:
    """One worker: this process."""

    def __init__(self, worker: ShardWorker) -> None:
        self._worker = worker

    @property
    def about(self) -> Mapping[str, Any]:
        return self._worker.about

    def make(self, shards: Iterable[Any], tell: Tell) -> Iterator[ShardResult]:
        for shard in shards:
            yield ShardResult(shard, self._worker.make(shard, tell))


class LocalEngine:
    """This process does everything itself, one shard after the other."""

    @contextmanager
    def open(self, job: ShardJob, folder: Path) -> Iterator[Workers]:
        yield _Here(job.load())
