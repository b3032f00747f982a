"""Lines against what they cost, as PNG and SVG."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from semioffline.experiments.results import Comparison, CurvePoint
from semioffline.printing import one_line
from semioffline.storage.files import write_atomically

logger = logging.getLogger(__name__)


def chart(
    path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, scale: Callable[[Any], Any]
) -> list[Path]:
    """One figure with named lines of (x, y) points, as path.png and path.svg. scale: sets the scales of its axes.

    Without matplotlib none is drawn: a result must not fail for its picture.
    """
    try:
        import matplotlib
    except ImportError as error:
        logger.warning("%s is not drawn (%s): pip install 'semioffline[report]'", path.name, error)
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.2, 4.6), layout="constrained")
    for name, points in lines.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=_label(name))
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    scale(axis)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
    paths = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for written in paths:
        drawn = BytesIO()
        figure.savefig(drawn, dpi=150, format=written.suffix.removeprefix("."))
        write_atomically(written, drawn.getvalue())
    pyplot.close(figure)
    return paths


def _label(name: str) -> str:
    """A name as it is: matplotlib reads formulas between dollars, and leaves out what begins with an underscore."""
    told = one_line(name).replace("$", r"\$")
    return f" {told}" if told.startswith("_") else told


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Reward against seconds and against forward passes."""

    def lines(cost: Callable[[CurvePoint], float]) -> dict[str, list[tuple[float, float]]]:
        methods = comparison.methods.items()
        return {name: [(cost(point), point.reward) for point in method.curve] for name, method in methods}

    y, paths = "reward on validation", []
    if all(method.seconds is not None for method in comparison.methods.values()):
        seconds = lines(lambda point: point.seconds)
        paths += chart(folder / "reward-seconds", seconds, "seconds of training", y, lambda axis: None)
    passes, x = lines(lambda point: point.forward_passes), "forward passes (all inputs)"
    return paths + chart(
        folder / "reward-forward-passes", passes, x, y, lambda axis: axis.set_xscale("symlog", linthresh=100)
    )
