"""Run the whole job with its report: `run` in Python, and what the commands `run` and `demo` do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from semioffline.data.options import DataOptions, ModelOptions
from semioffline.data.splits import Splits, splits_of
from semioffline.errors import UserError, short, unknown
from semioffline.experiments.job import MODEL
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.job_results import INITIAL, JobResult
from semioffline.experiments.provenance import Provenance
from semioffline.experiments.whole_job import run_options, task_defaults
from semioffline.policy.policy import Policy
from semioffline.printing import say
from semioffline.report.page import write_report
from semioffline.storage.files import whole_folder


def run(
    model: Any,
    data: Any,
    reward: Any = None,
    output_dir: str | Path | None = None,
    processing_class: Any = None,
    task: str = "files",
    columns: dict[str, str] | None = None,
    device: str = "auto",
    **options: Any,
) -> JobResult | None:
    """Run the whole job, as `semioffline run` does: inspect the data, M-FT if it is needed, static targets if they
    help, semi-offline RL, and a test against more M-FT for the same time. A repeated call continues an interrupted job.

    Args:
        model: Hub name, folder, PreTrainedModel, PeftModel or Policy.
        data: Folder, file or Hub name; or a Dataset, a list of rows, or a dict of these by split.
        reward: Name, callable, sequence-classification model, or a list of them; the task's own when not given.
        options: The other flags of `semioffline run`, such as `minutes=10` or `lora_r=8`.

    Returns:
        The result, which result.json of the output_dir holds, too; None for `dry_run=True`. As after the command,
        report.html is there, too.

    Example:
        result = run(model="facebook/bart-base", data="data/", reward=my_reward, output_dir="run")
        print(result.sentence)
    """
    if columns is not None and not isinstance(columns, dict):
        raise UserError(f"columns={short(repr(columns))} must be a dict of our columns to yours, or None")
    known = {item.name for item in fields(JobOptions)}
    for name in options.keys() - known:
        raise unknown("option of run", name, known)
    in_memory = not isinstance(data, (str, Path))
    words = [] if columns is None else [f"{ours}={theirs}" for ours, theirs in columns.items()]
    source = DataOptions(task=task, data_dir=None if in_memory else str(data), columns=words)
    named = isinstance(model, (str, Path))
    where = ModelOptions(model=str(model) if named else None, device=device)
    source.read_by(where.model)
    defaults = task_defaults(source.load_task())
    rewards = list(reward) if isinstance(reward, (list, tuple)) else [] if reward is None else [reward]
    rewards = rewards or list(defaults["reward"])
    names = [given if isinstance(given, str) else _name_of(given) for given in rewards]
    wanted = JobOptions(**{**defaults, "reward": names, **options, "output_dir": output_dir and str(output_dir)})
    if in_memory and words:
        raise UserError("columns= works for files only: rename the columns of a Dataset with Dataset.rename_columns")
    load = None if named else partial(_keep_model, model, processing_class)
    splits = splits_of(data) if in_memory else None
    return run_and_report(source, where, in_folder(wanted, "run"), rewards, load=load, splits=splits)


def in_folder(options: JobOptions, command: str) -> JobOptions:
    """Return the options with an output folder."""
    return replace(options, output_dir=options.output_dir or f"runs/{command}-{time.strftime('%Y%m%d-%H%M%S')}")


def run_and_report(
    data: DataOptions,
    model: ModelOptions,
    options: JobOptions,
    rewards: list[Any],
    load: Callable[[Path, Any], Policy] | None = None,
    splits: Splits | None = None,
    about: Provenance | None = None,
) -> JobResult | None:
    """Run the job of these options, which name a folder, and write report.html there. See `run_options`."""
    result = run_options(data, model, options, rewards, splits, load, about)
    if result is not None:
        say(f"Report: {write_report([Path(str(options.output_dir))])}")
    return result


def _name_of(reward: Any) -> str:
    """Return the name of a reward object, for config.yaml."""
    return str(getattr(reward, "name", None) or getattr(reward, "__name__", None) or type(reward).__name__)


def _keep_model(model: Any, processing_class: Any, folder: Path, adapter: Any) -> Policy:
    """Save a model that is in memory, so that a repeated call can start from it."""
    kept = folder / INITIAL / MODEL
    if not kept.exists():
        policy = Policy.of(model, processing_class)
        if not folder.exists():  # --dry_run
            return policy
        with whole_folder(kept) as part:
            policy.save(part)
    return Policy.load(str(kept), peft_config=adapter)
