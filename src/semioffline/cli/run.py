"""semioffline run: the whole job, from data, a model and a reward to a better model and one table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from semioffline.cli.options import parse
from semioffline.cli.recipes import Recipe
from semioffline.cli.run_folder import about
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.job_results import JobResult
from semioffline.experiments.whole_job import run_options, task_defaults
from semioffline.policy.policy import Policy
from semioffline.printing import say

TYPES = [DataOptions, ModelOptions, JobOptions]


def run(argv: list[str]) -> None:
    run_and_report("run", argv, *parse_job("run", argv))


def run_and_report(
    command: str,
    argv: list[str],
    data: DataOptions,
    model: ModelOptions,
    options: JobOptions,
    load: Callable[[Path, Any], Policy] | None = None,
) -> tuple[JobResult | None, Path]:
    """The result of a job, and its folder. load: the model, where it has no name."""
    from semioffline.report.page import write_report

    folder = Path(options.output_dir or f"runs/{command}-{time.strftime('%Y%m%d-%H%M%S')}")
    options = replace(options, output_dir=str(folder))
    result = run_options(data, model, options, list(options.reward), load=load, about=about(command, argv))
    if result is not None:
        say(f"Report: {write_report([folder])}")
    return result, folder


def parse_job(
    command: str, argv: list[str], defaults: Recipe | None = None
) -> tuple[DataOptions, ModelOptions, JobOptions]:
    """The task's settings are defaults; the recipe and the flags override them."""
    given = defaults or {}
    task = parse(command, TYPES, argv, given)[0].load_task()
    data, model, options = parse(command, TYPES, argv, given | task_defaults(task) | given)
    return data, model, options
