"""A whole job: its data and model, the settings of its stages, and its plan."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from semioffline.config import MethodConfig
from semioffline.data.examples import Examples
from semioffline.data.inspection import choose_lengths, inspect
from semioffline.data.lengths import check_limits
from semioffline.data.prompt_form import PromptForm, apply_form, choose_form
from semioffline.data.splits import Splits, digest_splits
from semioffline.errors import UserError, changes
from semioffline.experiments.job_options import METHODS, JobOptions
from semioffline.experiments.job_plan import (
    PLAN,
    JobPlan,
    Speed,
    StagePlan,
    estimate,
    learning_rates,
    plan_stages,
)
from semioffline.experiments.job_results import MFT
from semioffline.experiments.job_results import RESULT as RL
from semioffline.experiments.provenance import Provenance
from semioffline.experiments.timing import free_memory, time_candidates, time_outputs, time_steps
from semioffline.methods.shared.registry import config_class
from semioffline.policy.policy import Policy
from semioffline.storage.files import write_atomically
from semioffline.storage.records import read_record
from semioffline.training.mask_token import INPUTS, check_mask_token

if TYPE_CHECKING:
    from datasets import Dataset

MODEL = "model"
SMALL = 10_000_000
"""Models with fewer parameters decode many inputs at a time."""


@dataclass(frozen=True)
class Job:
    """The model, data and options of a job."""

    folder: Path
    title: str
    """Names of the data and the model, for people."""
    splits: Splits
    load: Callable[[Any], Policy]
    """Loads the initial model. Argument: an adapter config, or None."""
    load_saved: Callable[[Path], Policy]
    """Loads the model that a stage has saved in this folder."""
    rewards: list[Any]
    options: JobOptions
    source: dict[str, object]
    """Where data and model come from, for the plan."""
    metrics: list[Any]
    """Metrics to report in addition to the reward."""
    has_form: bool
    """Whether the user or the task has set the form of prompts."""
    device: str
    about: Provenance
    say: Callable[..., None]

    @property
    def made_with(self) -> dict[str, object]:
        """The settings that the result depends on, as JSON values."""
        return json.loads(json.dumps(self.source | self.options.made_with(), default=str))

    def rows(self, plan: JobPlan, split: str) -> Dataset:
        """Return the rows of a split to use, in the form that the model reads."""
        rows = apply_form(self.splits, cast(PromptForm, plan.form)).rows[split]
        number = {"train": len(rows), "validation": plan.validated, "test": plan.tested}[split]
        return rows.select(range(number))


def stage_config(job: Job, plan: JobPlan, stage: str, steps: StagePlan, **changes: object) -> MethodConfig:
    """Return the settings of one stage: the chosen ones, overridden by --settings, overridden by `changes`."""
    options = job.options
    settings: dict[str, object] = {
        "output_dir": str(job.folder / stage),
        "seed": options.seed,
        "max_steps": steps.steps,
        "learning_rate": steps.learning_rate,
        "warmup_steps": min(20, steps.steps // 10),
        "per_device_train_batch_size": plan.batch_size,
        "per_device_eval_batch_size": plan.eval_batch_size,
        "train_sampling_strategy": "group_by_length",
        "max_prompt_length": plan.max_prompt_length,
        "max_completion_length": plan.max_completion_length,
        "num_beams": options.num_beams,
        "min_new_tokens": options.min_new_tokens,
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
        "logging_steps": min(10, steps.steps),
        "eval_strategy": "steps",
        "eval_steps": steps.eval_steps,
        "eval_on_start": True,
        "save_strategy": "steps",
        "save_steps": steps.eval_steps,
        "save_total_limit": 1,
        "load_best_model_at_end": stage != MFT,  # its reward may be best long before the text is right
        "metric_for_best_model": "reward",
        "eval_metrics": job.metrics,
        "reward_weights": options.reward_weights or None,
        "report_to": "none",
        "write_result": False,  # of the validation split: the job tests its models
        "use_cpu": job.device == "cpu",
        "bf16": job.device.startswith("cuda"),
    }
    if stage == RL:
        settings |= {"num_samples": options.num_samples, "mask_rate": options.mask_rate, "disable_dropout": True}
        settings |= {"rl_ratio": options.rl_ratio, "rl_weight": options.rl_weight}
    return config_class(METHODS[stage]).of(settings | options.own.get(stage, {}) | changes)


def find_plan(job: Job) -> JobPlan | None:
    """Read the plan of the job that has begun in this folder; None if there is none. A folder with another job is an
    error."""
    path = job.folder / PLAN
    if not path.exists():
        return None
    plan = read_record(JobPlan, path, "the plan of a job")
    names = plan.made_with.keys() | job.made_with.keys()
    if told := changes(plan.made_with, job.made_with, names):
        raise UserError(f"{job.folder} holds a job with other settings ({told}): name another folder")
    if plan.digest != digest_splits(job.splits):
        raise UserError(f"{job.folder} holds a job with other rows: the data were changed; name another folder")
    return plan


def make_plan(job: Job) -> JobPlan:
    """Inspect data and model, time a few steps, and choose the settings. Nothing is written."""
    options = job.options
    policy = job.load(options.adapter()).to(job.device)
    form, reason = choose_form(policy, job.splits.rows["train"], job.has_form)
    if options.prompt_form != "auto":
        form, reason = cast(PromptForm, options.prompt_form), "as you say"
    splits = apply_form(job.splits, form)
    found = inspect(splits, policy)
    prompt, completion = choose_lengths(found, policy)
    prompt, completion = options.max_prompt_length or prompt, options.max_completion_length or completion
    check_limits(policy, prompt, completion)
    kind = str(policy.config.model_type)
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    plan = JobPlan(
        made_with=job.made_with,
        digest=digest_splits(job.splits),
        parameters=parameters,
        model_kind=f"{kind}, {'encoder-decoder' if policy.is_encoder_decoder else 'decoder-only'}",
        device=job.device,
        found=found,
        form=form,
        form_reason=reason,
        max_prompt_length=prompt,
        max_completion_length=completion,
        mask=check_mask_token(policy, _some(splits.rows["train"], policy, INPUTS, prompt, completion)),
        speed=Speed(0.0, 0.0, 0.0),
        mft=None,
        rl=StagePlan(1, 0.0, 1),
        tested=found.rows["test"],
        validated=min(found.rows["validation"], options.validation_inputs),
        batch_size=options.batch_size,
        eval_batch_size=100 if parameters < SMALL else 32,
    )
    speed = _measure_speed(job, plan, splits, policy)
    needs_mft = not plan.mask.knows if options.mft_steps is None else options.mft_steps > 0
    rates = learning_rates(parameters, "t5" in kind, options.lora_r is not None)
    mft, rl, tested, validated = plan_stages(options, rates, found.rows, speed, needs_mft)
    plan = replace(plan, speed=speed, mft=mft, rl=rl, tested=tested, validated=validated)
    return replace(plan, seconds=estimate(plan, options, options.static_target != "ground_truth"))


def write_plan(job: Job, plan: JobPlan) -> None:
    write_atomically(job.folder / PLAN, json.dumps(plan.to_json(), indent=1))


def _some(rows: Dataset, policy: Policy, number: int, prompt: int, completion: int) -> Examples:
    """Return `number` rows, spread evenly."""
    chosen = rows.select(range(0, len(rows), max(1, len(rows) // number))).select(range(min(number, len(rows))))
    return Examples(chosen, policy, prompt, completion, progress=False)


def _measure_speed(job: Job, plan: JobPlan, splits: Splits, policy: Policy) -> Speed:
    """Time a few steps of each method, and the decoding of some inputs, with the present model. This changes the
    weights, so the model is discarded afterwards."""
    lengths = plan.max_prompt_length, plan.max_completion_length
    usual = min(plan.max_completion_length, plan.found.completions.most)  # not every model ends its texts before M-FT
    outputs = time_outputs(policy, _some(splits.rows["validation"], policy, plan.eval_batch_size, *lengths), usual)
    candidates = 0.0
    if job.options.static_target != "ground_truth":
        some = _some(splits.rows["train"], policy, candidate_batch(job, plan), *lengths)
        candidates = time_candidates(policy, some, job.options.sampling(usual, job.options.num_candidates))
    with tempfile.TemporaryDirectory() as place:
        steps = time_both(job, plan, splits.rows["train"], policy, "ground_truth", place)
    return Speed(steps[0], steps[1], outputs, candidates)


def candidate_batch(job: Job, plan: JobPlan) -> int:
    """Return the number of inputs whose candidates are sampled together."""
    return max(1, 2 * plan.eval_batch_size // job.options.num_candidates)


def time_both(job: Job, plan: JobPlan, rows: Dataset, policy: Policy, target: str, place: str) -> tuple[float, float]:
    """Measure the seconds of a step of M-FT and of semi-offline RL. This trains the model a little."""
    number = min(len(rows), 8 * plan.batch_size)
    rows = rows.select(range(0, len(rows), max(1, len(rows) // number))).select(range(number))
    own = {"output_dir": place, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    own |= {"metric_for_best_model": None, "eval_on_start": False, "log_completions": False, "logging_steps": 1000}
    own |= {"train_sampling_strategy": "random", "learning_rate": 0.0}
    seconds = []
    for stage, more in ((MFT, {}), (RL, {"static_target": target})):
        args = stage_config(job, plan, stage, StagePlan(5, 0.0, 1), **own, **more)
        seconds.append(time_steps(policy, job.rewards, args, rows))
    free_memory()
    return seconds[0], seconds[1]
