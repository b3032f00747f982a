"""Prepare the curves of a report: which numbers of metrics.jsonl share a chart, and their explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semioffline.evaluation.scale import is_percent
from semioffline.report.run_folders import Run, finite
from semioffline.training.diagnostics import Line

MOST_POINTS = 1000
"""Maximum number of points of a curve. Of more, every second, third, ... is shown."""
KNOWN: dict[str, tuple[str, str, str]] = {
    "reward": ("Reward", "reward", "Mean over the samples of a step, and over the outputs for the validation inputs."),
    "reward_std": ("Spread of rewards", "reward", "Standard deviation over the samples of one input."),
    "reward_greedy": ("Reward of the greedy output", "reward", "The baseline of self-critic."),
    "length": ("Length", "quality", "Words of an output."),
    "repetition": ("Repetition", "quality", "Share of word pairs that stood in the same output before."),
    "distinct": ("Distinct words", "quality", "Different words per word of an output (distinct-1)."),
    "identical": ("Identical outputs", "quality", "Share of outputs that are also written for another input."),
    "loss": ("Loss", "loss", "All terms with their weights."),
    "loss/mle": ("MLE loss", "loss", "Negative log-likelihood per target token."),
    "loss/rl": ("RL loss", "loss", "Weighted by advantages: its value does not show progress."),
    "grad_norm": ("Gradient norm", "gradient", "Before clipping."),
    "grad/mle": ("Gradient of the MLE term", "gradient", "Norm at the input of the output layer."),
    "grad/rl": ("Gradient of the RL term", "gradient", "Norm at the input of the output layer."),
    "rl_weight": ("Weight of the RL term", "gradient", "Lambda, as --rl_ratio sets it."),
    "entropy": ("Entropy", "policy", "Of the distributions at masked positions, in nats. A fall to 0: no exploration."),
    "kl": ("KL divergence", "policy", "From the initial checkpoint."),
    "mask_rate": ("Mask rate", "policy", "Share of target tokens that are masked."),
    "frac_reward_zero_std": ("Inputs without a signal", "policy", "All samples have the same reward."),
    "frac_reward_none": ("Samples without a reward", "policy", "The reward function returned None or NaN."),
    "learning_rate": ("Learning rate", "cost", ""),
    "time/step": ("Seconds per step", "cost", ""),
    "time/reward": ("Seconds of rewards per step", "cost", "Waiting for them included."),
    "cost/forward_passes": ("Forward passes per input", "cost", "Of the decoder, to sample or score trajectories."),
    "runtime": ("Seconds of an evaluation", "cost", ""),
}
"""name without eval_ -> title, group, explanation"""
GROUPS = {
    "reward": "Reward",
    "quality": "Quality on validation",
    "loss": "Loss",
    "gradient": "Gradients",
    "policy": "Policy and samples",
    "cost": "Time and cost",
    "other": "Other values of the log",
}
_OF_ALL = ("step", "epoch", "time/train")
_BESIDE = ("_stderr", "_references")
"""Suffixes of values that are logged for advice only."""
_SUMMARY = ("train_loss", "train_runtime")
TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True)
class Chart:
    """One chart: which lines it shows for each run."""

    title: str
    group: str
    note: str
    lines: list[tuple[str, str]]
    """(train or eval, name in the log)"""
    percent: bool = False
    """Whether values are shown times 100."""


def curves_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the data of the page: the values of each run by column, and the charts that show them. Values that never
    change are listed in `constant` instead."""
    data = [_columns(run) for run in runs]
    charts, constant = [], []
    for chart in _charts(runs):
        values = [v for run in data for part, name in chart.lines for v in run[part]["values"].get(name, [])]
        known = [value for value in values if value is not None]
        if len(set(known)) > 1:
            charts.append({"title": chart.title, "group": GROUPS[chart.group], "note": chart.note,
                           "lines": chart.lines, "factor": 100 if chart.percent else 1})  # fmt: skip
        elif known:
            constant.append([chart.title, known[0] * (100 if chart.percent else 1)])
    return {"runs": data, "charts": charts, "constant": constant}


