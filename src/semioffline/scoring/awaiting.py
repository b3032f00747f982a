"""Run coroutines of reward functions at the same time. The caller continues whatever they do to their event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import Future, wait

from semioffline.rewards.containment import contained
from semioffline.rewards.limits import GRACE, end_process_after, no_answer
from semioffline.scoring.calls import RewardError, raised

_LOOK = 0.5
"""Seconds between two checks of the event loop."""


class _Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="async rewards", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task that a reward has started
            self.loop.run_forever()

    def submit(self, waiting: dict[str, Awaitable[object]], found: dict[str, object]) -> Future[None]:
        """Start the coroutines, and fill `found` with what each returns or raises."""

        async def one(name: str, value: Awaitable[object]) -> None:
            try:
                with contained():
                    found[name] = await value
            except BaseException as error:  # also sys.exit(), which would end the loop
                found[name] = error

        async def gather() -> None:
            await asyncio.gather(*(asyncio.create_task(one(name, value), name=name) for name, value in waiting.items()))

        return asyncio.run_coroutine_threadsafe(gather(), self.loop)

    def running(self) -> str:
        """Return the name of the task that runs now and may block the loop."""
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task(self.loop)
            return "" if task is None else task.get_name()
        return ""

    def leave(self) -> None:
        """Let the thread end when it can: a function that blocks cannot be stopped from outside."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)


_LOOPS: list[_Loop] = []
"""The event loop of the whole run. A single loop also works inside a notebook, and keeps objects of a reward valid
between steps (semaphores, HTTP clients)."""


_LEFT: list[tuple[_Loop, Future[None]]] = []
"""Abandoned loops. They are kept, because asyncio complains about tasks that are garbage-collected before they end."""


def await_all(waiting: dict[str, Awaitable[object]], timeout: float | None = None) -> dict[str, object]:
    """Wait for all coroutines and return their results. An error names its reward.

    timeout: Seconds. Each coroutine has this limit itself; here it catches one that blocks the event loop or does not
    end.
    """
    if not _LOOPS or not _LOOPS[0].thread.is_alive():
        _LOOPS[:] = [_Loop()]
    loop, found = _LOOPS[0], dict[str, object]()
    last = None if timeout is None else time.monotonic() + timeout + GRACE
    with end_process_after(timeout):
        future = loop.submit(waiting, found)
        while not future.done():
            wait([future], _LOOK if last is None else max(0.0, min(_LOOK, last - time.monotonic())))
            if future.done():
                break
            late = last is not None and time.monotonic() >= last
            if late or not loop.thread.is_alive():
                _LEFT.append((_LOOPS.pop(), future))
                missing = [name for name in waiting if name not in found]
                blamed = loop.running() if loop.running() in missing else missing[0]
                loop.leave()
                if late and timeout is not None:
                    raise raised(blamed, TimeoutError(no_answer(timeout)))
                raise RewardError(f"the reward function '{blamed}' has stopped the event loop that it runs in")
    for name, value in found.items():
        if isinstance(value, BaseException):
            raise raised(name, value) from value
    return {name: found[name] for name in waiting}
