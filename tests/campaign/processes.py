"""Commands in processes of their own, without the seconds that imports take."""

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from integration.toy import start_process


class Ended(NamedTuple):
    """A command that was run."""

    code: int | None
    """None: it did not end, and was killed."""
    printed: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The lines that say what is wrong."""
        return [line for line in self.printed.splitlines() if line.startswith("semioffline: error:")]


def start_command(argv: list[str], folder: Path, output: Path) -> Any:
    """In this folder, and in a session of its own, to which all processes belong that it starts."""
    return start_process(_be_command, argv, str(folder), str(output))


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(number) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def run_command(argv: list[str], folder: Path, output: Path, patience: float = 120.0) -> Ended:
    began = time.monotonic()
    process = start_command(argv, folder, output)
    process.join(patience)
    code = None if process.is_alive() else process.exitcode
    if code is None:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    return Ended(code, output.read_text(errors="replace"), time.monotonic() - began)


def set_signals_as_a_shell_does() -> None:
    """In a process that is to be a command. SIGINT and SIGHUP may be ignored where the tests run in the background, and
    processes inherit that."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _be_command(argv: list[str], folder: str, output: str) -> Any:
    """What `python -m semioffline` does, from its first line to the end of the process."""
    import torch

    from semioffline.cli import main, process

    torch.set_num_threads(1)
    set_signals_as_a_shell_does()
    os.setsid()
    os.chdir(folder)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = ["semioffline", *argv]
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    process._end_process(code)
