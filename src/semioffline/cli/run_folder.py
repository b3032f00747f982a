"""Print results of commands, and command lines without private paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from semioffline.evaluation.paired import Change, as_rows
from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.scale import shown_value
from semioffline.experiments.provenance import SHOWN, Provenance, commit
from semioffline.printing import show_table
from semioffline.training.run_folder import versions

_INSIDE = ("model", "start", "candidates", "candidates.jsonl")
"""Names inside a run folder. They are shown together with the folder's own name."""


def shown_command(command: str, argv: list[str]) -> str:
    """Return a command line for others to read: folders are shortened to their last name."""
    threads = os.environ.get("OMP_NUM_THREADS")
    words, flag = [], ""
    for word in (part for given in argv for part in (given.split("=", 1) if given.startswith("--") else [given])):
        flag = word if word.startswith("--") else flag
        label, is_labelled, folder = word.partition("=") if flag == "--beside" else ("", "", word)
        if flag in SHOWN and "/" in folder:
            word = f"{label}{is_labelled}{_last_name(Path(folder), SHOWN[flag])}"
        words.append(f"'{word}'" if any(c in word for c in ' {}*$"') else word)
    return " ".join([*([f"OMP_NUM_THREADS={threads}"] if threads else []), "semioffline", command, *words])


def _last_name(path: Path, before: str) -> str:
    if path.name not in _INSIDE or path.parent.name == "":
        return before + path.name
    return f"{_last_name(path.parent, 'runs/')}/{path.name}"


def about(command: str, argv: list[str]) -> Provenance:
    """Return the command, commit and versions behind a result."""
    return Provenance(shown_command(command, argv), commit(), versions(system=False))


def print_changes(
    title: str,
    changes: Mapping[str, Change],
    rewards: Sequence[str] = (),
    note: str = "",
    names: tuple[str, str] = ("before", "after"),
) -> None:
    """Print one line per metric: both values, and their difference over the same inputs. Rewards come first."""
    columns = ("metric", *names, "difference", "95 % interval", "p")
    rows = as_rows(changes, rewards)
    marked = [n for n, row in enumerate(rows) if row[0].endswith("(reward)")]
    show_table(title, columns, rows, note=note, marked=marked)


def print_metrics(title: str, metrics: Mapping[str, MetricResult]) -> None:
    """Print one line per metric: mean over inputs (or value over the whole set) and 95 % interval, on the scale of
    `evaluation.scale`. Signatures are in result.json."""
    rows = []
    for name, metric in metrics.items():
        value, low, high = (shown_value(name, number) for number in (metric.mean, metric.low, metric.high))
        rows.append((name, value, f"{low} – {high}", str(metric.inputs)))
    show_table(title, ("metric", "value", "95 % interval", "inputs"), rows)
