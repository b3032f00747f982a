"""Lines against what they cost, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def chart(
    path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, scale: Callable[[Any], Any]
) -> list[Path]:
    """One figure with named lines of (x, y) points, as path.png and path.svg. scale: sets the scales of its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.2, 4.6), layout="constrained")
    for name, points in lines.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    scale(axis)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
    paths = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for written in paths:
        figure.savefig(written, dpi=150)
    pyplot.close(figure)
    return paths


def draw(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Reward against seconds and against forward passes."""

    def lines(name: str) -> dict[str, Sequence[tuple[float, float]]]:
        methods = comparison["methods"].items()
        return {method: [(p[name], p["reward"]) for p in result["curve"]] for method, result in methods}

    y = "reward on validation"
    return [
        *chart(folder / "reward-seconds", lines("seconds"), "seconds of training", y, lambda axis: None),
        *chart(
            folder / "reward-forward-passes", lines("forward_passes"), "forward passes (all inputs)", y,
            lambda axis: axis.set_xscale("symlog", linthresh=100),
        ),
    ]  # fmt: skip
