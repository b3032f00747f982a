"""Show a comparison as a table, like Table 1 of the paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semioffline.errors import UserError
from semioffline.experiments.provenance import Provenance
from semioffline.experiments.results import Comparison, MethodSummary, MetricSummary
from semioffline.printing import markdown_cell, markdown_code, markdown_text, show_table
from semioffline.storage.files import read_content

Cell = str
LEVEL = 0.05
"""A difference with a p-value below this is significant."""
INITIAL = "initial"
"""Shown as the tested step of a method whose best checkpoint is the initial one."""


def read_result(path: Path) -> Any:
    """Read a result file."""
    try:
        return json.loads(read_content(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read the result {path}: {error}") from error


def rows(comparison: Comparison) -> tuple[list[str], list[list[Cell]]]:
    """Return (header, lines) of the table of a comparison."""
    metrics, percent = comparison.metrics, comparison.percent
    header = ["method", "seeds", *metrics, "validation", "FP / input", "steps", "tested step", "seconds"]
    header += ["matched after", "peak MB"]
    lines = []
    for name, method in comparison.methods.items():
        # `percent` has all metrics but those of the surface, which get no interval
        cells = [score(method.metrics[metric], percent.get(metric, False), metric in percent) for metric in metrics]
        line = [
            name,
            str(len(method.seeds)),
            *cells,
            f"{method.best_reward:.4f}",
            f"{method.forward_passes:.4g}",
            f"{method.steps:.0f}",
            _tested(method),
            "–" if method.seconds is None else f"{method.seconds:.1f}",
            _matched(name, comparison),
            "–" if method.peak_mb is None else f"{method.peak_mb:.0f}",
        ]
        lines.append(line)
    return header, lines


def _tested(method: MethodSummary) -> Cell:
    """Return the steps of the tested checkpoints of all seeds, each once."""
    steps: dict[int | None, str] = {0: INITIAL, None: "last"}
    return ", ".join(dict.fromkeys(steps.get(step) or str(step) for step in method.best_steps)) or "–"


def _stayed(comparison: Comparison) -> list[str]:
    """Return the trained methods whose best checkpoint is the initial one with every seed."""
    return [name for name, method in comparison.methods.items()
            if method.steps and method.best_steps and not any(step != 0 for step in method.best_steps)]  # fmt: skip


def _matched(name: str, comparison: Comparison) -> Cell:
    reference, seconds = comparison.methods.get(comparison.reference), comparison.methods[name].matched_after
    if name == comparison.reference or reference is None or reference.seconds is None:
        return "–"
    return "never" if seconds is None else f"{seconds:.1f}"


def score(metric: MetricSummary, percent: bool, interval: bool = True) -> Cell:
    """Format a mean with its interval; * if it differs from the reference."""
    factor, digits = (100, 2) if percent else (1, 3)
    mean, low, high = (value * factor for value in (metric.mean, metric.low, metric.high))
    star = "*" if metric.p is not None and metric.p < LEVEL else ""
    return f"{mean:.{digits}f}{star} ({low:.{digits}f}–{high:.{digits}f})" if interval else f"{mean:.{digits}f}{star}"


def p_between(comparison: Comparison, one: str, other: str, metric: str) -> float | None:
    """Return the p-value of the difference of two methods. It is known for the first metric, and for all metrics if one
    method is the reference; else None."""
    methods, reference = comparison.methods, comparison.reference
    if reference in (one, other):
        return methods[other if one == reference else one].metrics[metric].p
    return methods[one].p_by_method.get(other) if metric == comparison.metrics[0] else None


def markdown(comparison: Comparison) -> str:
    header, lines = rows(comparison)
    cells = [[markdown_cell(cell) for cell in line] for line in [header, *lines]]
    return "\n".join([*as_lines(cells[0], cells[1:]), "", caption(comparison, markdown_text), ""])


def as_lines(header: list[str], lines: list[list[Cell]]) -> list[str]:
    """Return a table in Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines]]


