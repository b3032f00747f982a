"""The table of a campaign of faults and bad inputs (make campaign)."""

from __future__ import annotations

from typing import Any

from semioffline.printing import markdown_cell

COLUMNS = ("tried", "handled", "lost", "hung")


def markdown(result: dict[str, Any]) -> str:
    """A line for each kind of fault, and their sums."""
    rows = [*result["rows"], {"what": "**all**"} | {n: sum(row[n] for row in result["rows"]) for n in COLUMNS}]
    lines = ["| fault | tried | handled | lost | hung |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {markdown_cell(row['what'])} | {' | '.join(f'{row[n]:,}' for n in COLUMNS)} |" for row in rows]
    return "\n".join([*lines, "", f"{result['date']}, {result['seconds'] / 60:.0f} minutes.", ""])