def _charts(runs: Sequence[Run]) -> list[Chart]:
    names: dict[str, list[tuple[str, str]]] = {}
    for part in (TRAIN, EVAL):
        for run in runs:
            alone = run.rewards[0] if len(run.rewards) == 1 else None
            for line in run.log:
                for name in line if _part(line) == part else ():
                    key = _key(name)
                    if name not in _OF_ALL and not name.endswith(_BESIDE) and not _is_twice(name, alone):
                        lines = names.setdefault(key, [])
                        lines += [] if (part, name) in lines else [(part, name)]
    charts = [_chart(key, lines) for key, lines in names.items()]
    return sorted(charts, key=_place)


def _place(chart: Chart) -> tuple[int, int]:
    """Return the sort key of a chart: its group, then known metrics in their order, then other metrics, then text
    statistics."""
    key, known = _key(chart.lines[0][1]), list(KNOWN)
    last = -1 if chart.group == "quality" else len(known)
    return list(GROUPS).index(chart.group), known.index(key) if key in known else last


def _is_twice(name: str, only_reward: str | None) -> bool:
    """Return whether the metric is the only reward function, which equals the reward."""
    return only_reward is not None and name in (f"rewards/{only_reward}/mean", f"eval_{only_reward}")


def _key(name: str) -> str:
    """Return the chart of a metric. Samples (rewards/NAME/mean) and outputs (eval_NAME) of a reward share one."""
    if name.startswith("eval_"):
        return name.removeprefix("eval_")
    words = name.split("/")
    return "/".join(words[1:-1]) if words[0] == "rewards" and words[-1] == "mean" else name


def _chart(key: str, lines: list[tuple[str, str]]) -> Chart:
    is_metric = any(part == EVAL for part, _ in lines)
    percent = is_metric and is_percent(key)
    if key in KNOWN:
        title, group, note = KNOWN[key]
        return Chart(title, group, note, lines, percent)
    if is_metric:
        group = "reward" if any(part == TRAIN for part, _ in lines) else "quality"
        return Chart(key.replace("_", " "), group, "", lines, percent)
    if key.startswith("rewards/"):
        return Chart(f"Spread of {key.split('/', 1)[1].removesuffix('/std')}", "other", "Over all samples.", lines)
    by_prefix = {"loss": "loss", "grad": "gradient", "cost": "cost", "time": "cost"}
    return Chart(key.replace("_", " "), by_prefix.get(key.split("/")[0], "other"), "", lines)


def _part(line: Line) -> str:
    if any(name in line for name in _SUMMARY):
        return ""
    return TRAIN if "loss" in line else EVAL if any(name.startswith("eval_") for name in line) else ""


def _columns(run: Run) -> dict[str, Any]:
    """Return the label and method of a run; and for training and evaluation, the steps, the seconds, and name ->
    values."""
    found: dict[str, Any] = {"label": run.label, "method": run.method}
    for part in (TRAIN, EVAL):
        own = [line for line in run.log if _part(line) == part and finite(line.get("step", 0)) is not None]
        lines = list({line.get("step", n): line for n, line in enumerate(own)}.values())  # the last one of each step
        lines = lines[:: -(-len(lines) // MOST_POINTS) or 1]
        steps = [line.get("step", n) for n, line in enumerate(lines)]
        timed = all("time/train" in line for line in lines)
        names = dict.fromkeys(name for line in lines for name in line if name not in _OF_ALL)
        found[part] = {
            "step": steps,
            "seconds": [_short(line["time/train"]) for line in lines] if timed else steps,
            "values": {name: [_short(line.get(name)) for line in lines] for name in names},
        }
    return found


def _short(value: object) -> float | None:
    number = finite(value)
    return None if number is None else float(f"{number:.5g}")