def explanations(comparison: Comparison, name: Callable[[str], str] = str) -> list[tuple[str, str]]:
    """Return (column, explanation) pairs. name: formats the name of a method or run."""
    reference, metrics = name(comparison.reference), [name(metric) for metric in comparison.metrics]
    columns = [
        ("Metrics", f"on the test inputs, with a 95 % bootstrap interval; * differs from {reference} (paired "
         f"bootstrap, p < {LEVEL})"),
        ("Validation", "the best reward there, by which settings are chosen"),
        ("FP / input", "forward passes of the decoder per training input, to sample or score texts"),
        ("Tested step", f"of the checkpoint with the best validation reward; {INITIAL}: the one before training"),
        ("Matched after", f"seconds that {reference} needed to reach this method's best validation reward"),
    ]  # fmt: skip
    shown = [each for each, metric in zip(metrics, comparison.metrics) if comparison.percent.get(metric)]
    return [*columns, ("Times 100", ", ".join(shown))] if shown else columns


def caption(comparison: Comparison, name: Callable[[str], str] = str) -> str:
    """Return the explanation of the columns, and what the table leaves out. name: formats the name of a method or
    run."""
    told = [f"{column}: {text}." for column, text in explanations(comparison, name)]
    if stayed := _stayed(comparison):
        told.append(f"No checkpoint was better than the initial one, which is tested: {', '.join(map(name, stayed))}.")
    if comparison.missing:
        told.append(f"Not run: {', '.join(map(name, comparison.missing))} (method:seed).")
    return " ".join(told)


def about(made: Provenance) -> str:
    """Return how a result was made: command, commit, versions, machine."""
    return _how_made([markdown_code(made.command)], _where_made(made))


def about_comparison(comparison: Comparison) -> str:
    """Return how a comparison was made, with its seeds and the settings of single methods."""
    made, before = comparison.about, _seconds(comparison.preparation)
    seeds = {seed for method in comparison.methods.values() for seed in method.seeds}
    parts = _where_made(made)
    parts += [f"seeds {', '.join(map(str, sorted(seeds)))}"] if seeds else []
    parts += [f"{comparison.wall_seconds / 60:.0f} minutes, all runs added"]
    parts += [before] if before else []
    own = {} if "--settings" in made.command else comparison.own_settings
    told = [f"{method}: {', '.join(f'{k} {v}' for k, v in values.items())}" for method, values in own.items()]
    settings = markdown_text(f"Settings of their own: {'; '.join(told)}.") + "\n\n" if told else ""
    commands = [markdown_code(made.command)]
    for label, other in comparison.others.items():
        before = _seconds(other.preparation, ", ")
        commands.append(f"{markdown_code(other.about.command)} (@{markdown_text(label)}{before})")
    return _how_made(commands, parts, settings)


def _how_made(commands: list[str], parts: list[str], settings: str = "") -> str:
    return "\n\n".join([*commands, f"{settings}{'; '.join(parts)}.\n"])


def _where_made(made: Provenance) -> list[str]:
    versions, gpus = made.versions, made.versions["gpus"]
    packages = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "transformers"))
    where = ", ".join(gpus) if isinstance(gpus, list) and gpus else f"{versions['cores']} CPU cores"
    mixed = ["some runs on another machine or with other versions"] if made.mixed else []
    commit = "commit not recorded" if made.commit is None else f"commit {made.commit}"
    return [commit, where, packages, *mixed]


def _seconds(preparation: dict[str, float], before: str = "") -> str:
    """Return the seconds of the stages that all runs share."""
    told = ", ".join(f"{what} {seconds:.0f}" for what, seconds in preparation.items())
    return f"{before}seconds before the runs: {told}" if told else ""


def show(comparison: Comparison) -> None:
    """Print the table."""
    show_table(comparison.title, *rows(comparison), width=200, note=caption(comparison))
