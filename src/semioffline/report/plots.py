"""Reward against seconds and against forward passes, as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(comparison: dict[str, Any], folder: Path) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = {"seconds": "seconds of training", "forward_passes": "forward passes (all inputs)"}
    paths = []
    for name, label in axes.items():
        figure, axis = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
        for method, result in comparison["methods"].items():
            points = result["curve"]
            axis.plot([p[name] for p in points], [p["reward"] for p in points], marker="o", markersize=3, label=method)
        axis.set_xlabel(label)
        axis.set_ylabel("reward on validation")
        if name == "forward_passes":
            axis.set_xscale("symlog", linthresh=100)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        for ending in ("png", "svg"):
            paths.append(folder / f"reward-{name.replace('_', '-')}.{ending}")
            figure.savefig(paths[-1], dpi=150)
        pyplot.close(figure)
    return paths
