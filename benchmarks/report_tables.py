"""What the report costs, as tables: its size, the time until a browser answers, and the log of tokens."""

from __future__ import annotations

from typing import Any

from semioffline.report.table import as_lines


def page_markdown(result: dict[str, Any]) -> str:
    """Of benchmarks/report_page.py."""
    header = ["report", "MB", "seconds until it answers", "CPU seconds to write"]
    rows = [
        [page["name"], f"{page['megabytes']:.1f}", f"{page['seconds_until_interactive']:.2f}",
         f"{page['writing_cpu_seconds']:.2f}"]
        for page in result["pages"]
    ]  # fmt: skip
    return "\n".join([*as_lines(header, rows), ""])


def token_log_markdown(result: dict[str, Any]) -> str:
    """Of benchmarks/token_log.py."""
    header = ["K", "pairs of windows", "steps in a window", "time with the log / without", "the same in CPU time"]
    numbers = [str(result[name]) for name in ("num_samples", "windows", "steps_per_window")]
    return "\n".join(
        [*as_lines(header, [[*numbers, f"{result['clock_ratio']:.3f}", f"{result['cpu_ratio']:.3f}"]]), ""]
    )
