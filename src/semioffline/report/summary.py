"""Summarise the result and the cost of a run, in words and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from semioffline.evaluation.metrics import SURFACE
from semioffline.evaluation.scale import is_percent
from semioffline.evaluation.statistics import Difference
from semioffline.experiments.job_results import RESULT, JobResult
from semioffline.experiments.plan import START
from semioffline.experiments.results import Comparison
from semioffline.report.outputs import REWARD, MetricChange
from semioffline.report.run_folders import Run, finite
from semioffline.report.table import LEVEL, p_between

SAME = "none"
"""How the difference of equal outputs is shown."""


@dataclass(frozen=True)
class Fact:
    """One figure with its name."""

    name: str
    value: str


@dataclass(frozen=True)
class ChangeRow:
    """A metric before and after, as text."""

    metric: str
    is_rewarded: bool
    before: str
    after: str
    difference: str
    verdict: str
    """better | worse | changed | chance | none: whether the difference is significant, and its direction. For the
    surface of the text, where more is not better, only whether it changed."""
    p: str


@dataclass(frozen=True)
class RunSummary:
    """The summary of one run on the page."""

    label: str
    method: str
    sentence: str
    facts: list[Fact]
    rows: list[ChangeRow]
    inputs: int
    """Number of inputs that the rows are means over."""
    start: str
    """The name of the initial model."""


def summarise_run(run: Run, changes: list[MetricChange], fallback: str = "") -> RunSummary:
    """Summarise one run. fallback: its method, if the folder does not name it."""
    return RunSummary(
        label=run.label,
        method=run.method or fallback,
        sentence=_sentence(run, changes),
        facts=_facts(run),
        rows=[_row(change, change.metric in (REWARD, *run.rewards)) for change in changes],
        inputs=max((change.inputs for change in changes), default=0),
        start=run.start,
    )


def number(metric: str, value: float, sign: bool = False) -> str:
    """Format a value on the scale of tables, with a useful number of digits."""
    if math.isnan(value):
        return "–"
    factor, digits = (100, 2) if is_percent(metric) else (1, 3)
    return f"{value * factor:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def _row(change: MetricChange, is_rewarded: bool) -> ChangeRow:
    name, difference = change.metric, change.difference
    return ChangeRow(
        metric=name,
        is_rewarded=is_rewarded,
        before="–" if change.before is None else _with_interval(name, change.before, change.before_interval),
        after=_with_interval(name, change.after, change.after_interval),
        difference="–" if difference is None else _difference(name, difference),
        verdict="changed" if name in SURFACE and _verdict(difference) in ("better", "worse") else _verdict(difference),
        p="" if difference is None or difference.low == difference.high == 0 else p_text(difference.p),
    )


def _with_interval(name: str, value: float, interval: tuple[float, float] | None) -> str:
    if interval is None or interval[0] == interval[1]:
        return number(name, value)
    return f"{number(name, value)} ({number(name, interval[0])}–{number(name, interval[1])})"


def _difference(name: str, found: Difference) -> str:
    if found.low == found.high == 0:
        return SAME
    low, high = number(name, found.low, sign=True), number(name, found.high, sign=True)
    return f"{number(name, found.mean, sign=True)} ({low} to {high})"


def _verdict(found: Difference | None) -> str:
    if found is None:
        return "none"
    if found.p >= LEVEL or math.isnan(found.mean):
        return "chance"
    return "better" if found.mean > 0 else "worse"


def p_text(p: float) -> str:
    return "p\u00a0<\u00a00.001" if p < 0.001 else f"p\u00a0=\u00a0{p:.3f}"


def _sentence(run: Run, changes: list[MetricChange]) -> str:
    first = next(iter(changes), None)
    if first is None:
        return _from_log(run)
    name, inputs = first.metric.replace("_", " "), f"{first.inputs:,} held-out input{'s' * (first.inputs != 1)}"
    if first.difference is None or first.before is None:
        low, high = (number(first.metric, value) for value in first.after_interval)
        mean = number(first.metric, first.after)
        return f"The mean {name} is {mean} over {inputs} (95 % interval {low} to {high})."
    verb = {"better": "rose", "worse": "fell"}.get(_verdict(first.difference), "went")
    before, after = number(first.metric, first.before), number(first.metric, first.after)
    told = f"The mean {name} {verb} from {before} to {after} over {inputs}"
    if verb == "went":
        return f"{told}: this may be chance ({p_text(first.difference.p)})."
    low, high = (number(first.metric, value, sign=True) for value in (first.difference.low, first.difference.high))
    return f"{told}, by {low} to {high} with 95 % confidence ({p_text(first.difference.p)})."


def _from_log(run: Run) -> str:
    """Return a sentence about the evaluations during training, for runs without stored outputs."""
    values = [line["eval_reward"] for line in run.log if not math.isnan(line.get("eval_reward", math.nan))]
    if len(values) > 1:
        return f"The validation reward went from {values[0]:.3f} (first evaluation) to {values[-1]:.3f} (last one)."
    return "This run has kept no outputs: only its log is shown."


def _facts(run: Run) -> list[Fact]:
    result = run.result
    names = ("task", "model")
    facts = [Fact(name, PurePath(str(run.settings[name])).name) for name in names if run.settings.get(name)]
    steps = finite(result.get("steps")) or max((line.get("step", 0) for line in run.log), default=0)
    if steps:
        facts.append(Fact("steps", f"{steps:,.0f}"))
    seconds = finite(result.get("seconds")) or max((line.get("time/train", 0) for line in run.log), default=0)
    if seconds:
        facts.append(Fact("training time", duration(seconds)))
    cost = result.get("cost_per_input")
    if isinstance(cost, Mapping) and isinstance(cost.get("forward_passes"), (int, float)) and steps:
        facts.append(Fact("forward passes per input", f"{cost['forward_passes']:.4g}"))
    calls = _reward_calls(run)
    if calls:
        facts.append(Fact("rewards computed", f"{calls:,.0f}"))
    return facts


def _reward_calls(run: Run) -> float:
    """Return the number of samples that were scored: training inputs times K, if the run has a reward and both are
    known; else 0."""
    names = ("num_samples", "per_device_train_batch_size", "gradient_accumulation_steps")
    samples, batch, passes = (run.settings.get(name) for name in names)
    inputs = run.result.get("inputs")
    if not isinstance(inputs, int) and isinstance(batch, int):
        steps = max((line.get("step", 0) for line in run.log), default=0)
        inputs = steps * batch * (passes if isinstance(passes, int) else 1)
    if not run.rewards or not isinstance(samples, int) or not isinstance(inputs, (int, float)):
        return 0
    return samples * inputs


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


@dataclass(frozen=True)
class JobRow:
    """One model of a job on the test split."""

    label: str
    reward: str
    difference: str
    p: str
    seconds: str
    forward_passes: str
    is_result: bool


def job_rows(job: JobResult) -> list[JobRow]:
    rows = []
    for name, model in job.models.items():
        reward = model.metrics.get(REWARD) or next(iter(model.metrics.values()), None)
        ahead = model.difference
        rows.append(
            JobRow(
                label=model.label,
                reward="–" if reward is None else _with_interval(REWARD, reward.mean, (reward.low, reward.high)),
                difference="–" if ahead is None else _difference(REWARD, ahead),
                p="–" if ahead is None else p_text(ahead.p),
                seconds=duration(model.seconds),
                forward_passes=f"{model.cost_per_input['forward_passes']:.4g}"
                if "forward_passes" in model.cost_per_input
                else "–",
                is_result=name == RESULT,
            )
        )
    return rows


def comparison_sentence(comparison: Comparison) -> str:
    """Return a sentence that names the method with the best first metric, and the methods that do not differ
    significantly from it."""
    metric = comparison.metrics[0]
    trained = {name: method for name, method in comparison.methods.items() if name != START}
    if not trained:
        return "No method is done yet."
    best = max(trained, key=lambda name: trained[name].metrics[metric].mean)
    alike = [name for name in trained if name != best and _is_alike(comparison, best, name)]
    own = trained[best].metrics[metric]
    mean, low, high = (number(metric, value) for value in (own.mean, own.low, own.high))
    told = (
        f"{best} has the highest {metric.replace('_', ' ')} on the test inputs: {mean} (95 % interval {low} to {high})."
    )
    if alike:
        told += f" The difference from {', '.join(alike)} may be chance."
    elif len(trained) > 1:
        told += " The difference from every other method is more than chance."
    if START in comparison.methods:
        told += f" The initial checkpoint has {number(metric, comparison.methods[START].metrics[metric].mean)}."
    return told


def _is_alike(comparison: Comparison, one: str, other: str) -> bool:
    p = p_between(comparison, one, other, comparison.metrics[0])
    return p is None or p >= LEVEL
