"""Processes that score samples with built-in rewards while the model goes on. They live as long as this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from semioffline.reward_worker import Group, encode_message, read_message

MOST = 16
"""More processes than this gain little: a chunk is then scored faster than it is handed over."""
LEAST = 8
"""Samples that are worth a process of their own."""


class PoolError(RuntimeError):
    """A worker could not answer."""


class RewardPool:
    """Worker processes, each behind a pipe. Started as programs of their own: nothing of CUDA, of the user's script or
    of this process's threads is in them, and they end when this process does, however it ends."""

    def __init__(self, number: int):
        self.number = number
        self._lock = threading.Lock()
        self._tokenizer: str | None = None
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "semioffline.reward_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for _ in range(number)
        ]

    def start(
        self,
        tokenizer: str,
        rewards: Sequence[str],
        groups: Sequence[Group],
        columns: dict[str, list[Any]],
        timeout: float | None = None,
    ) -> Callable[[], list[np.ndarray]]:
        """Hand out the work. What comes back must be called: it gives, for each reward, the values of all samples.

        tokenizer: the JSON of a fast one; columns: one value for each input.
        """
        asked = {"rewards": list(rewards), "timeout": timeout}
        chunks = _cut(groups, columns, self.number)
        try:
            requests = [encode_message(asked | head, ids) for head, ids in chunks]
        except TypeError as error:
            raise PoolError(f"a column cannot be handed over: {error}") from error
        self._lock.acquire()
        try:
            if tokenizer != self._tokenizer:
                self._write([encode_message({"tokenizer": tokenizer})] * self.number)
                self._read(self.number)
                self._tokenizer = tokenizer
            self._write(requests)
        except BaseException:
            self._lock.release()
            raise

        def collect() -> list[np.ndarray]:
            try:
                answers = self._read(len(requests))
            finally:
                self._lock.release()
            parts = [np.frombuffer(answer).reshape(len(rewards), -1) for answer in answers]
            return list(np.concatenate(parts, axis=1))

        return collect

    def _write(self, messages: list[bytes]) -> None:
        """One message for each of the first workers."""
        try:
            for worker, message in zip(self._workers, messages, strict=False):
                worker.stdin.write(message)  # type: ignore[union-attr]
                worker.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError) as error:  # ValueError: closed before
            raise self._ended() from error

    def _read(self, number: int) -> list[bytes]:
        """All answers are read, also when one is an error: no pipe is left half full."""
        answers = [read_message(worker.stdout) for worker in self._workers[:number]]  # type: ignore[arg-type]
        heard = [answer for answer in answers if answer is not None]
        if len(heard) < number:
            raise self._ended()
        for head, _ in heard:
            if "error" in head:
                raise PoolError(head["error"])
        return [payload for _, payload in heard]

    def _ended(self) -> PoolError:
        self.close()
        return PoolError("a process that scores samples has ended")

    @property
    def alive(self) -> bool:
        return all(worker.poll() is None for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.stdin.close()  # type: ignore[union-attr]
        for worker in self._workers:
            try:
                worker.wait(2)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            worker.stdout.close()  # type: ignore[union-attr]


def _cut(groups: Sequence[Group], columns: dict[str, list[Any]], number: int) -> list[tuple[dict[str, Any], bytes]]:
    """Chunks of about equal numbers of samples, in order: what a worker is told of each, and the draws."""
    starts = np.cumsum([0, *(group.draws.shape[1] for group in groups)]).tolist()
    total = starts[-1]
    number = min(number, max(total // LEAST, 1))
    edges = [n * total // number for n in range(number + 1)]
    chunks = []
    for low, high in zip(edges, edges[1:], strict=False):
        inside = [at for at in range(len(groups)) if starts[at] < high and starts[at + 1] > low]
        parts = [groups[at].draws[:, max(low - starts[at], 0) : high - starts[at]] for at in inside]
        own = [groups[at] for at in inside]
        told = [
            [group.row, group.static.tolist(), group.places.tolist(), part.shape[1]]
            for group, part in zip(own, parts, strict=True)
        ]
        needed = {name: [values[group.row] for group in own] for name, values in columns.items()}
        chunks.append(({"groups": told, "columns": needed}, b"".join(part.tobytes() for part in parts)))
    return chunks


_POOLS: dict[int, RewardPool] = {}


def shared_pool(number: int) -> RewardPool:
    """The pool of so many workers that every trainer of this process uses."""
    if number not in _POOLS or not _POOLS[number].alive:
        _POOLS[number] = RewardPool(number)
    return _POOLS[number]


@atexit.register
def _close_all() -> None:
    for pool in _POOLS.values():
        pool.close()


def spare_workers(processes: int = 1) -> int:
    """How many cores of this machine are left for scoring, with so many training processes on it; 0 below four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = cores // processes
    return min(own - 2, MOST) if own >= 4 else 0
