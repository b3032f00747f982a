"""semioffline run: the whole job, from data, a model and a reward to a trained model and one table."""

from __future__ import annotations

from semioffline.cli.options import parse
from semioffline.cli.recipes import Recipe
from semioffline.cli.run_folder import about
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.whole_job import task_defaults
from semioffline.report.job import in_folder, run_and_report

TYPES = [DataOptions, ModelOptions, JobOptions]


def run(argv: list[str]) -> None:
    data, model, options = parse_job("run", argv)
    options = in_folder(options, "run")
    run_and_report(data, model, options, list(options.reward), about=about("run", argv))


def parse_job(
    command: str, argv: list[str], defaults: Recipe | None = None
) -> tuple[DataOptions, ModelOptions, JobOptions]:
    """Parse the options of a job. A task's settings are the defaults; the recipe and the flags override them."""
    given = defaults or {}
    task = parse(command, TYPES, argv, given)[0].load_task()
    data, model, options = parse(command, TYPES, argv, given | task_defaults(task) | given)
    return data, model, options
