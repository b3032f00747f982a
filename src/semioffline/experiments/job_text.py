"""Print a job: its plan at the start, one table and one sentence at the end."""

from __future__ import annotations

from semioffline.evaluation.paired import p_value
from semioffline.evaluation.scale import shown_value
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.job_plan import JobPlan, StagePlan
from semioffline.experiments.job_results import INITIAL, MFT, MORE_MFT, RESULT, JobResult, ModelResult
from semioffline.printing import show_table


def plan_lines(title: str, reward: str, plan: JobPlan, options: JobOptions) -> list[tuple[str, str]]:
    """Return the lines of the plan, (margin, text) each: stages, choices and their reasons."""
    found = plan.found
    rows = ", ".join(
        f"{split} {number:,}{' (cut from train)' if split in found.cut else ''}" for split, number in found.rows.items()
    )
    lengths = (
        f"prompts {found.prompts.median} tokens (99 %: {found.prompts.most}), read up to {plan.max_prompt_length}; "
        f"completions {found.completions.median} (longest: {found.completions.longest}), up to "
        f"{plan.max_completion_length}"
    )
    more = f"; other columns: {', '.join(found.columns)}" if found.columns else ""
    lines = [
        ("", f"{title}, reward: {reward}"),
        ("  rows      ", f"{rows}; {plan.tested} are tested{more}"),
        ("  lengths   ", lengths),
        ("  prompts   ", f"{plan.form}: {plan.form_reason}"),
        ("  model     ", f"{plan.parameters / 1e6:,.1f} million parameters, {plan.model_kind}, on {plan.device}"),
    ]
    if not options.dry_run:
        again = f"to continue an interrupted run, repeat the command with --output_dir {options.output_dir}"
        lines.append(("  folder    ", f"{options.output_dir}; {again}"))
    lines += [("  warning   ", warning) for warning in found.warnings()]
    knows = "the model knows its mask token" if plan.mask.knows else "the model does not know its mask token"
    number = 1
    if plan.mft is not None:
        lines.append((f"  {number}. ", f"M-FT: {_stage(plan.mft, plan)}: {knows} ({plan.mask})"))
        number += 1
    else:
        lines.append(("     ", f"no M-FT: {'--mft_steps 0' if options.mft_steps == 0 else knows} ({plan.mask})"))
    target = "chosen by a probe" if options.static_target == "auto" else options.static_target
    lines.append((f"  {number}. ", f"semi-offline RL: {_stage(plan.rl, plan)}, static target {target}"))
    if options.more_mft_steps != 0:
        steps = f"{options.more_mft_steps} steps" if options.more_mft_steps else "as long as RL and its static targets"
        lines.append((f"  {number + 1}. ", f"more M-FT, to compare with: {steps}"))
    lines.append(("  ", "RL takes the checkpoint that is best on validation; all models are tested on the same inputs"))
    seconds = " + ".join(f"{stage} {duration(each)}" for stage, each in plan.seconds.items())
    lines.append(("", f"about {duration(sum(plan.seconds.values()))} on this machine: {seconds}"))
    return lines


def _stage(stage: StagePlan, plan: JobPlan) -> str:
    return f"{stage.steps} steps of {plan.batch_size} inputs, learning rate {stage.learning_rate:g}"


def duration(seconds: float) -> str:
    """Format seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def sentence(reward: str, models: dict[str, ModelResult]) -> str:
    """Return one sentence with the scores of more M-FT (or the model before RL) and of RL, and their difference."""
    over = next(name for name in (MORE_MFT, MFT, INITIAL) if name in models)
    said = {MFT: "the fine-tuned model", INITIAL: "the initial checkpoint"}
    other = said[over] if over in said else fine_tuning(models[RESULT].seconds, models[MORE_MFT].seconds)
    before, after = (models[name].metrics["reward"].mean for name in (over, RESULT))
    difference = models[over].difference
    assert difference is not None
    mean, low, high = (_shown(reward, number, "+") for number in (difference.mean, difference.low, difference.high))
    return f"{reward} {_shown(reward, before)} → {_shown(reward, after)}, {mean} ({low} to {high}) over {other}"


def fine_tuning(rl_seconds: float, seconds: float) -> str:
    """Return what RL is compared with, in words. The times differ if the machine was busy in between, or if the steps
    were given."""
    if abs(seconds - rl_seconds) <= max(rl_seconds / 4, 5.0):
        return "fine-tuning for the same time"
    return f"fine-tuning for {duration(seconds)} (RL: {duration(rl_seconds)})"


def better_model(models: dict[str, ModelResult]) -> str | None:
    """Return the best of the models that are significantly better than RL; None if there is none."""
    found = [name for name, model in models.items() if model.difference is not None and model.difference.high < 0]
    return max(found, key=lambda name: models[name].metrics["reward"].mean, default=None)


def _shown(metric: str, value: float, sign: str = "") -> str:
    return shown_value(metric, value, sign, digits=3)


def show_result(result: JobResult) -> None:
    """Print the table, with a column for each model."""
    models = list(result.models.values())
    inputs = models[0].metrics["reward"].inputs
    ahead = [model.difference for model in models]
    reward = result.reward
    rows = [
        [f"{reward} *", *(_shown(reward, model.metrics["reward"].mean) for model in models)],
        ["RL ahead by", *("" if each is None else _shown(reward, each.mean, "+") for each in ahead)],
        ["  95 %: from", *("" if each is None else _shown(reward, each.low, "+") for each in ahead)],
        ["  95 %: to", *("" if each is None else _shown(reward, each.high, "+") for each in ahead)],
        ["  p", *("" if each is None else p_value(each.p) for each in ahead)],
    ]
    shown = [name for name in models[0].metrics if name not in ("reward", reward)]
    rows += [[name.replace("_", " "), *(_shown(name, model.metrics[name].mean) for model in models)] for name in shown]
    rows.append(["seconds", *(f"{model.seconds:.0f}" for model in models)])
    title = f"{result.title}: {inputs} test inputs"
    show_table(title, ["* the reward", *(model.label for model in models)], rows, marked=[0])
