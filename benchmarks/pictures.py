"""Draw the pictures of the documentation as SVG: the method, and charts of results.

    python -m benchmarks.pictures

The files are in docs/assets. Their colours follow the reader's light or dark mode.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.call_tables import NAMES, comparisons, runs_of
from semioffline.experiments.results import Comparison
from semioffline.report.table import read_result

DOCS = Path(__file__).parents[1] / "docs"
ASSETS = DOCS / "assets"
RESULT = DOCS / "results" / "samsum-smollm2.json"
CALLS = DOCS / "calls.json"
ERRORS = {"ads": "ads", "CommonGen": "commongen", "SAMSum": "samsum"}
"""task -> the name that its files in docs/results begin with"""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--ink) }
.small { font-size: 12px; fill: var(--quiet) }
.title { font-size: 15px; font-weight: 600 }
.card { fill: var(--card) }
.chip { fill: var(--chip); stroke: var(--rule) }
.mask { fill: var(--ink); stroke: none }
.on-mask { fill: var(--card); font-size: 11px }
.drawn { fill: var(--soft); stroke: var(--ours); stroke-width: 1.5 }
.model { fill: var(--ours) }
.on-model { fill: var(--card); font-weight: 600 }
.rule { stroke: var(--rule); fill: none }
.arrow { stroke: var(--quiet); fill: none; stroke-width: 1.5 }
.curve { fill: none; stroke: var(--other); stroke-width: 1.5 }
.curve.ours { stroke: var(--ours); stroke-width: 3 }
.dot { fill: var(--other) }
.dot.ours { fill: var(--ours) }
.name.ours { fill: var(--ours); font-weight: 600 }
.up { fill: var(--ours); font-weight: 600 }
.down { fill: var(--bad); font-weight: 600 }
"""
LIGHT = "--card: #ffffff; --ink: #1f2933; --quiet: #52606d; --rule: #cbd2d9; --chip: #f5f7fa; --soft: #d9f2ee; "
LIGHT += "--ours: #00796b; --other: #7b8794; --bad: #b83280"
DARK = "--card: #1e2129; --ink: #e4e7eb; --quiet: #9aa5b1; --rule: #3e4c59; --chip: #2a2e38; --soft: #0f3d38; "
DARK += "--ours: #4db6ac; --other: #7b8794; --bad: #f687b3"


class Point(NamedTuple):
    x: float
    y: float


