"""The process of a worker on a Ray cluster. Nothing slow is imported before it has been told its number of threads."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from semioffline.engines.base import ShardJob, ShardWorker
from semioffline.engines.processes import Children
from semioffline.engines.versions import library_versions, version_problem
from semioffline.errors import UserError
from semioffline.printing import quiet_libraries
from semioffline.storage.files import read_content, redirect_output

Answer = TypeVar("Answer")
SEEN = "cluster.txt"
"""A file in the folder of the logs. A worker that does not find it, with the driver's token, sees another folder."""


@dataclass(frozen=True)
class WorkerSetup:
    """What the driver tells every worker."""

    folder: str
    """Where the logs are."""
    token: str
    directory: str
    """The working directory of the driver: relative names of rewards and modules are looked up there."""
    versions: dict[str, str]
    cpus: int


@dataclass(frozen=True)
class Failure:
    """An error for the user. Other workers would end with the same one, so nothing is tried again."""

    message: str


@dataclass(frozen=True)
class Shown:
    """The result of a shard, and what it has told of its progress."""

    result: Any
    told: list[Any]


class NodeActor:
    """A process on some node. Each method returns a Failure instead of raising an error for the user."""

    def __init__(self) -> None:
        import ray

        self._node = f"{ray.util.get_node_ip_address()} ({platform.node()})"

    def start(self, told: dict[str, Any], log: str) -> str | Failure:
        """Check what this node has and sees. Returns the node's name. told: the fields of `WorkerSetup`, as plain
        values, because another version of the library may have others."""
        return self.guarded(lambda: self._start(told, log))

    def _start(self, told: dict[str, Any], log: str) -> str:
        problem = version_problem(told["versions"], library_versions())
        if problem:
            raise UserError(f"it has other versions than the node of the command: {problem}. Install the same on all")
        folder = Path(told["folder"])
        try:
            seen = read_content(folder / SEEN).decode()
        except OSError:
            seen = ""
        if seen != told["token"]:
            raise UserError(
                f"it cannot see the output folder {folder.parent}: use a folder on a file system that all nodes share"
            )
        redirect_output(folder / log)
        os.environ["OMP_NUM_THREADS"] = str(told["cpus"])
        with suppress(OSError):
            os.chdir(told["directory"])
        if told["directory"] not in sys.path:
            sys.path.insert(0, told["directory"])
        return self._node

    def guarded(self, do: Callable[[], Answer]) -> Answer | Failure:
        try:
            return do()
        except UserError as error:
            return Failure(f"the worker on node {self._node}: {error}")
        except OSError as error:
            if error.errno is None:
                raise
            where = f" {error.filename}" if error.filename else ""
            return Failure(f"the worker on node {self._node} cannot read or write{where}: {error.strerror}")
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
                raise
            return Failure(
                f"the worker on node {self._node} has not enough memory: lower --batch_size, or give it a larger device"
            )


class WorkerActor(NodeActor):
    """A worker: loads a job once and takes shards."""

    def __init__(self) -> None:
        super().__init__()
        self._worker: ShardWorker | None = None

    def load(self, job: ShardJob) -> dict[str, Any] | Failure:
        """Load the job. Returns what the worker says about itself."""
        return self.guarded(lambda: self._load(job))

    def _load(self, job: ShardJob) -> dict[str, Any]:
        for flag, path in job.places().items():
            if not path.exists():
                raise UserError(f"it cannot see {flag} {path}: use a file system that all nodes share")
        quiet_libraries()
        self._worker = job.load()
        return dict(self._worker.about)

    def make(self, shard: Any) -> Shown | Failure:
        return self.guarded(lambda: self._make(shard))

    def _make(self, shard: Any) -> Shown:
        assert self._worker is not None
        told: list[Any] = []
        return Shown(self._worker.make(shard, told.append), told)


class CommandActor(NodeActor):
    """Runs one command in a process of its own, which ends when the actor does."""

    def run(self, command: list[str], log: str) -> int | Failure:
        """The exit code of a command for Python's interpreter. What it prints is added to the log."""
        return self.guarded(lambda: Children().run([sys.executable, *command], Path(log)))
