"""Commands in processes of their own, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from semioffline.storage.files import writing

_OWN_GROUP = 0 if os.name == "posix" else None
"""Each command leads a group of processes. Linux ends what is stopped (SIGSTOP) in a group that has lost its parent."""


class Processes(Protocol):
    """Runs commands, several at a time from several threads."""

    stopped: bool
    """No other is started."""

    def run(self, command: list[str], log: Path) -> int:
        """The exit code of a command. What it prints is added to the log."""

    def start_no_more(self) -> None:
        """Start no more commands, and let the running ones finish."""

    def end(self) -> None:
        """End the running ones."""


OpenProcesses = Callable[[], AbstractContextManager[Processes]]


class Children:
    """Child processes. They watch their standard input, which the system closes however this process ends."""

    def __init__(self) -> None:
        self.stopped = False
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.end()

    def run(self, command: list[str], log: Path) -> int:
        with writing(log):
            file = open(log, "ab")  # noqa: SIM115
        with file:
            with self._lock:
                if self.stopped:
                    return -signal.SIGINT
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    process_group=_OWN_GROUP,
                )
                self._running.add(child)
            with child:
                code = child.wait()
            self._running.discard(child)
            return code

    def start_no_more(self) -> None:
        self.stopped = True

    def end(self) -> None:
        with self._lock:
            self.stopped = True
            for child in self._running:
                child.kill()
