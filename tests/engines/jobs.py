"""Jobs without a model, for tests of the engines. Workers import this file by its name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semioffline.engines.base import Tell
from semioffline.errors import UserError


@dataclass(frozen=True)
class Part:
    number: int


@dataclass(frozen=True)
class Squares:
    """The square of a shard's number. `trouble`: what happens in the shard `at`."""

    folder: Path
    trouble: str = ""
    at: int = -1
    seconds: float = 0.0
    seen: dict[str, Path] = field(default_factory=dict)

    def places(self) -> dict[str, Path]:
        return self.seen

    def load(self) -> SquareWorker:
        if self.trouble == "load":
            raise UserError("it cannot be loaded")
        if self.trouble == "die while loading":
            os.kill(os.getpid(), signal.SIGKILL)
        return SquareWorker(self)


class SquareWorker:
    def __init__(self, job: Squares) -> None:
        self.job = job

    @property
    def about(self) -> Mapping[str, Any]:
        return {"pid": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}

    def make(self, part: Part, tell: Tell) -> int:
        time.sleep(self.job.seconds)
        if part.number == self.job.at:
            self._trouble(part.number)
        tell(1)
        (self.job.folder / f"pid-{os.getpid()}").touch()
        return part.number**2

    def _trouble(self, number: int) -> None:
        once = self.job.folder / "once"
        if self.job.trouble == "die once" and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.job.trouble == "die":
            print("the last words of a worker", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.job.trouble == "user":
            raise UserError("a row is wrong")
        if self.job.trouble == "memory":
            raise MemoryError
        if self.job.trouble == "disk":
            (self.job.folder / "absent" / "file").write_text("")
        if self.job.trouble == "bug":
            raise LookupError("a bug")
