"""The overview table: scores of methods on several tasks, one line per comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semioffline.experiments.results import Comparison
from semioffline.report.table import LEVEL, as_lines, p_between, read_result

OURS = "semi_offline"


def markdown(result: dict[str, Any], folder: Path) -> str:
    """A row for each of result["rows"]: `on` (what it shows), `file`, `metric` and, where settings of one method were
    compared, the one that represents it (`shown`, chosen on validation)."""
    lines = [_line(row, result["methods"], folder) for row in result["rows"]]
    header = ["", *(f"`{method}`" for method in result["methods"])]
    caption = f"\\* differs from `{OURS}` (paired bootstrap over test inputs, p < {LEVEL})."
    return "\n".join([*as_lines(header, lines), "", caption, ""])


def _line(row: dict[str, Any], methods: list[str], folder: Path) -> list[str]:
    path = folder / row["file"]
    comparison, shown = Comparison.from_json(read_result(path)), row.get("shown", {})
    ours, metric = shown.get(OURS, OURS), row["metric"]
    factor, digits = (100, 1) if comparison.percent[metric] else (1, 2)
    cells = [row["on"]]
    for name in (shown.get(method, method) for method in methods):
        if name not in comparison.methods:
            cells.append("–")
            continue
        mean = f"{comparison.methods[name].metrics[metric].mean * factor:.{digits}f}"
        p = None if name == ours else p_between(comparison, ours, name, metric)
        cells.append(f"**{mean}**" if name == ours else mean + ("\\*" if p is not None and p < LEVEL else ""))
    return cells
