"""Plot rewards against costs, as PNG and SVG."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from semioffline.experiments.plan import START
from semioffline.experiments.results import Comparison, CurvePoint
from semioffline.printing import one_line
from semioffline.report.comparing import interval, limits
from semioffline.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

logger = logging.getLogger(__name__)
Points = Sequence[tuple[float, float]]
Paint = Callable[["Axes"], object]


def chart(path: Path, lines: Mapping[str, Points], x: str, y: str, scale: Paint, title: str = "") -> list[Path]:
    """Plot named lines of (x, y) points as path.png and path.svg. scale: sets the scales of the axes."""

    def paint(axis: Axes) -> None:
        for name, points in lines.items():
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=plain_label(name))
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        scale(axis)
        axis.legend(fontsize=7)

    return figure(path, paint, title)


def figure(path: Path, paint: Paint, title: str) -> list[Path]:
    """Draw a figure as path.png and path.svg. Without matplotlib it is not drawn: a result must not fail for its
    picture."""
    try:
        import matplotlib
    except ImportError as error:
        logger.warning("%s is not drawn (%s): pip install 'semioffline[report]'", path.name, error)
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axis = pyplot.subplots(figsize=(7.2, 4.6), layout="constrained")
    paint(axis)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if title:
        axis.set_title(plain_label(title), fontsize=11, loc="left")
    paths = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for written in paths:
        drawn = BytesIO()
        drawing.savefig(drawn, dpi=150, format=written.suffix.removeprefix("."))
        write_atomically(written, drawn.getvalue())
    pyplot.close(drawing)
    return paths


def plain_label(name: str) -> str:
    """Escape a name for matplotlib, which reads formulas between dollars and leaves out names that begin with an
    underscore."""
    told = one_line(name).replace("$", r"\$")
    return f" {told}" if told.startswith("_") else told


@dataclass(frozen=True)
class _Cost:
    """An axis that shows the cost of a method so far."""

    file: str
    label: str
    of: Callable[[CurvePoint], float]
    symlog: bool = False


SECONDS = _Cost("reward-seconds", "seconds of training steps", lambda point: point.seconds)
PASSES = _Cost("reward-forward-passes", "forward passes of the decoder, all inputs", lambda point: point.forward_passes,
               symlog=True)  # fmt: skip


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Plot the validation reward against seconds and against forward passes, with 95 % intervals."""
    known = all(method.seconds is not None for method in comparison.methods.values())
    costs = [cost for cost in (SECONDS, PASSES) if known or cost is not SECONDS]
    title = f"Reward on validation · {comparison.title}" if comparison.title else "Reward on validation"
    return [path for cost in costs for path in figure(folder / cost.file, _painter(comparison, cost), title)]


def _painter(comparison: Comparison, cost: _Cost) -> Paint:
    return lambda axis: _paint(axis, comparison, cost)


def _paint(axis: Axes, comparison: Comparison, cost: _Cost) -> None:
    methods = {name: method.curve for name, method in comparison.methods.items() if method.curve}
    every = [point for curve in methods.values() for point in curve]
    if not every:
        return
    start = methods.get(START, next(iter(methods.values())))[0]
    low, high = interval(start)
    axis.axhspan(low, high, color="0.5", alpha=0.12, linewidth=0)
    axis.axhline(start.reward, color="0.35", linestyle="--", linewidth=1.2, label="initial checkpoint")
    for name, curve in methods.items():
        if name == START:
            continue
        xs, bands = [cost.of(point) for point in curve], [interval(point) for point in curve]
        [line] = axis.plot(xs, [point.reward for point in curve], marker="o", markersize=3.5, label=plain_label(name))
        lows, highs = zip(*bands, strict=True)
        axis.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.13, linewidth=0)
    axis.set_ylim(*limits(every))
    axis.set_xlabel(cost.label)
    axis.set_ylabel("reward (95 % interval)" if any(point.stderr for point in every) else "reward")
    if cost.symlog:
        _scale_passes(axis, [cost.of(point) for point in every])
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _scale_passes(axis: Axes, passes: Sequence[float]) -> None:
    """Use a logarithmic axis if the costs differ by more than ten times; the initial checkpoint stays at 0."""
    from matplotlib.ticker import EngFormatter

    positive = [each for each in passes if each > 0]
    if positive and max(positive) > 10 * min(positive):
        axis.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
        axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
