"""Tables about `semioffline run`: its results on several datasets, and how its defaults were chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.defaults import Measured
from semioffline.evaluation.paired import p_value
from semioffline.evaluation.scale import shown_value
from semioffline.experiments.job_results import INITIAL, MFT, MORE_MFT, RESULT, JobResult
from semioffline.report.table import as_lines, read_result

HEADER = ["data", "seed", "test inputs", "initial", "M-FT", "more M-FT", "RL", "RL over more M-FT", "p", "minutes"]


def jobs_markdown(result: dict[str, Any], folder: Path) -> str:
    """Return a table with one line for each of result["rows"], which have `on` (the data), `seed`, `file` (a job's
    result.json) and `minutes` (of the whole command)."""
    return "\n".join([*as_lines(HEADER, [_job(row, folder) for row in result["rows"]]), ""])


def _job(row: dict[str, Any], folder: Path) -> list[str]:
    job = JobResult.from_json(read_result(folder / row["file"]))
    scores = [shown_value(job.reward, job.models[name].metrics["reward"].mean) if name in job.models else "–"
              for name in (INITIAL, MFT, MORE_MFT, RESULT)]  # fmt: skip
    over = job.models[MORE_MFT].difference
    assert over is not None
    mean, low, high = (shown_value(job.reward, number, "+") for number in (over.mean, over.low, over.high))
    tested = job.models[RESULT].metrics["reward"].inputs
    return [row["on"], str(row["seed"]), f"{tested:,}", *scores, f"{mean} ({low} to {high})", p_value(over.p),
            f"{row['minutes']:.0f}"]  # fmt: skip


def defaults_markdown(result: dict[str, Any]) -> str:
    """Return the gain of each weight and learning rate over the M-FT checkpoint, on validation inputs."""
    tasks = {task: {label: Measured.from_json(one) for label, one in own.items()}
             for task, own in result["tasks"].items()}  # fmt: skip
    labels = sorted({label for own in tasks.values() for label in own}, key=_ratio_and_rate)
    lines = [_variant(label, tasks, result) for label in labels]
    header = ["ratio, rate", *tasks, "facts kept on ads", "least share of the best gain"]
    return "\n".join([*as_lines(header, lines), ""])


def _ratio_and_rate(label: str) -> tuple[float, ...]:
    return tuple(float(number) for number in label.removeprefix("ratio-").split("-rate-"))


def _variant(label: str, tasks: dict[str, dict[str, Measured]], result: dict[str, Any]) -> list[str]:
    ratio, rate = _ratio_and_rate(label)
    name = f"{ratio:g}, × {rate:g}"
    gains = [_gain(own[label]) if label in own else "–" for own in tasks.values()]
    ads = tasks["ads"].get(label)
    facts = "–" if ads is None else f"{ads.others['facts_right'][1]:.2f}"
    share = result["shares"].get(label)
    least = "–" if share is None else f"{share['lowest']:.2f}"
    return [f"**{name}**" if label == result["chosen"] else name, *gains, facts, least]


def _gain(one: Measured) -> str:
    """The gain; with * if its interval is not around 0."""
    return f"{one.ahead['mean']:+.3f}" + ("\\*" if one.ahead["low"] > 0 or one.ahead["high"] < 0 else "")
