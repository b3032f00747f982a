"""Tables of the results of benchmarks/samples.py."""

from __future__ import annotations

from typing import Any

from semioffline.experiments.results import MetricSummary
from semioffline.report.table import as_lines, score

PUSHED = 3
"""Number of tokens shown among those that the gradient raises most."""


def markdown(result: dict[str, Any]) -> str:
    """Win rates and rewards, then one sample for each mask rate."""
    head = ["static target", "p_m", "wins over the fill, %", "over the output, %", "reward", "of the fill"]
    head += ["best of K", "repetition, %"]
    lines, seen = [], []
    pushed = all("pushed" in row for row in result["rows"])
    head += ["pushed up most"] * pushed
    for row in result["rows"]:
        wins = [score(wins_of(row, what), percent=True) for what in ("fill", "output")]
        rewards = [f"{row[name]:.4f}" for name in ("reward", "fill_reward", "best_reward")]
        name = [row["static_target"], f"{row['mask_rate']:g}"]
        tokens = ", ".join(f"{_plain(token)} {push:.3f}" for token, push in row.get("pushed", [])[:PUSHED])
        lines.append([*name, *wins, *rewards, f"{100 * row['repetition']:.2f}", *[tokens] * pushed])
        example = row["examples"][0]
        if row["static_target"] == result["rows"][0]["static_target"]:
            seen.append([*name, _plain(example["target"]), _plain(example["sample"]), f"{example['reward']:.3f}"])
    about = (
        f"{result['inputs']} inputs; the greedy outputs have a mean reward of {result['greedy']:.4f}. "
        f"* differs from {result['rows'][0]['static_target']} at the same p_m (paired bootstrap, p < 0.05)."
    )
    shown = ["static target", "p_m", "of the first input, hidden", "the first sample", "reward"]
    return "\n".join([*as_lines(head, lines), "", about, "", *as_lines(shown, seen), ""])


def _plain(text: str) -> str:
    """As code, so that nothing in it is Markdown; a bar would end the cell."""
    return "`" + " ".join(text.split()).replace("|", "/").replace("`", "'") + "`"


def wins_of(row: dict[str, Any], over: str) -> MetricSummary:
    """How often samples win over the fill or the output."""
    return MetricSummary.from_json(row["wins"][over])


def row_of(result: dict[str, Any], static_target: str, mask_rate: float) -> dict[str, Any] | None:
    """The row of one static target at one mask rate."""
    same = (row for row in result["rows"] if (row["static_target"], row["mask_rate"]) == (static_target, mask_rate))
    return next(same, None)
