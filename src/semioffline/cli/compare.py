"""semioffline compare: compare the gain and the cost of methods on your own data."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

from semioffline.cli.compare_options import TYPES, CompareOptions, method_config, read_command
from semioffline.cli.help import wants_help
from semioffline.cli.options import as_flags, default_metrics, parse
from semioffline.cli.prepare import prepare, seconds_before
from semioffline.cli.recipes import Recipe
from semioffline.cli.run_folder import about
from semioffline.config import MethodConfig
from semioffline.data.options import ModelOptions
from semioffline.errors import UserError, unknown
from semioffline.experiments.comparison import compare
from semioffline.experiments.other_comparisons import labelled_folders
from semioffline.experiments.plan import START, Plan
from semioffline.experiments.provenance import ABOUT, write_about
from semioffline.experiments.results import Comparison
from semioffline.experiments.runs import run_one
from semioffline.experiments.summary import summarise
from semioffline.experiments.timing import time_methods
from semioffline.printing import say
from semioffline.storage.files import write_atomically
from semioffline.tasks.registry import Task
from semioffline.training.run_folder import open_folder, write_settings

DEFAULTS = {"report_to": "none", "save_strategy": "no", "eval_strategy": "no", "eval_on_start": True}
DEFAULTS |= {"per_device_eval_batch_size": 100, "logging_steps": 50, "log_completions": False}
ANYWHERE = {"use_cpu": True, "bf16": False, "fp16": False, "cuda_graphs": False}
"""Flags for a table of runs that may have been made on another machine."""
ALONE = (None, "timing")
"""Values of --only that need the folder for themselves. With other values, other processes may run other methods and
seeds there."""


def _defaults_of(task: Task) -> dict[str, Any]:
    defaults = {**task.settings, "eval_metrics": default_metrics(task), **DEFAULTS}
    return defaults | {"reward": [task.reward] if task.reward else None}


def run(argv: list[str]) -> None:
    whole, only = _split_only(argv)
    table_only = only == "table"
    argv = [*argv, *as_flags(ANYWHERE if table_only else {})]
    if wants_help(argv):
        parse("compare", [*TYPES, MethodConfig], argv)
    task = parse("compare", TYPES, argv, unread="ignore")[0].load_task()
    defaults = _defaults_of(task)
    data, model, options, args, by_method = read_command(argv, defaults)
    beside = labelled_folders(options.beside)
    seeds = _seeds(options, by_method) | {START: options.seeds[:1]}
    _check_only(options.only, seeds)
    device = model.checked_device()
    folder = open_folder(str(args.output_dir), resume=True, lock=only in ALONE)

    def settings(method: str, **changes: Any) -> MethodConfig:
        # the initial checkpoint's own settings are for its training: it is tested as all are
        own = {} if method == START else by_method[method]
        return method_config(method, own | changes | {"use_cpu": device == "cpu"}, argv, defaults)

    first = partial(settings, START, **by_method[START] | {"output_dir": str(folder / "start")})
    start, rows = (None, None) if table_only else prepare(data, model, options, settings, first, folder, say)
    plan = Plan(
        folder=folder,
        methods=[START, *options.methods],
        seeds=seeds,
        steps=_steps(options, by_method),
        rewards=options.reward,
        rows=rows,
        dev=None if table_only else task.load(data.source(args.seed, data.eval_limit), "validation"),
        test=None if table_only else task.load(data.source(args.seed), "test"),
        load=lambda: ModelOptions(str(start), model.device, model.dtype).load(share_prompt=args.share_prompt),
        settings=settings,
        budget_seconds=options.budget_seconds,
        budget_steps=options.budget_steps,
        evaluations=options.evaluations,
        keep=options.keep,
        jobs=options.jobs,
        command=lambda method, seed: _command_of_one(argv, options.jobs, f"{method}:{seed}"),
        about=about("compare", whole),
        made_with={"data": data.made_with()} | {k: getattr(options, k) for k in ("reward", "keep", "evaluations")},
        beside=beside,
        extra={
            "kind": "comparison",
            "title": f"{data.called}: {len(options.methods)} methods",
            "own_settings": {method: own for method, own in by_method.items() if own},
            "preparation": seconds_before(folder),
        },
    )
    if options.only == "timing":
        return time_methods(plan, say, plan.methods)
    if options.only is not None and not table_only:
        method, _, seed = options.only.rpartition(":")
        return run_one(plan, method, int(seed))
    result = summarise(plan) if table_only else compare(plan, say)
    write_settings(folder, data, model, options, args)
    splits = {} if table_only else {"train": plan.rows, "validation": plan.dev, "test": plan.test}
    if splits or not (folder / ABOUT).exists():
        write_about(folder, plan.about, (data, model, options, args), splits)
    _write(result, folder)


def _seeds(options: CompareOptions, by_method: dict[str, Recipe]) -> dict[str, list[int]]:
    given = {method: cast(list[int], by_method[method].get("seeds", options.seeds)) for method in options.methods}
    return {method: list(dict.fromkeys(seeds)) for method, seeds in given.items()}


def _steps(options: CompareOptions, by_method: dict[str, Recipe]) -> dict[str, int]:
    """Return the number of steps of the methods whose settings give one."""
    given = {method: cast(int | None, by_method[method].get("steps")) for method in options.methods}
    return {method: steps for method, steps in given.items() if steps}


def _command_of_one(argv: list[str], jobs: int, only: str) -> list[str]:
    """Return the command that makes one run in its own process, with its share of the cores."""
    own = {"reward_workers": max(0, (os.cpu_count() or 1) // jobs - 1), "disable_tqdm": True}  # it writes to a file
    return [sys.executable, "-m", "semioffline.cli.child", "compare", *as_flags(own), *argv, "--only", only]


def _write(result: Comparison, folder: Path) -> None:
    from semioffline.report import plots, table
    from semioffline.report.page import write_report

    write_atomically(folder / "comparison.json", json.dumps(result.to_json(), indent=1))
    write_atomically(folder / "comparison.md", table.markdown(result))
    table.show(result)
    plots.draw(result, folder)
    say(f"comparison.json, comparison.md and plots in {folder}")
    say(f"Report: {write_report([folder])}")


def _check_only(only: str | None, seeds: dict[str, list[int]]) -> None:
    every = [f"{method}:{seed}" for method in seeds for seed in seeds[method]]
    known = [*every, "timing", "table"]
    if only is not None and only not in known:
        raise unknown("run in --only", only, known)


def _split_only(argv: list[str]) -> tuple[list[str], str | None]:
    """Return the command without --only, and the value of --only. It is read first, because a table needs no GPU
    whatever the settings are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--only")
    try:
        found, whole = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    return whole, found.only
