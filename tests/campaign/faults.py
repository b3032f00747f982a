"""Faults at every write of a command: a process that is killed, and a disk that is full.

A write is a call of os.fsync, os.replace, os.rename or os.truncate, or a file that is opened to append to. `run` starts
a command whose n-th write is hit.
"""

import builtins
import errno
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MOMENTS = ("before", "during", "after")
"""Of a kill: before the write, with half of what is not durable yet, and after it."""
FULL = "full"
"""From this write on, the disk is full."""
PATCHED = ("fsync", "replace", "rename", "truncate")


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


class HalfAppended:
    """A file of which a part of the first text is written."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> "HalfAppended":
        return self

    __exit__ = die

    def write(self, text: str) -> NoReturn:
        self.file.write(text[: len(text) // 2])
        self.file.flush()
        die()


Place = int | tuple[str, str]
"""A write: its number, or its name and path, of which it is the first."""


class Faults:
    """Counts writes and hits one of them. seen: their names and paths go into this file."""

    def __init__(self, at: Place, moment: str, seen: Path | None = None) -> None:
        self.at, self.moment, self.count, self.is_full = at, moment, -1, False
        self.seen = None if seen is None else os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in PATCHED}
        self.open = builtins.open
        self.synced: dict[str, int] = {}
        """file -> its size when it was last made durable: what can no longer be lost"""

    def install(self) -> None:
        for name in PATCHED:
            setattr(os, name, self._patched(name))
        builtins.open = self._open

    def _patched(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else str(args[-1])
            if not self._is_hit(name, place):
                if name == "fsync":
                    self.synced[place] = os.fstat(args[0]).st_size
                return self.originals[name](*args, **kwargs)
            if self.moment == FULL and name == "fsync":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.moment == "during" and name == "fsync" and stat.S_ISREG(os.fstat(args[0]).st_mode):
                synced = self.synced.get(place, 0)
                self.originals["truncate"](place, (synced + os.stat(place).st_size) // 2)
            if self.moment in ("after", FULL):
                self.originals[name](*args, **kwargs)
            return None if self.moment == FULL else die()

        return call

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not mode.startswith("a") or not self._is_hit("append", str(file)):
            return self.open(file, mode, *args, **kwargs)
        if self.moment == FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.moment == "before":
            die()
        return HalfAppended(self.open(file, mode, *args, **kwargs))

    def _is_hit(self, name: str, place: str) -> bool:
        self.count += 1
        if self.seen is not None:
            os.write(self.seen, (json.dumps([name, place]) + "\n").encode())
        is_hit = self.at in (self.count, (name, place))
        self.is_full |= is_hit and self.moment == FULL
        return is_hit or self.is_full


def run(argv: list[str], output: str, at: Place = -1, moment: str = "before", seen: Path | None = None) -> None:
    """The command line in a process of its own, whose n-th write is hit; what it prints goes to a file."""
    import torch

    from semioffline.cli import main

    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(output, "w", buffering=1)  # noqa: SIM115
    Faults(at, moment, seen).install()
    raise SystemExit(main(argv))
