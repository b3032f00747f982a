"""End the process of a command properly, even if the user's code exits early or leaves threads that hang."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn

from semioffline.printing import say

PATIENCE, PATIENCE_AFTER_ERROR = 60.0, 3.0
"""Seconds that threads, such as a logger that uploads, have to end after the command."""
_end_process = os._exit


def count_early_end_as_error() -> None:
    """Make os._exit(0) in a reward an error, because it would look like success without a result. Forked processes may
    still call it."""
    process = os.getpid()

    def leave(status: int) -> NoReturn:
        _end_process(status or (1 if os.getpid() == process else 0))

    setattr(os, "_exit", leave)  # noqa: B010  (not a name that this file defines)


def end_soon(code: int) -> None:
    """End the process even if threads are still running: a reward that hangs may have started them."""
    threading.Thread(target=_end, args=(code,), daemon=True).start()


def _end(code: int) -> None:
    time.sleep(PATIENCE_AFTER_ERROR if code else PATIENCE)
    if any(thread.is_alive() for thread in threading.enumerate() if not thread.daemon):
        say("semioffline: exiting without waiting for threads that are still running", error=True)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        _end_process(code)
