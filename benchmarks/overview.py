"""The overview table: scores of methods on several tasks, one line per comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semioffline.experiments.results import Comparison
from semioffline.report.table import LEVEL, as_lines, p_between, read_result

OURS = "semi_offline"


def markdown(result: dict[str, Any], folder: Path) -> str:
    """Return a table with one line for each of result["rows"].

    A row has `on` (the task), `file`, `metric` and, where several settings of a method were compared, `shown`: the
    variant that represents the method, chosen on validation. The caption names these variants.
    """
    lines = [_line(row, result["methods"], folder) for row in result["rows"]]
    header = ["", *(f"`{method}`" for method in result["methods"])]
    caption = (
        f"Bold: the highest score of a row. \\* differs from `{OURS}` (paired bootstrap over test inputs, p < {LEVEL}; "
        "the variance between seeds is not in this test)."
    )
    caption += _variants(result["rows"])
    return "\n".join([*as_lines(header, lines), "", caption, ""])


def _variants(rows: list[dict[str, Any]]) -> str:
    tasks: dict[str, list[str]] = {}
    for row in rows:
        if OURS in row.get("shown", {}):
            tasks.setdefault(row["shown"][OURS], []).append(row["on"].split(",")[0])
    named = "; ".join(f"`{variant}` on {' and '.join(on)}" for variant, on in tasks.items())
    told = f"In the column `{OURS}`, these rows show a variant with other settings, which was chosen on validation"
    return f" {told}: {named}." if named else ""


def _line(row: dict[str, Any], methods: list[str], folder: Path) -> list[str]:
    path = folder / row["file"]
    comparison, shown = Comparison.from_json(read_result(path)), row.get("shown", {})
    ours, metric = shown.get(OURS, OURS), row["metric"]
    factor, digits = (100, 1) if comparison.percent[metric] else (1, 2)
    names = [shown.get(method, method) for method in methods]
    best = max(comparison.methods[name].metrics[metric].mean for name in names if name in comparison.methods)
    cells = [row["on"]]
    for name in names:
        if name not in comparison.methods:
            cells.append("–")
            continue
        mean = comparison.methods[name].metrics[metric].mean
        p = None if name == ours else p_between(comparison, ours, name, metric)
        text = f"{mean * factor:.{digits}f}"
        star = "\\*" if p is not None and p < LEVEL else ""
        cells.append((f"**{text}**" if mean == best else text) + star)
    return cells
