"""Processes that score samples with built-in rewards while the model goes on. They live as long as this process.

python -m semioffline.reward_pool WORKERS is the one that deals the samples out to the others.
"""

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

from semioffline.reward_worker import Group, PoolError, encode_message, read_groups, read_message, serve

MOST = 16
"""More processes than this gain little: a chunk is then scored faster than it is handed over."""
LEAST = 8
"""Samples that are worth a process of their own."""


class Workers:
    """Processes, each behind a pipe. Started as programs of their own: nothing of CUDA, of the user's script or of this
    process's threads is in them, and they end when this process does, however it ends."""

    def __init__(self, number: int, *program: str):
        """program: a module of this package and its arguments; a worker that scores if there is none."""
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", *(program or ("semioffline.reward_worker",))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for _ in range(number)
        ]

    def write(self, messages: Sequence[bytes]) -> None:
        """One message for each of the first workers."""
        try:
            for worker, message in zip(self.processes, messages, strict=False):
                worker.stdin.write(message)  # type: ignore[union-attr]
                worker.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError) as error:  # ValueError: closed before
            raise self._ended() from error

    def read(self, number: int) -> list[bytes]:
        """All answers are read, also when one is an error: no pipe is left half full."""
        answers = [read_message(worker.stdout) for worker in self.processes[:number]]  # type: ignore[arg-type]
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
        return all(worker.poll() is None for worker in self.processes)

    def close(self) -> None:
        for worker in self.processes:
            with contextlib.suppress(OSError):
                worker.stdin.close()  # type: ignore[union-attr]
        for worker in self.processes:
            try:
                worker.wait(2)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            worker.stdout.close()  # type: ignore[union-attr]


class RewardPool:
    """What the training process talks to: one process, which deals the work out to workers of its own.

    A thread that reads or writes a pipe must then wait for the interpreter, which the launching of kernels keeps busy:
    up to some milliseconds each time. So there is one message and one answer, however many workers there are.
    """

    def __init__(self, number: int):
        self._lock = threading.Lock()
        self._tokenizer: str | None = None
        self._dealer = Workers(1, *(("semioffline.reward_pool", str(number)) if number > 1 else ()))

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
        [(told, ids)] = cut(groups, columns, 1)
        try:
            request = encode_message({"rewards": list(rewards), "timeout": timeout} | told, ids)
        except TypeError as error:
            raise PoolError(f"a column cannot be handed over: {error}") from error
        self._lock.acquire()
        try:
            if tokenizer != self._tokenizer:
                self._dealer.write([encode_message({"tokenizer": tokenizer})])
                self._dealer.read(1)
                self._tokenizer = tokenizer
            self._dealer.write([request])
        except BaseException:
            self._lock.release()
            raise

        def collect() -> list[np.ndarray]:
            try:
                [answer] = self._dealer.read(1)
            finally:
                self._lock.release()
            return list(np.frombuffer(answer).reshape(len(rewards), -1))

        return collect

    @property
    def alive(self) -> bool:
        return self._dealer.alive

    def close(self) -> None:
        self._dealer.close()


class Dealer:
    """In the process that deals out: cuts the samples into even parts, one for each of its workers."""

    def __init__(self, number: int):
        self.workers = Workers(number)

    @property
    def alive(self) -> bool:
        return self.workers.alive

    def load(self, tokenizer: str) -> None:
        number = len(self.workers.processes)
        self.workers.write([encode_message({"tokenizer": tokenizer})] * number)
        self.workers.read(number)

    def score(self, asked: dict[str, Any], payload: bytes) -> bytes:
        """As `reward_worker.score`. The columns of a message have one value for each of its groups."""
        groups = read_groups(asked, payload)
        shared = {name: asked[name] for name in ("rewards", "timeout")}
        chunks = cut(groups, asked["columns"], len(self.workers.processes), by_row=False)
        self.workers.write([encode_message(shared | told, ids) for told, ids in chunks])
        answers = self.workers.read(len(chunks))
        parts = [np.frombuffer(answer).reshape(len(asked["rewards"]), -1) for answer in answers]
        return np.concatenate(parts, axis=1).tobytes()


def cut(
    groups: Sequence[Group], columns: dict[str, list[Any]], number: int, by_row: bool = True
) -> list[tuple[dict[str, Any], bytes]]:
    """Chunks of about equal numbers of samples, in order: what a worker is told of each, and the draws.

    columns: one value for each input, by which groups know their row, or (by_row=False) one for each group.
    """
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
        at_columns = [group.row for group in own] if by_row else inside
        needed = {name: [values[at] for at in at_columns] for name, values in columns.items()}
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


if __name__ == "__main__":
    serve(Dealer(int(sys.argv[1])))
