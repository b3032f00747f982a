"""Undoes changes that a reward function makes to the process, if they would disturb the training."""

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
    """Restore the working directory, so that relative paths name the same files, and the standard streams. End a
    process that the block has forked and that comes back: it would go on with our work."""
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
    """A function whose calls are contained; the coroutine that it may return is not."""

    def __call__(self, *args: Any, **columns: Any) -> Any:
        with contained():
            return self.function(*args, **columns)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _working_directory() -> str | None:
    """None: it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
