"""Compare methods: same initial checkpoint, same data, same budget."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semioffline.engines.processes import Processes
from semioffline.errors import UserError
from semioffline.experiments.plan import RESULT, START, Plan, read_run
from semioffline.experiments.results import Comparison, Timing
from semioffline.experiments.runs import check_finished_run, run_one
from semioffline.experiments.summary import summarise
from semioffline.experiments.timing import fit_into_budget, known_timings, time_methods
from semioffline.printing import duration
from semioffline.storage.files import last_lines, make_folder


def compare(plan: Plan, say: Callable[[str], None]) -> Comparison:
    """Make the missing runs and summarise all of them. An interrupted comparison resumes where it stopped."""
    missing = plan.missing()
    for method, seed in plan.every():
        if (method, seed) not in missing:
            say(f"{method}, seed {seed}: done before")
            check_finished_run(plan, method, seed)
    if plan.processes is not None:
        if missing:
            with plan.processes() as processes:
                _run_in_processes(plan, missing, say, processes)
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


def plan_time(
    plan: Plan,
    missing: list[tuple[str, int]],
    say: Callable[[str], None],
    time_them: Callable[[list[str]], None] | None = None,
) -> list[tuple[str, int]]:
    """Print how long the comparison will take before it begins. Returns the runs to make: those of a method of which
    not one step fits into a budget in seconds are left out. time_them: times methods elsewhere."""
    trained = [run for run in missing if run[0] != START]
    if plan.budget_seconds is None or plan.budget_steps is not None or not trained:
        return missing
    methods = [method for method, _ in trained]
    if time_them is None:
        time_methods(plan, say, methods)
    elif set(methods) - known_timings(plan).keys():
        time_them(methods)
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


def _run_in_processes(
    plan: Plan, missing: list[tuple[str, int]], say: Callable[[str], None], children: Processes
) -> None:
    """`plan.jobs` runs at a time, each in a process. One that fails does not stop the others, unless none succeeds."""

    def time_there(methods: list[str]) -> None:
        say(f"timing the steps of {', '.join(dict.fromkeys(methods))} while nothing else runs")
        problem = _run_part(plan, "timing", plan.folder / "timing.txt", children)
        if problem:
            raise UserError(problem)

    missing = plan_time(plan, missing, say, time_there if plan.on_cluster else None)

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


def _run_in_process(plan: Plan, method: str, seed: int, say: Callable[[str], None], children: Processes) -> str | None:
    """One run in a process of its own; the error, or None."""
    folder = plan.run_folder(method, seed)
    make_folder(folder)
    say(f"{method}, seed {seed}")
    return _run_part(plan, f"{method}:{seed}", folder / "log.txt", children)


def _run_part(plan: Plan, part: str, log: Path, children: Processes) -> str | None:
    """What --only names, in a process of its own; the error, or None."""
    assert plan.command is not None
    before = log.stat().st_size if log.exists() else 0  # of earlier attempts
    code = children.run(plan.command(part), log)
    if code == 0:
        return None
    last = (last_lines(log, 1, before) or ["no output"])[-1]
    hint = ": fewer --jobs need less memory" if re.search("out ?of ?memory", last, re.IGNORECASE) else ""
    what = part.replace(":", ", seed ")
    return f"{what} ended with exit code {code}: {last} (all of it in {log}){hint}"
