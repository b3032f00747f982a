"""Processes that compute built-in rewards while the model continues. They live as long as this process.

python -m semioffline.scoring.pool WORKERS is the process that distributes the samples among the others.

A step takes about as long with concurrent.futures.ProcessPoolExecutor (`benchmarks/reward_workers.py`: 1.04 times). But
its processes import the user's script again, which fails without a main guard, and they survive if this process is
killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from semioffline.rewards.limits import GRACE
from semioffline.scoring.worker import Group, Message, PoolError, deal, encode_message, read_groups, read_message, serve

MOST_WORKERS = 16
"""Maximum number of workers. More gain little, because a chunk is then scored faster than it is sent."""
START = 60.0
"""Seconds that processes may take to start and to read a tokenizer, in addition to the time limit of rewards."""
LEAST = 8
"""Minimum number of samples for one more process to be worth its cost."""


class WorkerProcesses:
    """Processes, each with a pipe. They are started as separate programs: they have nothing of CUDA, the user's script
    or this process's threads, and they end when this process ends, however it ends."""

    def __init__(self, number: int, *program: str, own_group: bool = False):
        """program: a module of this package and its arguments; without it: reward workers. own_group: whether each
        process leads a process group with the processes that it starts, so that all of them can be ended at once."""
        self.own_group = own_group and hasattr(os, "killpg")
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", *(program or ("semioffline.scoring.worker",))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                process_group=0 if self.own_group else None,
            )
            for _ in range(number)
        ]

    def write(self, messages: Sequence[bytes]) -> None:
        """Write one message to each of the first workers."""
        try:
            for worker, message in zip(self.processes, messages, strict=False):
                worker.stdin.write(message)  # type: ignore[union-attr]
                worker.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError) as error:  # ValueError: closed before
            raise self._ended() from error

    def read(self, number: int) -> list[bytes]:
        """Read the answers of the first `number` workers, even if one is an error, so that no pipe stays half full."""
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
                self.kill()
                worker.wait()
            worker.stdout.close()  # type: ignore[union-attr]

    def kill(self) -> None:
        """Kill the running processes, including those that a signal has suspended."""
        for worker in self.processes:
            if worker.poll() is not None:
                continue
            with contextlib.suppress(ProcessLookupError):
                if self.own_group:
                    os.killpg(worker.pid, signal.SIGKILL)
                else:
                    worker.kill()


class RewardPool:
    """The training process's connection to one process that distributes the work among its own workers.

    A thread that reads or writes a pipe waits for the interpreter, which is busy launching kernels: up to some
    milliseconds each time. So there is one message and one answer, however many workers there are.
    """

    def __init__(self, number: int):
        self._lock = threading.Lock()
        self._tokenizer: str | None = None
        program = ("semioffline.scoring.pool", str(number)) if number > 1 else ()
        self.front = WorkerProcesses(1, *program, own_group=True)

    def ask(
        self,
        tokenizer: str,
        rewards: Sequence[str],
        groups: Sequence[Group],
        columns: dict[str, list[Any]],
        timeout: float | None = None,
    ) -> Asked:
        """Announce what will be scored. The pool is reserved for the caller until it reads the values or closes the
        request.

        tokenizer: the JSON of a fast tokenizer. columns: one value for each input.
        """
        needed = {name: [values[group.row] for group in groups] for name, values in columns.items()}
        told = [group.told() for group in groups]
        try:
            request = encode_message({"rewards": list(rewards), "timeout": timeout, "groups": told, "columns": needed})
        except TypeError as error:
            raise PoolError(f"a column cannot be handed over: {error}") from error
        self._lock.acquire()
        try:
            with self.limit(None if timeout is None else timeout + START):
                if tokenizer != self._tokenizer:
                    self.front.write([encode_message({"tokenizer": tokenizer})])
                    self.front.read(1)
                    self._tokenizer = tokenizer
                self.front.write([request])
        except BaseException as error:
            if not isinstance(error, PoolError):  # interrupted in the middle of a message
                self.close()
            self._lock.release()
            raise
        return Asked(self, len(rewards), None if timeout is None else len(rewards) * timeout + GRACE)

    @contextlib.contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        """End the processes if the block takes longer. A suspended (SIGSTOP) process neither reads nor answers and
        cannot keep its own time limit. Whoever waits for it then gets an error."""
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self.front.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def release(self) -> None:
        self._lock.release()

    @property
    def alive(self) -> bool:
        return self.front.alive

    def close(self) -> None:
        self.front.close()


