"""Compare methods: same initial checkpoint, same data, same budget."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from semioffline.errors import UserError
from semioffline.experiments.plan import Plan
from semioffline.experiments.results import Comparison
from semioffline.experiments.runs import check_finished_run, run_one
from semioffline.experiments.summary import summarise
from semioffline.experiments.timing import time_methods


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
    stop = threading.Event()

    def run(method_and_seed: tuple[str, int]) -> str | None:
        problem = None if stop.is_set() else _run_in_process(plan, *method_and_seed, say)
        if problem and plan.missing() == missing:  # no run has finished yet: the others would fail too
            stop.set()
        return problem

    with ThreadPoolExecutor(plan.jobs) as pool:
        problems = [problem for problem in pool.map(run, missing) if problem]
    if problems:
        more = f"; {len(problems) - 1} more failed" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{more}. What is done stays done: start again, or make a table with --only table")


def _run_in_process(plan: Plan, method: str, seed: int, say: Callable[[str], None]) -> str | None:
    """One run in a process of its own; the error, or None."""
    assert plan.command is not None
    folder = plan.run_folder(method, seed)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    say(f"{method}, seed {seed}")
    with open(log, "w") as file:
        code = subprocess.run(plan.command(method, seed), stdout=file, stderr=subprocess.STDOUT).returncode
    if code == 0:
        return None
    last = (log.read_text(errors="replace").splitlines() or ["no output"])[-1]
    hint = ": fewer --jobs need less memory" if re.search("out ?of ?memory", last, re.IGNORECASE) else ""
    return f"{method}, seed {seed} ended with exit code {code}: {last} (all of it in {log}){hint}"
