"""Step costs as tables and plots."""

from __future__ import annotations

from pathlib import Path

from semioffline.bench.results import CaseResult
from semioffline.printing import markdown_cell, markdown_text
from semioffline.report.plots import chart


def markdown(rows: list[CaseResult]) -> str:
    """Return one table for each model and shape: milliseconds of each method, in each setting, with ratios."""
    measured = [row for row in rows if row.measured is not None]
    tables = []
    for key in dict.fromkeys(_key(row) for row in measured):
        tables.append(_table(markdown_cell(Path(key[0]).name), [row for row in measured if _key(row) == key]))
    told = [f"{_name(row)} ({row.case.model}, {row.case.shape}): {row.error}" for row in rows if row.measured is None]
    return "\n".join([*tables, *(f"- {markdown_text(line)}" for line in told), ""])


def _key(row: CaseResult) -> tuple[str, str, int]:
    return row.case.model, row.case.shape, row.case.batch_size


def _table(model: str, rows: list[CaseResult]) -> str:
    settings = list(dict.fromkeys(row.case.setting for row in rows))
    first = rows[0]
    lines = [f"**{model}, batch {first.case.batch_size}, source {first.source}, target {first.target} tokens**", ""]
    head = ["method", *(f"{s}: ms | x ft | x mft-2 | GB" for s in settings)]
    cells = " | ".join(head).count("|") + 1
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * cells}"]
    found = {(_name(row), row.case.setting): row for row in rows}
    for name in dict.fromkeys(_name(row) for row in rows):
        lines.append(f"| {name} | {' | '.join(_cells(found.get((name, setting))) for setting in settings)} |")
    return "\n".join([*lines, ""])


def _name(row: CaseResult) -> str:
    return row.case.method + (f", K = {row.case.samples}" if row.case.samples else "")


def _cells(row: CaseResult | None) -> str:
    if row is None or row.measured is None:
        return "– | – | – | –"
    ratios = [f"{row.ratios[key]:.2f}" if key in row.ratios else "–" for key in ("to_ft", "to_mft-2")]
    memory = f"{row.measured.peak_mb / 1024:.1f}" if row.measured.peak_mb else "–"
    return " | ".join([f"{1000 * row.measured.seconds:.1f}", *ratios, memory])


def draw(rows: list[CaseResult], folder: Path) -> list[Path]:
    """Plot the cost of a step, relative to that of ft, against K and against the length of the target."""
    samples: dict[str, list[tuple[float, float]]] = {}
    lengths: dict[str, list[tuple[float, float]]] = {}
    for row in (row for row in rows if "to_ft" in row.ratios):
        case, ratio = row.case, row.ratios["to_ft"]
        model = f"{Path(case.model).name}, batch {case.batch_size}"
        if case.method == "semi_offline":
            samples.setdefault(f"{model}, {case.shape}, {case.setting}", []).append((case.samples, ratio))
        if case.samples in (0, 16, 64):
            lengths.setdefault(f"{model}, {_name(row)}, {case.setting}", []).append((row.target, ratio))
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