class Asked:
    """One request to the pool: send the draws, then read the values."""

    def __init__(self, pool: RewardPool, rewards: int, seconds: float | None):
        self._pool: RewardPool | None = pool
        self._rewards = rewards
        self._seconds = seconds

    def send(self, draws: np.ndarray) -> None:
        """Send the draws, as int32, group after group."""
        assert self._pool is not None
        with self._pool.limit(self._seconds):
            self._pool.front.write([encode_message({}, draws.tobytes())])

    def values(self) -> list[np.ndarray]:
        """Return for each reward the values of all samples."""
        assert self._pool is not None
        pool, self._pool = self._pool, None
        try:
            with pool.limit(self._seconds):
                [answer] = pool.front.read(1)
        except PoolError:
            raise
        except BaseException:  # interrupted: the answer would be taken for that of the next question
            pool.close()
            raise
        finally:
            pool.release()
        return list(np.frombuffer(answer).reshape(self._rewards, -1))

    def close(self) -> None:
        """Abandon an unanswered request by ending its processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool.release()
            self._pool = None


class Dealer:
    """Runs in the process that distributes the work: divides the samples evenly among its workers."""

    def __init__(self, number: int):
        self.workers = WorkerProcesses(number)
        self._groups: list[Group] = []
        self._parts: list[list[Part]] = []

    @property
    def alive(self) -> bool:
        return self.workers.alive

    def close(self) -> None:
        self.workers.close()

    def load(self, tokenizer: str) -> None:
        number = len(self.workers.processes)
        self.workers.write([encode_message({"tokenizer": tokenizer})] * number)
        self.workers.read(number)

    def prepare(self, asked: Message) -> None:
        self._groups = read_groups(asked)
        self._parts = cut([group.many for group in self._groups], len(self.workers.processes))
        messages = []
        for parts in self._parts:
            told = [self._groups[part.at].told(part.high - part.low) for part in parts]
            columns = {name: [values[part.at] for part in parts] for name, values in asked["columns"].items()}
            messages.append(encode_message({**asked, "groups": told, "columns": columns}))
        self.workers.write(messages)

    def score(self, draws: np.ndarray) -> bytes:
        own = deal(self._groups, draws)
        sent = [b"".join(own[part.at][:, part.low : part.high].tobytes() for part in parts) for parts in self._parts]
        self.workers.write([encode_message({}, one) for one in sent])
        answers = self.workers.read(len(sent))
        rewards = len(answers[0]) // 8 // sum(part.high - part.low for part in self._parts[0])
        return np.concatenate([np.frombuffer(answer).reshape(rewards, -1) for answer in answers], axis=1).tobytes()


class Part(NamedTuple):
    """The samples low, ..., high - 1 of a group."""

    at: int
    low: int
    high: int


def cut(counts: Sequence[int], number: int) -> list[list[Part]]:
    """Divide groups of these sizes into chunks with about equal numbers of samples, in order."""
    starts = np.cumsum([0, *counts]).tolist()
    total = starts[-1]
    number = min(number, max(total // LEAST, 1))
    edges = [n * total // number for n in range(number + 1)]
    return [
        [
            Part(at, max(low - starts[at], 0), min(high, starts[at + 1]) - starts[at])
            for at in range(len(counts))
            if starts[at] < high and starts[at + 1] > low
        ]
        for low, high in zip(edges, edges[1:], strict=False)
    ]


_POOLS: dict[int, RewardPool] = {}


def start_pool(number: int) -> RewardPool:
    """Return the pool with this many workers, which all trainers of this process share. Start it if it is not
    running."""
    if number not in _POOLS or not _POOLS[number].alive:
        _POOLS[number] = RewardPool(number)
    return _POOLS[number]


@atexit.register
def _close_all() -> None:
    for pool in _POOLS.values():
        pool.close()


def spare_workers(processes: int = 1) -> int:
    """Return the number of cores that are free for scoring; 0 below four. processes: number of training processes on
    this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = cores // processes
    return min(own - 2, MOST_WORKERS) if own >= 4 else 0


if __name__ == "__main__":
    serve(Dealer(int(sys.argv[1])))
