"""Run the whole job: from data, a model and a reward to a trained model and one table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from semioffline.data.options import DataOptions, ModelOptions
from semioffline.data.splits import Splits, load_splits
from semioffline.errors import UserError
from semioffline.evaluation.statistics import paired_difference
from semioffline.experiments.job import MODEL, Job, find_plan, make_plan, write_plan
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.job_plan import PLAN, JobPlan
from semioffline.experiments.job_results import INITIAL, MFT, MORE_MFT, JobResult, ModelResult
from semioffline.experiments.job_results import RESULT as RL
from semioffline.experiments.job_stages import (
    LABELS,
    Tested,
    Trained,
    choose_static_target,
    count_more_steps,
    make_static_targets,
    static_seconds,
    test_model,
    train_stage,
)
from semioffline.experiments.job_text import better_model, plan_lines, sentence, show_result
from semioffline.experiments.provenance import Provenance, commit, write_about
from semioffline.policy.policy import Policy
from semioffline.printing import say
from semioffline.scoring.reward_set import RewardSet
from semioffline.tasks.registry import Task
from semioffline.training.run_folder import RESULT, open_folder, versions, write_result, write_settings


def task_defaults(task: Task) -> dict[str, Any]:
    """Return the defaults that a task gives a job, without the number of beams: a job decodes four models, and greedy
    decoding is fast."""
    names = {"max_prompt_length", "max_completion_length", "min_new_tokens", "no_repeat_ngram_size"}
    found = {name: value for name, value in task.settings.items() if name in names}
    return found | {"reward": [task.reward] if task.reward else [], "eval_metrics": list(task.metrics)}


def run_options(
    data: DataOptions,
    model: ModelOptions,
    options: JobOptions,
    rewards: list[Any],
    splits: Splits | None = None,
    load: Callable[[Path, Any], Policy] | None = None,
    about: Provenance | None = None,
) -> JobResult | None:
    """Run the job of these options, which name a folder. splits: rows in memory. load: (folder, adapter) -> the model,
    if it has no name."""
    if not rewards:
        raise UserError("no reward given: add --reward with a name, file.py:function, module:function or model:NAME")
    if load is None and model.model is None:
        raise UserError("no model given: add --model NAME_OR_FOLDER")
    device = model.checked_device()
    RewardSet(rewards, options.reward_weights or None, device=device)
    RewardSet(options.eval_metrics)  # a misspelt name is told before anything is done
    splits = load_splits(data, options.seed) if splits is None else splits
    folder = Path(str(options.output_dir))
    if not options.dry_run:
        begun = (folder / PLAN).exists() or (folder / INITIAL).exists()
        open_folder(folder, resume=begun)
    job = Job(
        folder=folder,
        title=_title(data, model),
        splits=splits,
        load=(lambda adapter: model.load(peft_config=adapter)) if load is None else partial(load, folder),
        load_saved=lambda path: Policy.load(str(path), dtype=getattr(torch, model.dtype)),
        rewards=rewards,
        options=options,
        source=data.made_with() | {"model": model.model, "dtype": model.dtype},
        metrics=list(options.eval_metrics),
        has_form=data.task != "files" or data.prompt_template is not None,
        device=device,
        about=about or Provenance("run(...) in Python", commit(), versions(system=False)),
        say=say,
    )
    plan = find_plan(job)
    is_new = plan is None
    if plan is None:
        say("inspecting the data and the model, and timing a few steps")
        plan = make_plan(job)
    for margin, text in plan_lines(job.title, _reward_name(job), plan, options):
        say(margin + text, margin=len(margin))
    say()
    if options.dry_run:
        return None
    if is_new:
        write_plan(job, plan)
    write_settings(folder, data, model, options)
    write_about(folder, job.about, (data, model, options), splits.rows)
    return run_job(job, plan)


def run_job(job: Job, plan: JobPlan) -> JobResult:
    """Run all unfinished stages, and return the result."""
    tested, trained = {INITIAL: test_model(job, plan, INITIAL)}, {}
    if plan.mft is not None:
        trained[MFT] = train_stage(job, plan, MFT, plan.mft, job.rows(plan, "train"))
        tested[MFT] = test_model(job, plan, MFT)
    choice = choose_static_target(job, plan)
    rows = make_static_targets(job, plan, choice)
    more = count_more_steps(job, plan, choice, rows)
    trained[RL] = train_stage(job, plan, RL, plan.rl, rows, static_target=choice.target)
    tested[RL] = test_model(job, plan, RL)
    if more is not None:
        trained[MORE_MFT] = train_stage(job, plan, MORE_MFT, more, job.rows(plan, "train"))
        tested[MORE_MFT] = test_model(job, plan, MORE_MFT)
    result = _result(job, tested, trained)
    write_result(job.folder, result.to_json())
    job.say()
    show_result(result)
    job.say(result.sentence, strong=True, margin=0)
    job.say(f"The model is in {job.folder / RL / MODEL}; {RESULT} and all runs are in {job.folder}.", margin=0)
    if (better := better_model(result.models)) is not None:
        job.say(f"{LABELS[better]} is better than semi-offline RL here: its model is in {job.folder / better / MODEL}.")
    return result


def _result(job: Job, tested: dict[str, Tested], trained: dict[str, Trained]) -> JobResult:
    models = {}
    for name in (name for name in (INITIAL, MFT, MORE_MFT, RL) if name in tested):
        stage = trained.get(name)
        seconds = 0.0 if stage is None else stage.seconds
        models[name] = ModelResult(
            label=LABELS[name],
            folder=name,
            metrics=tested[name].metrics,
            seconds=seconds + (sum(static_seconds(job).values()) if name == RL else 0.0),
            cost_per_input={} if stage is None else stage.cost_per_input,
            difference=None if name == RL else paired_difference(tested[RL].rewards, tested[name].rewards),
        )
    reward = _reward_name(job)
    return JobResult(
        title=job.title,
        reward=reward,
        sentence=sentence(reward, models),
        models=models,
        preparation=static_seconds(job),
        about=job.about,
    )


def _reward_name(job: Job) -> str:
    return " + ".join(RewardSet(job.rewards, device=job.device).functions)


def _title(data: DataOptions, model: ModelOptions) -> str:
    place = data.data_dir or data.train_file
    name = data.task if data.task != "files" else Path(place).name if place else "rows in memory"
    return f"{name}, {Path(model.model).name}" if model.model else name