class Axis(NamedTuple):
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, value = (math.log10(n) if self.log else n for n in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def picture(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """An SVG document with its own background, for readers in light and dark mode."""
    dark = f"@media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" aria-labelledby="title description">',
            f'<title id="title">{html.escape(title)}</title>',
            f'<desc id="description">{html.escape(description)}</desc>',
            f"<style>svg {{ {LIGHT} }}\n{dark}{STYLE}</style>",
            f'<rect class="card" width="{width}" height="{height}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" class="{kind}"/>'


# ---- the method ----

STATIC = ["meet", "the", "bold", "shoes", "by", "vextor", ",", "visit", "today", "!"]
MASKED = {0: ["love", "discover", "meet", "see"], 2: ["timeless", "bold", "red", "timeless"]}
MASKED |= {7: ["order", "visit", "visit", "order"]}
REWARDS = [0.9, 0.5, 0.1, 0.7]
LEFT, CHIP, GAP, ROW = 148, 26, 6, 36


def method() -> str:
    """One step of semi-offline RL, with an invented example."""
    widths = [
        max(len(word), *(len(draw) for draw in MASKED.get(n, ["mask"]))) * 7.5 + 14 for n, word in enumerate(STATIC)
    ]
    lefts = [LEFT + sum(widths[:n]) + GAP * n for n in range(len(STATIC))]
    end = lefts[-1] + widths[-1]

    def row(y: float, name: str, words: Sequence[str], kind: str) -> list[str]:
        parts = [text(LEFT - 14, y + 18, name, "", "end")]
        for n, word in enumerate(words):
            own, label = (kind, f"on-{kind}") if n in MASKED else ("chip", "")
            parts.append(box(lefts[n], y, widths[n], CHIP, own))
            parts.append(text(lefts[n] + widths[n] / 2, y + 18, word, label, "middle"))
        return parts

    parts = [text(24, 34, "One step of semi-offline RL", "title")]
    parts += row(56, "1  Static target", STATIC, "chip")
    parts += row(56 + ROW, "2  Mask", ["mask" if n in MASKED else word for n, word in enumerate(STATIC)], "mask")
    model = 56 + 2 * ROW + 14
    parts += [text(LEFT - 14, model + 24, "3  Predict", "", "end"), box(LEFT, model, end - LEFT, 38, "model")]
    parts.append(text((LEFT + end) / 2, model + 24, "one forward pass of the model", "on-model", "middle"))
    top = model + 72
    for n in MASKED:
        middle = lefts[n] + widths[n] / 2
        parts.append(f'<path class="arrow" d="M{middle:.1f} {model - 12}v10m-4 -5l4 5l4 -5"/>')
        parts.append(f'<path class="arrow" d="M{middle:.1f} {model + 40}v26m-4 -5l4 5l4 -5"/>')
    reward, advantage = end + 60, end + 150
    parts += [
        text(reward, top - 10, "5  Reward", "", "middle"),
        text(advantage, top - 10, "6  Advantage", "", "middle"),
    ]
    mean = sum(REWARDS) / len(REWARDS)
    for k, score in enumerate(REWARDS):
        y = top + k * ROW
        words = [MASKED[n][k] if n in MASKED else word for n, word in enumerate(STATIC)]
        parts += row(y, "4  Draw K samples" if k == 0 else "", words, "drawn")
        above = score > mean
        parts.append(text(reward, y + 18, f"{score:.1f}", "", "middle"))
        said = f"{score - mean:+.2f} {'▲' if above else '▼'}".replace("-", "−")
        parts.append(text(advantage, y + 18, said, "up" if above else "down", "middle"))
    foot = top + len(REWARDS) * ROW + 18
    parts.append(
        text(LEFT, foot, "Every sample uses the same pass, so 64 or 1,024 samples cost no further pass.", "small")
    )
    parts.append(
        text(LEFT, foot + 20, "The loss makes drawn tokens of ▲ samples likelier and those of ▼ less likely, "
             "and adds the fine-tuning (MLE) loss.", "small")
    )  # fmt: skip
    about = (
        "A text is masked, the model runs once, K samples are drawn at the masks, scored, and compared with their mean."
    )
    return picture(round(end + 215), round(foot + 44), "One step of semi-offline RL", about, parts)


# ---- charts ----


def frame(x: Axis, y: Axis, across: Sequence[float], up: Sequence[float], names: tuple[str, str, str]) -> list[str]:
    """Title, axes with their names, grid lines and labels."""
    title, below, beside = names
    parts = [text(24, 34, title, "title"), text((x.start + x.end) / 2, y.start + 40, below, "small", "middle")]
    parts.append(text(x.start, y.end - 12, beside, "small"))
    for value in up:
        at = y.place(value)
        parts.append(f'<path class="rule" d="M{x.start} {at:.1f}H{x.end}"/>')
        parts.append(text(x.start - 8, at + 4, f"{value:g}", "small", "end"))
    return parts + [text(x.place(value), y.start + 20, f"{value:g}", "small", "middle") for value in across]


def spread(wanted: Sequence[float], least: float) -> list[float]:
    """Heights of labels near the wanted ones, at least this far apart."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = list(wanted)
    for _ in range(100):
        for first, second in zip(order, order[1:]):
            short = least - (placed[second] - placed[first])
            if short > 0.01:
                placed[first], placed[second] = placed[first] - short / 2, placed[second] + short / 2
    return placed


def own(name: str) -> str:
    return "ours" if name.startswith("semi_offline") else ""


CURVES = {
    "semi_offline@longer": "semi_offline@longer", "gold": "gold", "brio": "brio, 4 candidates", "ft": "ft",
    "mft": "mft", "avg": "avg, 8 samples", "self_critic": "self_critic", "actor_critic": "actor_critic",
}  # fmt: skip


def reward_against_seconds(comparison: Comparison) -> str:
    x, y = Axis(0, 42, 70, 560), Axis(0.355, 0.38, 340, 76)
    names = ("Reward on validation while training", "seconds of training", "mean of ROUGE-1, 2 and L")
    parts = frame(x, y, range(0, 41, 10), [0.355, 0.36, 0.365, 0.37, 0.375, 0.38], names)
    lines = {
        name: [Point(x.place(at.seconds or 0), y.place(at.reward)) for at in comparison.methods[name].curve]
        for name in CURVES
    }
    heights = spread([points[-1].y for points in lines.values()], 17)
    for (name, points), height in sorted(zip(lines.items(), heights), key=lambda item: bool(own(item[0][0]))):
        path = "L".join(f"{point.x:.1f} {point.y:.1f}" for point in points)
        parts.append(f'<path class="curve {own(name)}" d="M{path}"/>')
        parts += [f'<circle class="dot {own(name)}" cx="{at.x:.1f}" cy="{at.y:.1f}" r="3"/>' for at in points]
        parts.append(f'<path class="rule" d="M{points[-1].x + 4:.1f} {points[-1].y:.1f}L572 {height:.1f}"/>')
        parts.append(text(576, height + 4, CURVES[name], f"name {own(name)}"))
    about = "Semi-offline RL rises to 0.379 in 40 seconds; the other methods stay between 0.36 and 0.367."
    return picture(800, 400, names[0], about, parts)


SAMPLES = {
    "ft": 1, "gold": 1, "self_critic": 1, "actor_critic": 1, "brio": 4, "avg": 8,
    "semi_offline": 64, "semi_offline@512-samples": 512,
}  # fmt: skip
"""method -> texts of one input that a step learns from, in this comparison"""


def passes_against_samples(comparison: Comparison) -> str:
    x, y = Axis(0.8, 1024, 70, 720, log=True), Axis(0.6, 1000, 340, 76, log=True)
    names = ("What a sample costs", "texts that a step learns from, per input", "forward passes per input, measured")
    parts = frame(x, y, [1, 4, 16, 64, 256, 1024], [1, 10, 100, 1000], names)
    for name, samples in SAMPLES.items():
        at = Point(x.place(samples), y.place(comparison.methods[name].forward_passes))
        parts.append(f'<circle class="dot {own(name)}" cx="{at.x:.1f}" cy="{at.y:.1f}" r="6"/>')
        if name == "gold":
            continue  # at the same place as ft, which names both
        label = {"ft": "ft, mft, gold", "semi_offline@512-samples": "512 samples"}.get(name, name)
        parts.append(text(at.x + 12, at.y - 8, label, f"name {own(name)}"))
    ours = [Point(x.place(SAMPLES[name]), y.place(1)) for name in SAMPLES if own(name)]
    parts.append(f'<path class="curve ours" d="M{ours[0].x:.1f} {ours[0].y:.1f}H{ours[-1].x:.1f}"/>')
    about = (
        "Semi-offline RL learns from 64 and from 512 samples at one forward pass; avg needs 487 passes for 8 samples."
    )
    return picture(800, 400, names[0], about, parts)


# ---- reward calls ----

PANEL, SPACE = 250, 60


def panels(number: int, most: float) -> list[Axis]:
    """The horizontal axes of charts side by side, for numbers of calls."""
    starts = [60 + n * (PANEL + SPACE) for n in range(number)]
    return [Axis(1.8, most, start, start + PANEL, log=True) for start in starts]


def line(points: Sequence[Point], estimator: str, dashed: bool = False) -> list[str]:
    kind, path = "ours" if estimator == "counterfactual" else "", "L".join(f"{at.x:.1f} {at.y:.1f}" for at in points)
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    dots = [f'<circle class="dot {kind}" cx="{at.x:.1f}" cy="{at.y:.1f}" r="3"/>' for at in points]
    return [f'<path class="curve {kind}"{dashes} d="M{path}"/>', *dots]


def key(x: float, y: float, words: str, estimator: str, dashed: bool = False) -> list[str]:
    """An entry of the legend."""
    return [*line([Point(x, y), Point(x + 30, y)], estimator, dashed), text(x + 40, y + 4, words, "small")]


def error_against_calls() -> str:
    """1 - cos^2 of both estimators, for each task that was measured."""
    found = {task: DOCS / "results" / f"{name}-gradient.json" for task, name in ERRORS.items()}
    results = {task: read_result(path) for task, path in found.items() if path.exists()}
    parts = [text(24, 34, "Error of the estimated gradient: 1 − cos²", "title")]
    y = Axis(0, 1, 330, 90)
    for x, (task, result) in zip(panels(len(results), 300), results.items()):
        names = ("", "reward calls per input", task)
        parts += frame(x, y, [2, 4, 8, 16, 64, 256], [0, 0.2, 0.4, 0.6, 0.8, 1], names)
        for estimator, shown in NAMES.items():
            rows = [row for row in result["rows"] if row["variant"] == shown]
            for what in ("batch", "input"):
                points = [Point(x.place(row["calls"]), y.place(row[what]["error"])) for row in rows]
                parts += line(points, estimator, dashed=what == "batch")
    for n, (estimator, shown) in enumerate(NAMES.items()):
        parts += key(60, 400 + 22 * n, f"{shown}, one input", estimator)
        parts += key(300, 400 + 22 * n, f"{shown}, mean of 16 inputs", estimator, dashed=True)
    about = "With few calls, counterfactual samples have a smaller error for one input. Over 16 inputs they gain less."
    return picture(60 + len(results) * (PANEL + SPACE), 446, "Error of the gradient by reward calls", about, parts)


def reward_against_calls() -> str:
    """The score on test after training, for each task that was measured."""
    result = read_result(CALLS)
    reference = result["reference"]
    known = [(row, comparison) for row, comparison in comparisons(result, DOCS) if comparison]
    parts = [text(24, 34, "Test score after 100 steps, by reward calls", "title")]
    for x, (row, comparison) in zip(panels(len(known), 75), known):
        factor = 100 if comparison.percent[row["metric"]] else 1
        y = Axis(*row["axis"][:2], 330, 90)
        names = ("", "reward calls per input", f"{row['on']}: {row['metric']}")
        parts += frame(x, y, [2, 4, 8, 16, 64], row["axis"][2:], names)
        at = y.place(comparison.methods["start"].metrics[row["metric"]].mean * factor)
        parts.append(f'<path class="arrow" stroke-dasharray="2 4" d="M{x.start} {at:.1f}H{x.end}"/>')
        parts.append(text(x.end, at - 6, "M-FT checkpoint", "small", "end"))
        for estimator in NAMES:
            points, seeds = [], []
            for run in runs_of(comparison, reference):
                if run.estimator == estimator:
                    metric, across = run.summary.metrics[row["metric"]], x.place(run.calls)
                    points.append(Point(across, y.place(metric.mean * factor)))
                    seeds += [Point(across, y.place(value * factor)) for value in metric.by_seed]
            kind = "ours" if estimator == "counterfactual" else ""
            parts += [f'<circle class="dot {kind}" opacity="0.5" cx="{p.x:.1f}" cy="{p.y:.1f}" r="2"/>' for p in seeds]
            parts += line(points, estimator)
    for n, (estimator, shown) in enumerate(NAMES.items()):
        parts += key(60 + 190 * n, 400, shown, estimator)
    parts.append(text(430, 404, "small dots: single seeds", "small"))
    about = "The test score rises with the number of calls, for both estimators."
    return picture(max(640, 60 + len(known) * (PANEL + SPACE)), 430, "Test score by reward calls", about, parts)


def pictures() -> dict[str, str]:
    """Name of the file -> SVG."""
    comparison = Comparison.from_json(read_result(RESULT))
    return {
        "method.svg": method(),
        "reward-seconds.svg": reward_against_seconds(comparison),
        "passes-samples.svg": passes_against_samples(comparison),
        "error-calls.svg": error_against_calls(),
        "reward-calls.svg": reward_against_calls(),
    }


def main() -> int:
    ASSETS.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (ASSETS / name).write_text(drawn)
        print(ASSETS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
