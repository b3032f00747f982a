"""Tables of speed measurements: trainers (trl_grpo.py) and ROUGE (rouge.py)."""

from __future__ import annotations

from typing import Any


def peer_markdown(result: dict[str, Any]) -> str:
    """A table of trainers and their reward curves, from the result of benchmarks/trl_grpo.py."""
    lines = [f"| trainer | samples a step | ms a step | x ours | seconds to reward {result['reward']:.4f} |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in result["trainers"]:
        reached = "never" if row["seconds_to_reward"] is None else f"{row['seconds_to_reward']:.1f}"
        ratio = f"{row['step_ratio']:.1f}" if "step_ratio" in row else "–"
        cells = [row["trainer"], str(row["samples_per_step"]), f"{1000 * row['seconds_per_step']:.0f}", ratio, reached]
        lines.append(f"| {' | '.join(cells)} |")
    curves = [
        f"{row['trainer']}: " + ", ".join(f"{p['reward']:.4f} ({p['seconds']:.0f} s)" for p in row["curve"])
        for row in result["trainers"]
    ]
    return "\n".join(
        [*lines, "", "Reward on validation against seconds of training steps. " + "; ".join(curves) + ".", ""]
    )


def rouge_markdown(result: dict[str, Any]) -> str:
    """A table of ROUGE speeds, from the result of benchmarks/rouge.py."""
    settings = result["settings"]
    lines = [f"{settings['references']} references x {settings['samples']} samples of {settings['words']} words", ""]
    lines += [
        "| reward | sentences | rouge_score, s | ours, s | times as fast | largest difference |",
        f"|{' --- |' * 6}",
    ]
    for row in result["results"]:
        seconds = [f"{row['rouge_score_s']:.3f}", f"{row['ours_s']:.4f}", f"{row['ratio']:.0f}"]
        lines.append(f"| {row['reward']} | {row['sentences']} | {' | '.join(seconds)} | {row['max_abs_difference']} |")
    return "\n".join([*lines, ""])
