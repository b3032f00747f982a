"""Commands on a Ray cluster, each with its resources. One whose node dies is run again elsewhere."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from semioffline.engines.actor import CommandActor, Failure
from semioffline.engines.options import EngineOptions
from semioffline.engines.processes import Processes
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


@contextmanager
def open_commands(options: EngineOptions, folder: Path) -> Iterator[Processes]:
    """Runs commands on the cluster during the block. folder: their output folder, which all nodes must see."""
    with connected(options) as ray:
        resources = Resources.of(ray, options)
        wait_for_room(ray, options, resources, options.num_workers)
        with telling(folder, resources.cpus) as told:
            commands = RayCommands(ray, resources, told)
            try:
                yield commands
            finally:
                commands.end()


class RayCommands:
    """Commands in actors. `run` is called from several threads."""

    def __init__(self, ray: Any, resources: Resources, told: dict[str, Any]) -> None:
        self.stopped = False
        self._ray, self._resources, self._told = ray, resources, told
        self._remote = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **resources.as_ray())(CommandActor)
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._born = 0

    def run(self, command: list[str], log: Path) -> int:
        """The exit code. The first word of the command is this machine's interpreter: each node uses its own."""
        for attempt in range(1, MOST_LOSSES + 1):
            actor, name = self._start()
            if actor is None:
                return -signal.SIGINT
            try:
                return self._answer(actor, name, command[1:], log)
            except self._ray.exceptions.RayError as error:
                if self.stopped:
                    return -signal.SIGINT
                cause = cause_of_death(str(error))
                what = "again" if attempt < MOST_LOSSES else f"{attempt} times in all"
                say(f"the worker of {log.parent.name} died ({cause}): it was started {what}", error=True)
            finally:
                self._end(actor)
        raise UserError(f"{log.parent.name}: {MOST_LOSSES} workers died, one after the other: {cause}")

    def _start(self) -> tuple[Any, str]:
        with self._lock:
            if self.stopped:
                return None, ""
            self._born += 1
            actor = self._remote.remote()
            self._running.add(actor)
            return actor, log_name(self._born)

    def _answer(self, actor: Any, name: str, command: list[str], log: Path) -> int:
        began, started = time.monotonic(), actor.start.remote(self._told, name)
        while not self._ray.wait([started], timeout=1.0)[0]:
            limit = SECONDS_TO_START if self._resources.fit(self._ray) else SECONDS_FOR_ROOM
            if time.monotonic() - began > limit:
                raise self._resources.shortage(self._ray, 1, limit)
        self._checked(self._ray.get(started))
        return self._checked(self._ray.get(actor.run.remote(command, str(log.absolute()))))

    def _checked(self, answer: Any) -> Any:
        if isinstance(answer, Failure):
            raise UserError(answer.message)
        return answer

    def _end(self, actor: Any) -> None:
        with self._lock:
            self._running.discard(actor)
        with suppress(Exception):  # the cluster may be gone
            self._ray.kill(actor, no_restart=True)

    def start_no_more(self) -> None:
        self.stopped = True

    def end(self) -> None:
        with self._lock:
            self.stopped = True
            running = list(self._running)
        for actor in running:
            with suppress(Exception):
                self._ray.kill(actor, no_restart=True)
