"""A comparison as rows: the paper's Table 1 for one's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from semioffline.errors import UserError

Cell = str
LEVEL = 0.05
"""A difference with p below it counts."""
CAPTION = (
    "On the test inputs, with a 95 % bootstrap interval; * differs from {reference} (paired bootstrap, p < {level}). "
    "Validation: the best reward there, by which settings are chosen. "
    "Matched after: the seconds until {reference} first had, on validation, the best reward of this method."
)


def read_result(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the result {path}: {error}") from error


def rows(comparison: dict[str, Any]) -> tuple[list[str], list[list[Cell]]]:
    """(header, lines) of a comparison.json."""
    metrics = comparison["metrics"]
    header = ["method", "seeds", *metrics, "validation", "FP / input", "steps", "seconds", "matched after", "peak MB"]
    lines = []
    for method, result in comparison["methods"].items():
        percent = comparison["percent"]  # has all metrics but those of the surface, which get no interval
        cells = [score(result["metrics"][name], percent.get(name, False), name in percent) for name in metrics]
        cost = f"{result['forward_passes']:.4g}"
        memory = "–" if result["peak_mb"] is None else f"{result['peak_mb']:.0f}"
        line = [
            method,
            str(len(result["seeds"])),
            *cells,
            f"{max(point['reward'] for point in result['curve']):.4f}",
            cost,
            f"{result['steps']:.0f}",
            "–" if result["seconds"] is None else f"{result['seconds']:.1f}",
            _matched(method, comparison),
            memory,
        ]
        lines.append(line)
    return header, lines


def _matched(method: str, comparison: dict[str, Any]) -> Cell:
    reference, seconds = comparison["reference"], comparison["methods"][method]["matched_after"]
    if method == reference or comparison["methods"].get(reference, {}).get("seconds") is None:
        return "–"
    return "never" if seconds is None else f"{seconds:.1f}"


def score(metric: dict[str, Any], percent: bool, interval: bool = True) -> Cell:
    """A mean with its interval; * where it differs from the reference."""
    factor, digits = (100, 2) if percent else (1, 3)
    mean, low, high = (metric[k] * factor for k in ("mean", "low", "high"))
    star = "*" if metric.get("p") is not None and metric["p"] < LEVEL else ""
    return f"{mean:.{digits}f}{star} ({low:.{digits}f}–{high:.{digits}f})" if interval else f"{mean:.{digits}f}{star}"


def p_between(comparison: dict[str, Any], one: str, other: str, metric: str) -> float | None:
    """p of the difference of two methods, which is known where one is the reference, and of the first metric; else
    None."""
    methods, reference = comparison["methods"], comparison["reference"]
    if reference in (one, other):
        return methods[other if one == reference else one]["metrics"][metric]["p"]
    return methods[one].get("p_by_method", {}).get(other) if metric == comparison["metrics"][0] else None


def markdown(comparison: dict[str, Any]) -> str:
    return "\n".join([*as_lines(*rows(comparison)), "", caption(comparison), ""])


def as_lines(header: list[str], lines: list[list[Cell]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines]]


def caption(comparison: dict[str, Any]) -> str:
    missing = comparison.get("missing")
    left_out = f" Not run: {', '.join(missing)} (method:seed)." if missing else ""
    return CAPTION.format(reference=comparison["reference"], level=LEVEL) + left_out


def about(result: dict[str, Any]) -> str:
    """How a result was made: command, commit, versions, machine."""
    found, versions = result["about"], result["about"]["versions"]
    packages = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "transformers"))
    where = ", ".join(versions["gpus"]) or f"{versions['cores']} CPU cores"
    seeds = {seed for method in result.get("methods", {}).values() for seed in method["seeds"]}
    parts = [f"commit {found['commit']}", where, packages]
    parts += ["some runs on another machine or with other versions"] if found.get("mixed") else []
    parts += [f"seeds {', '.join(map(str, sorted(seeds)))}"] if seeds else []
    parts += [f"{result['wall_seconds'] / 60:.0f} minutes, all runs added"] if "wall_seconds" in result else []
    parts += [_seconds(result)] if _seconds(result) else []
    own = {} if "--settings" in found["command"] else result.get("own_settings", {})
    told = [f"{method}: {', '.join(f'{k} {v}' for k, v in values.items())}" for method, values in own.items()]
    settings = f"Settings of their own: {'; '.join(told)}.\n\n" if told else ""
    commands = [f"`{found['command']}`"]
    for label, other in result.get("beside", {}).items():
        commands.append(f"`{other['about']['command']}` (@{label}{_seconds(other, ', ')})")
    return "\n\n".join([*commands, f"{settings}{'; '.join(parts)}.\n"])


def _seconds(result: dict[str, Any], before: str = "") -> str:
    """Of what all runs share."""
    told = ", ".join(f"{what} {seconds:.0f}" for what, seconds in result.get("preparation", {}).items())
    return f"{before}seconds before the runs: {told}" if told else ""


def console(comparison: dict[str, Any]) -> Table:
    header, lines = rows(comparison)
    table = Table(title=comparison["title"], caption=caption(comparison))
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right")
    for line in lines:
        table.add_row(*line)
    return table
