"""Show outputs before and after training, input by input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from semioffline.evaluation.scale import is_percent
from semioffline.evaluation.statistics import Difference, bootstrap_interval, paired_difference
from semioffline.report.run_folders import OutputRow, Run, finite

MOST_ROWS = 5000
"""Maximum number of inputs of one run on the page."""
MOST_CHARACTERS = 9_000_000
"""Maximum number of characters of all texts together. Longer texts are shortened until they fit."""
LIMITS = (100_000, 20_000, 8000, 4000, 2000, 1000, 500)
REWARD = "reward"
"""The name of the weighted sum of the reward functions, which is a metric of its own if there are several."""


@dataclass(frozen=True)
class Pair:
    """One input with the output of a run, and that of its initial model if it is known."""

    prompt: str
    references: list[str]
    after: OutputRow
    before: OutputRow | None


def pairs_of(run: Run) -> list[Pair]:
    """Return the outputs of a run with those of its initial model, matched by position or else by prompt."""
    by_prompt = {str(row["prompt"]): row for row in reversed(run.before)}
    found = []
    for n, row in enumerate(run.after[:MOST_ROWS]):
        same = run.before[n] if n < len(run.before) and run.before[n]["prompt"] == row["prompt"] else None
        references = row.get("references")
        texts = [str(text) for text in references] if isinstance(references, list) else []
        found.append(Pair(row["prompt"], texts, row, same or by_prompt.get(row["prompt"])))
    return found


def row_value(row: OutputRow | None, name: str, run: Run) -> float | None:
    """Return a metric of one output. The reward of several functions is their sum with the weights of the run."""
    if row is None:
        return None
    if name != REWARD or REWARD in row:
        return finite(row.get(name))
    given = run.settings.get("reward_weights") or [1.0] * len(run.rewards)
    weights = [finite(weight) for weight in given] if isinstance(given, list) else []
    parts = [finite(row.get(reward)) for reward in run.rewards]
    known = [(weight, part) for weight, part in zip(weights, parts) if weight is not None and part is not None]
    if not parts or not len(weights) == len(parts) == len(known):
        return None
    return sum(weight * part for weight, part in known)


def metric_names(run: Run) -> list[str]:
    """Return the metrics of the outputs of a run, rewarded ones first."""
    others = [name for name in run.metrics if name != REWARD]
    if len(run.rewards) > 1:
        return [REWARD, *others]
    is_repeat = any(all(row.get(name) == row.get(REWARD) for row in run.after) for name in others)
    return others if is_repeat else run.metrics


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after training, over the same inputs."""

    metric: str
    inputs: int
    after: float
    after_interval: tuple[float, float]
    before: float | None = None
    before_interval: tuple[float, float] | None = None
    difference: Difference | None = None


def changes_of(run: Run, pairs: Sequence[Pair]) -> list[MetricChange]:
    """Return the change of every metric, over the inputs that both models decoded; if there are none, the values over
    all outputs of this run."""
    found = []
    both = [pair for pair in pairs if pair.before is not None]
    for name in metric_names(run):
        after = [row_value(pair.after, name, run) for pair in both or pairs]
        before = [row_value(pair.before, name, run) for pair in both]
        known = [n for n, value in enumerate(after) if value is not None and (not both or before[n] is not None)]
        if not known:
            continue
        new: list[Any] = [after[n] for n in known]
        old: list[Any] = [before[n] for n in known] if both else []
        found.append(
            MetricChange(
                metric=name,
                inputs=len(known),
                after=sum(new) / len(new),
                after_interval=bootstrap_interval(new, 500),
                before=sum(old) / len(old) if old else None,
                before_interval=bootstrap_interval(old, 500) if old else None,
                difference=paired_difference(new, old, 1000) if old else None,
            )
        )
    return found


@dataclass
class OutputTables:
    """The data of the page: every input once, and the outputs of each run as plain lists."""

    inputs: list[list[Any]] = field(default_factory=list)
    """[prompt, references]"""
    runs: list[dict[str, Any]] = field(default_factory=list)
    shortened: int | None = None
    """Number of characters that the longest texts were shortened to; None: all are complete."""


def output_tables(runs: Sequence[tuple[Run, Sequence[Pair]]]) -> OutputTables:
    """Return the outputs of these runs. Metrics are on the scale of tables (`evaluation.scale`)."""
    made = OutputTables()
    numbers: dict[str, int] = {}
    for run, pairs in runs:
        names = metric_names(run)
        rows = []
        for pair in pairs:
            number = numbers.setdefault(pair.prompt, len(made.inputs))
            if number == len(made.inputs):
                made.inputs.append([pair.prompt, pair.references])
            before = None if pair.before is None else str(pair.before["prediction"])
            values = [[_shown(row_value(row, name, run), name) for name in names] for row in (pair.before, pair.after)]
            rows.append([number, before, str(pair.after["prediction"]), *values])
        if rows:
            told = {"label": run.label, "start": run.start, "metrics": names, "rewards": run.rewards}
            made.runs.append(told | {"rows": rows})
    return _shortened(made)


def _shown(value: float | None, name: str) -> float | None:
    return None if value is None else float(f"{value * 100 if is_percent(name) else value:.4g}")


def _shortened(tables: OutputTables) -> OutputTables:
    """Shorten the longest texts until the page is small enough to open."""
    texts = [text for prompt, references in tables.inputs for text in (prompt, *references)]
    texts += [text for run in tables.runs for _, before, after, *_ in run["rows"] for text in (before or "", after)]
    lengths = [len(text) for text in texts]
    fitting = (limit for limit in LIMITS if sum(min(length, limit) for length in lengths) <= MOST_CHARACTERS)
    limit = next(fitting, LIMITS[-1])
    if sum(lengths) <= MOST_CHARACTERS or max(lengths) <= limit:
        return tables
    inputs = [[cut(prompt, limit), [cut(text, limit) for text in references]] for prompt, references in tables.inputs]
    runs = [
        run
        | {"rows": [[number, None if before is None else cut(before, limit), cut(after, limit), *values]
                    for number, before, after, *values in run["rows"]]}
        for run in tables.runs
    ]  # fmt: skip
    return OutputTables(inputs, runs, limit)


def cut(text: str, limit: int) -> str:
    """Return the first characters of a text, and how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
