"""Step costs as tables and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semioffline.report.plots import chart


def markdown(result: dict[str, Any]) -> str:
    """One table for each model and shape: milliseconds of each method, in each setting, with ratios."""
    rows = [row for row in result["rows"] if "seconds" in row]
    tables = []
    for key in dict.fromkeys((row["model"], row["shape"], row["batch_size"]) for row in rows):
        own = [row for row in rows if (row["model"], row["shape"], row["batch_size"]) == key]
        tables.append(_table(Path(key[0]).name, own))
    failed = [
        f"- {_name(row)} ({row['model']}, {row['shape']}): {row['error']}" for row in result["rows"] if "error" in row
    ]
    return "\n".join([*tables, *failed, ""])


def _table(model: str, rows: list[dict[str, Any]]) -> str:
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    first = rows[0]
    lines = [f"**{model}, batch {first['batch_size']}, source {first['source']}, target {first['target']} tokens**", ""]
    head = ["method", *(f"{s}: ms | x ft | x mft-2 | GB" for s in settings)]
    cells = " | ".join(head).count("|") + 1
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * cells}"]
    found = {(_name(row), row["setting"]): row for row in rows}
    for name in dict.fromkeys(_name(row) for row in rows):
        lines.append(f"| {name} | {' | '.join(_cells(found.get((name, setting))) for setting in settings)} |")
    return "\n".join([*lines, ""])


def _name(row: dict[str, Any]) -> str:
    return row["method"] + (f", K = {row['samples']}" if row["samples"] else "")


def _cells(row: dict[str, Any] | None) -> str:
    if row is None:
        return "– | – | – | –"
    ratios = [f"{row[key]:.2f}" if key in row else "–" for key in ("to_ft", "to_mft-2")]
    memory = f"{row['peak_mb'] / 1024:.1f}" if row["peak_mb"] else "–"
    return " | ".join([f"{1000 * row['seconds']:.1f}", *ratios, memory])


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Cost against K, and against the length of the target, both in steps of ft."""
    rows = [row for row in result["rows"] if "to_ft" in row]
    samples: dict[str, list[tuple[float, float]]] = {}
    lengths: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        model = f"{Path(row['model']).name}, batch {row['batch_size']}"
        if row["method"] == "semi_offline":
            samples.setdefault(f"{model}, {row['shape']}, {row['setting']}", []).append((row["samples"], row["to_ft"]))
        if row["samples"] in (0, 16, 64):
            name = f"{model}, {_name(row)}, {row['setting']}"
            lengths.setdefault(name, []).append((row["target"], row["to_ft"]))
    charts = (
        ("cost-samples", "samples K", samples, lambda axis: axis.set_xscale("log", base=2)),
        ("cost-length", "target length", lengths, lambda axis: axis.set_yscale("log")),
    )
    paths = []
    for name, label, found, scale in charts:
        lines = {key: sorted(points) for key, points in found.items() if len(points) > 1}
        if lines:
            paths += chart(folder / name, lines, label, "time of a step / time of an ft step", scale)
    return paths
