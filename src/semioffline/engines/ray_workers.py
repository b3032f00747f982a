"""Workers on a Ray cluster: actors that load a job once and take shards. A shard that is lost is made again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semioffline.engines.actor import Failure, WorkerActor
from semioffline.engines.base import ShardJob, ShardResult, Tell, Workers
from semioffline.engines.options import EngineOptions
from semioffline.engines.ray_cluster import (
    MOST_LOSSES,
    SECONDS_FOR_ROOM,
    SECONDS_TO_START,
    Resources,
    cause_of_death,
    connected,
    log_name,
    telling,
    wait_for_room,
)
from semioffline.errors import UserError
from semioffline.printing import say
from semioffline.storage.files import last_lines

AHEAD = 2
"""Shards that a worker has at a time: the next one is there when it has made the first."""


class RayEngine:
    """Workers on a Ray cluster."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    @contextmanager
    def open(self, job: ShardJob, folder: Path) -> Iterator[Workers]:
        with connected(self.options) as ray:
            resources = Resources.of(ray, self.options)
            wait_for_room(ray, self.options, resources, self.options.num_workers)
            with telling(folder, resources.cpus) as told:
                workers = RayWorkers(ray, self.options, resources, job, told)
                try:
                    workers.start()
                    yield workers
                finally:
                    workers.close()


@dataclass(eq=False)
class _Actor:
    """An actor, and what it was asked."""

    handle: Any
    log: str
    born: float
    node: str | None = None
    """None: it has not started yet."""
    is_loaded: bool = False
    asked: deque[Any] = field(default_factory=deque)
    """References to its answers, in the order in which they come."""
    shards: deque[Any] = field(default_factory=deque)
    """The shards among them."""

    def note_start(self, node: str) -> None:
        self.node = node

    def note_loaded(self) -> None:
        self.is_loaded = True


class RayWorkers:
    """The actors of one job."""

    def __init__(
        self, ray: Any, options: EngineOptions, resources: Resources, job: ShardJob, told: dict[str, Any]
    ) -> None:
        self.about: Mapping[str, Any] = {}
        self._ray, self._number, self._told = ray, options.num_workers, told
        self._resources = resources
        self._remote = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **resources.as_ray())(WorkerActor)
        self._job = ray.put(job)
        self._actors: list[_Actor] = []
        self._born = 0
        self._deaths = 0
        """Actors that have died one after the other before they were loaded."""
        self._losses: Counter[int] = Counter()
        """shard -> workers that died while they made it"""
        self._suspects: set[int] = set()
        """Shards that a worker had when it died."""
        self._again: deque[Any] = deque()
        """Shards that were lost."""

    # ---- start and end ----

    def start(self) -> None:
        """Start all workers, and wait until they are loaded."""
        for _ in range(self._number):
            self._add()
        while not all(actor.is_loaded for actor in self._actors):
            for _ in self._listen(lambda told: None):
                pass

    def close(self) -> None:
        for actor in self._actors:
            with suppress(Exception):  # the cluster may be gone
                self._ray.kill(actor.handle, no_restart=True)
        self._actors = []

    def _add(self) -> None:
        self._born += 1
        log = log_name(self._born)
        handle = self._remote.remote()
        actor = _Actor(handle, log, time.monotonic())
        actor.asked.append(handle.start.remote(self._told, log))
        self._actors.append(actor)

    # ---- work ----

    def make(self, shards: Iterable[Any], tell: Tell) -> Iterator[ShardResult]:
        """The results of all shards, in the order in which they are ready."""
        source, is_over = iter(shards), False
        while True:
            for actor in sorted(self._actors, key=lambda one: len(one.shards)):
                while actor.is_loaded and len(actor.shards) < self._most(actor) and not (is_over and not self._again):
                    shard = self._again.popleft() if self._again else next(source, None)
                    if shard is None:
                        is_over = True
                        break
                    actor.shards.append(shard)
                    actor.asked.append(actor.handle.make.remote(shard))
            if is_over and not self._again and not any(actor.shards for actor in self._actors):
                return
            yield from self._listen(tell)

    def _most(self, actor: _Actor) -> int:
        """How many shards a worker may have. One that was lost is made alone: if that worker dies, it is the cause."""
        is_alone = self._again or any(shard.number in self._suspects for shard in actor.shards)
        return 1 if is_alone else AHEAD

    def _listen(self, tell: Tell) -> Iterator[ShardResult]:
        """Wait for the next answer of any worker."""
        self._check_room()
        firsts = {actor.asked[0]: actor for actor in self._actors if actor.asked}
        ready, _ = self._ray.wait(list(firsts), num_returns=1, timeout=1.0)
        for reference in ready:
            actor = firsts[reference]
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except self._ray.exceptions.RayError as error:
                self._bury(actor, str(error))
                continue
            if isinstance(answer, Failure):
                raise UserError(answer.message)
            actor.asked.popleft()
            yield from self._take(actor, answer, tell)

    def _take(self, actor: _Actor, answer: Any, tell: Tell) -> Iterator[ShardResult]:
        """An answer: the node's name, what was loaded, or a shard."""
        if actor.node is None:
            actor.note_start(answer)
            actor.asked.append(actor.handle.load.remote(self._job))
        elif not actor.is_loaded:
            self.about = self.about or answer
            actor.note_loaded()
            self._deaths = 0
        else:
            for part in answer.told:
                tell(part)
            yield ShardResult(actor.shards.popleft(), answer.result)

    # ---- failures ----

    def _bury(self, actor: _Actor, reason: str) -> None:
        """Replace a worker that has died. What it had is made again; a shard that kills every worker is an error."""
        self._actors.remove(actor)
        with suppress(Exception):
            self._ray.kill(actor.handle, no_restart=True)
        cause = cause_of_death(reason)
        where = f"the worker on node {actor.node}" if actor.node else "a worker"
        what = "while it loaded"
        if actor.is_loaded:
            first = actor.shards[0] if actor.shards else None
            self._losses.update([] if first is None else [first.number])
            self._suspects.update(shard.number for shard in actor.shards)
            losses = 0 if first is None else self._losses[first.number]
            what = "between two shards" if first is None else f"in shard {first.number}"
        else:
            self._deaths += 1
            losses = self._deaths
        if losses >= MOST_LOSSES:
            raise UserError(f"{where} died {what}, and so did {losses - 1} before it: {cause}{self._printed(actor)}")
        say(f"{where} died {what} ({cause}): another one goes on", error=True)
        self._again.extendleft(reversed(actor.shards))
        self._add()

    def _printed(self, actor: _Actor) -> str:
        log = Path(self._told["folder"]) / actor.log
        lines = last_lines(log, 3)
        return f". Its last lines: {' | '.join(lines)} (all in {log})" if lines else ""

    def _check_room(self) -> None:
        """An error if no worker is left, and the cluster that has lost nodes has no room for another one."""
        if any(actor.node is not None for actor in self._actors):
            return
        waited = time.monotonic() - min(actor.born for actor in self._actors)
        limit = SECONDS_TO_START if self._resources.fit(self._ray) else SECONDS_FOR_ROOM
        if waited > limit:
            raise self._resources.shortage(self._ray, self._number, limit)
