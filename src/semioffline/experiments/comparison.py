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
from semioffline.experiments.plan import RESULT, START, Plan, read_run
from semioffline.experiments.results import Comparison, Timing
from semioffline.experiments.runs import check_finished_run, run_one
from semioffline.experiments.summary import summarise
from semioffline.experiments.timing import fit_into_budget, known_timings, time_methods
from semioffline.printing import duration
from semioffline.storage.files import make_folder, writing

_OWN_GROUP = 0 if os.name == "posix" else None
"""Start each run as the leader of a process group. Linux ends stopped (SIGSTOP) processes of a group that has lost its
parent."""


def compare(plan: Plan, say: Callable[[str], None]) -> Comparison:
    """Make the missing runs and summarise all of them. An interrupted comparison resumes where it stopped."""
    missing = plan.missing()
    for method, seed in plan.every():
        if (method, seed) not in missing:
            say(f"{method}, seed {seed}: done before")
            check_finished_run(plan, method, seed)
    if plan.jobs > 1:
        _run_in_processes(plan, plan_time(plan, missing, say), say)
        return summarise(plan)
    first = [run for run in missing if run[0] == START][:1]  # says how long an evaluation takes
    for method, seed in first:
        _say_run(method, seed, say)
        run_one(plan, method, seed)
    for method, seed in plan_time(plan, [run for run in missing if run not in first], say):
        _say_run(method, seed, say)
        run_one(plan, method, seed)
    return summarise(plan)


def _say_run(method: str, seed: int, say: Callable[[str], None]) -> None:
    say(f"\n{'initial checkpoint' if method == START else method}, seed {seed}")


def plan_time(plan: Plan, missing: list[tuple[str, int]], say: Callable[[str], None]) -> list[tuple[str, int]]:
    """Print how long the comparison will take. Return the runs to make: a method is left out if not even one step fits
    into a budget in seconds."""
    trained = [run for run in missing if run[0] != START]
    if plan.budget_seconds is None or plan.budget_steps is not None or not trained:
        return missing
    time_methods(plan, say, [method for method, _ in trained])
    known = {method: fit_into_budget(plan, timing) for method, timing in known_timings(plan).items()}
    skipped = set()
    for method in dict.fromkeys(method for method, _ in trained):
        step, own = known[method].seconds_per_step, plan.steps.get(method)
        if step > plan.budget_seconds and not own:
            skipped.add(method)
            say(
                f"  {method}: {step:.3g} s a step, and the budget is {plan.budget_seconds:g} s: left out. To run it, "
                f'raise --budget_seconds, or set its steps: --settings \'{{"{method}": {{"steps": 10}}}}\''
            )
        else:
            steps = own or known[method].steps or 1
            say(f"  {method}: {step:.3g} s a step, {steps} steps in {duration(steps * step)}")
    left = [run for run in missing if run[0] not in skipped]
    _say_total(plan, [(method, known[method]) for method, _ in left if method != START], say)
    return left


def _say_total(plan: Plan, runs: list[tuple[str, Timing]], say: Callable[[str], None]) -> None:
    """Print the seconds of all training steps and evaluations. Each evaluation is estimated by that of the initial
    checkpoint."""
    seconds = sum((plan.steps.get(method) or timing.steps or 1) * timing.seconds_per_step for method, timing in runs)
    start = plan.run_folder(START, plan.seeds[START][0])
    told = ""
    if (start / RESULT).exists() and plan.dev is not None and plan.test is not None:
        one = read_run(start).wall_seconds
        evaluating = len(runs) * one * (plan.evaluations + len(plan.test) / max(len(plan.dev), 1))
        seconds, told = seconds + evaluating, f", {duration(evaluating)} of them to evaluate"
    jobs = f" ({plan.jobs} at a time)" if plan.jobs > 1 else ""
    say(f"{len(runs)} runs{jobs}: about {duration(seconds / plan.jobs)}{told}")


def _run_in_processes(plan: Plan, missing: list[tuple[str, int]], say: Callable[[str], None]) -> None:
    """Make `plan.jobs` runs at a time, each in its own process. A run that fails does not stop the others, unless none
    succeeds."""
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
        raise UserError(
            f"{problems[0]}{more}. Finished runs are kept: repeat the command to continue, or make a table of them "
            "with --only table"
        )


class Children:
    """Child processes. They watch their standard input, which the system closes however this process ends."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether no further process may be started."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: list[str], log: Path) -> int:
        """Run a command and return its exit code. Its output is added to the log."""
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
        """Start no more runs, and let the running ones finish."""
        self.stopped = True

    def end(self) -> None:
        with self._lock:
            self.stopped = True
            for child in self._running:
                child.kill()


def _run_in_process(plan: Plan, method: str, seed: int, say: Callable[[str], None], children: Children) -> str | None:
    """Make one run in its own process. Return the error, or None."""
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
