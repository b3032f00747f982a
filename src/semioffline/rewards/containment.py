"""Undo changes that a reward function makes to the process, if they would disturb the training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from semioffline.printing import fill_descriptors
from semioffline.rewards.contract import WrappedReward


@contextmanager
def contained() -> Iterator[None]:
    """Restore the working directory and the standard streams after the block. If the block forks a process that returns
    from it, end that process: it would continue with the training."""
    process, folder, streams = os.getpid(), _working_directory(), (sys.stdout, sys.stderr)
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(1)
        if folder is not None and _working_directory() != folder:
            os.chdir(folder)
        fill_descriptors()
        sys.stdout, sys.stderr = (_nowhere() if stream and stream.closed else stream for stream in streams)


class Contained(WrappedReward):
    """A function whose calls are contained. A coroutine that it returns is not."""

    def __call__(self, *args: Any, **columns: Any) -> Any:
        with contained():
            return self.function(*args, **columns)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _working_directory() -> str | None:
    """Return the working directory; None if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
