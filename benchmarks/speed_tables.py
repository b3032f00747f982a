"""Tables of speed measurements: trainers (trl_grpo.py) and ROUGE (rouge.py)."""

from __future__ import annotations

from typing import Any


def peer_markdown(result: dict[str, Any]) -> str:
    """A table of trainers and their reward curves, from the result of benchmarks/trl_grpo.py."""
    lines = ["| trainer | steps | samples a step | ms a step | x ours | reward on validation (seconds) |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in result["trainers"]:
        ratio = f"{row['step_ratio']:.1f}" if "step_ratio" in row else "–"
        curve = ", ".join(f"{p['reward']:.4f} ({p['seconds']:.0f} s)" for p in row["curve"])
        cells = [row["trainer"], str(row["steps"]), str(row["samples_per_step"])]
        cells += [f"{1000 * row['seconds_per_step']:.0f}", ratio, curve]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


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
