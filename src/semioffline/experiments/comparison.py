"""Compare methods: same initial checkpoint, same data, same budget."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semioffline.errors import UserError
from semioffline.experiments.plan import Plan
from semioffline.experiments.results import Comparison
from semioffline.experiments.runs import check_finished_run, run_one
from semioffline.experiments.summary import summarise
from semioffline.experiments.timing import time_methods
from semioffline.storage.files import make_folder, writing

_OWN_GROUP = 0 if os.name == "posix" else None
"""Each run leads a group of processes. Linux ends what is stopped (SIGSTOP) in a group that has lost its parent."""


def compare(plan: Plan, say: Callable[[str], None]) -> Comparison:
    """Run what is missing and sum up. An interrupted comparison resumes where it stopped."""
    missing = plan.missing()
    for method, seed in plan.every():
        if (method, seed) not in missing:
            say(f"{method}, seed {seed}: done before")
            check_finished_run(plan, method, seed)
    if plan.jobs > 1:
        _run_in_processes(plan, missing, say)
        return summarise(plan)
    for method, seed in missing:
        say(f"{method}, seed {seed}")
        run_one(plan, method, seed)
    return summarise(plan)


def _run_in_processes(plan: Plan, missing: list[tuple[str, int]], say: Callable[[str], None]) -> None:
    """`plan.jobs` runs at a time, each in a process. One that fails does not stop the others, unless none succeeds."""
    if plan.budget_steps is None:
        time_methods(plan, say, [method for method, _ in missing])
    children = Children()

    def run(method_and_seed: tuple[str, int]) -> str | None:
        problem = None if children.stopped else _run_in_process(plan, *method_and_seed, say, children)
        if problem and plan.missing() == missing:  # no run has finished yet: the others would fail too
            children.start_no_more()
        return problem

    with ThreadPoolExecutor(plan.jobs) as pool:
        try:
            problems = [problem for problem in pool.map(run, missing) if problem]
        except BaseException:  # interrupted: the pool waits for its threads, and they for their processes
            children.end()
            raise
    if problems:
        more = f"; {len(problems) - 1} more failed" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{more}. What is done stays done: start again, or make a table with --only table")


class Children:
    """Processes of this one. They watch their standard input, which the system closes however this process ends."""

    def __init__(self) -> None:
        self.stopped = False
        """No other is started."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: list[str], log: Path) -> int:
        """The exit code of a command. What it prints is added to the log."""
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
        """Let those that run come to their end."""
        self.stopped = True

    def end(self) -> None:
        with self._lock:
            self.stopped = True
            for child in self._running:
                child.kill()


def _run_in_process(plan: Plan, method: str, seed: int, say: Callable[[str], None], children: Children) -> str | None:
    """One run in a process of its own; the error, or None."""
    assert plan.command is not None
    folder = plan.run_folder(method, seed)
    make_folder(folder)
    log = folder / "log.txt"
    before = log.stat().st_size if log.exists() else 0  # of earlier attempts
    say(f"{method}, seed {seed}")
    code = children.run(plan.command(method, seed), log)
    if code == 0:
        return None
    last = (log.read_bytes()[before:].decode(errors="replace").splitlines() or ["no output"])[-1]
    hint = ": fewer --jobs need less memory" if re.search("out ?of ?memory", last, re.IGNORECASE) else ""
    return f"{method}, seed {seed} ended with exit code {code}: {last} (all of it in {log}){hint}"
