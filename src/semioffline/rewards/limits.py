"""Time limits for rewards that may hang, and retries for rewards that may fail.

Python cannot stop a running function from outside. When the limit is reached, training stops with an error, and the
function ends with the process. If a function does not let other threads run (a regular expression with endless
backtracking), the process is ended with exit code 1, and stderr shows where the function was.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from semioffline.errors import UserError
from semioffline.rewards.contract import RewardFunction, WrappedReward

GRACE = 1.0
"""Seconds that a cancelled coroutine has to end."""
LAST = 5.0
"""Seconds after the limit until the process is ended, if no other thread can run and report the error."""


def no_answer(seconds: float) -> str:
    return f"no answer after {seconds:g} s (reward_timeout)"


@contextmanager
def end_process_after(seconds: float | None) -> Iterator[None]:
    """End this process if the block takes much longer than `seconds`. The watchdog does not need the Python
    interpreter."""
    stream = sys.__stderr__
    if seconds is None or stream is None or stream.closed:
        yield
        return
    faulthandler.dump_traceback_later(seconds + GRACE + LAST, exit=True, file=stream)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class TimeLimit(WrappedReward):
    """A reward function that raises TimeoutError if a call takes longer than `seconds`.

    A plain function runs in its own thread, which cannot be stopped. A coroutine is cancelled.
    """

    def __init__(self, function: RewardFunction, seconds: float) -> None:
        if not seconds > 0:
            raise UserError(f"reward_timeout={seconds} must be positive, in seconds")
        super().__init__(function)
        self.seconds = seconds

    def __call__(self, **columns: Any) -> Any:
        done = threading.Event()
        values: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                values.append(self.function(**columns))
            except BaseException as error:  # handed to the caller below
                errors.append(error)
            done.set()

        with end_process_after(self.seconds):  # first of all: the function may keep this thread from going on
            threading.Thread(target=work, name=f"reward {self.name}", daemon=True).start()
            in_time = done.wait(self.seconds)
        if not in_time:
            raise TimeoutError(no_answer(self.seconds))
        if errors:
            raise errors[0]
        [value] = values
        return self._wait(value) if inspect.isawaitable(value) else value

    async def _wait(self, value: Any) -> Any:
        try:
            async with asyncio.timeout(self.seconds) as limit:
                return await value
        except TimeoutError as error:
            if not limit.expired():  # the reward's own
                raise
            raise TimeoutError(no_answer(self.seconds)) from error


def time_limit(function: RewardFunction, seconds: float | None) -> RewardFunction:
    """Add a time limit to the calls of a function; None means no limit."""
    return function if seconds is None else TimeLimit(function, seconds)


class Retry(WrappedReward):
    """A reward function that is called again when it fails.

    Args:
        function: The reward function, sync or async.
        attempts: Number of calls, the first one included.
        wait: Seconds before the second call; doubled before each further call.
        errors: Exceptions after which it is called again. The default has network errors: OSError (ConnectionError,
            TimeoutError, urllib's URLError and HTTPError) and HTTPException (incomplete or malformed answers).
        give_up: What to do if all attempts fail. "raise": training stops with the last error. "none": the samples get
            no reward and are left out.

    Example:
        ```python
        careful = Retry(my_reward, attempts=4, wait=1.0, give_up="none")
        ```
    """

    def __init__(
        self,
        function: RewardFunction,
        attempts: int = 3,
        wait: float = 1.0,
        errors: tuple[type[BaseException], ...] = (OSError, HTTPException),
        give_up: str = "raise",
    ) -> None:
        if attempts < 1 or wait < 0:
            raise UserError(f"attempts={attempts} must be at least 1 and wait={wait} not negative")
        if give_up not in ("raise", "none"):
            raise UserError(f"give_up={give_up!r} must be 'raise' or 'none'")
        super().__init__(function)
        self.attempts, self.wait, self.errors, self.give_up = attempts, wait, errors, give_up

    def __call__(self, **columns: Any) -> Any:
        for attempt in range(1, self.attempts + 1):
            try:
                value = self.function(**columns)
                return self._again(value, columns) if inspect.isawaitable(value) else value
            except self.errors:
                if attempt == self.attempts and self.give_up == "raise":
                    raise
            if attempt < self.attempts:
                time.sleep(self._pause(attempt))
        return [None] * len(columns["completions"])

    async def _again(self, first: Any, columns: Mapping[str, list[Any]]) -> Any:
        for attempt in range(1, self.attempts + 1):
            try:
                return await (first if attempt == 1 else self.function(**columns))
            except self.errors:
                if attempt == self.attempts and self.give_up == "raise":
                    raise
            if attempt < self.attempts:
                await asyncio.sleep(self._pause(attempt))
        return [None] * len(columns["completions"])

    def _pause(self, attempt: int) -> float:
        return self.wait * 2 ** (attempt - 1)
