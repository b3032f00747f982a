"""A run folder as training leaves it, of any size and with any texts: for tests of the report, and to measure it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from semioffline.storage.files import make_folder, write_atomically

WORDS = (
    "the a model writes summary of long dialogue about meeting friends who plan dinner on friday evening and bring "
    "books cake wine music because anna moved into her new flat near river last week after months of looking"
).split()


def write_run(
    folder: Path,
    rows: int = 200,
    before: int = 200,
    steps: int = 20,
    num_samples: int = 8,
    prompt_words: int = 40,
    output_words: int = 15,
    metrics: Sequence[str] = ("good", "rouge"),
    change: Callable[[str], str] = lambda text: text,
    seed: int = 0,
) -> Path:
    """Write the folder of a run that was trained on the first metric, and return it.

    Args:
        before: Rows that the initial checkpoint was run on, too.
        steps: Logged steps.
        change: Is applied to every text; for texts that a page must not run.
    """
    draw = random.Random(seed)

    def text(words: int) -> str:
        return change(" ".join(draw.choices(WORDS, k=words)))

    make_folder(folder)
    prompts = [f"input {n}: {text(prompt_words)}" for n in range(rows)]
    references = [text(output_words) for _ in range(rows)]
    old = [text(output_words) for _ in range(before)]
    first = [_row(prompts[n], old[n], references[n], metrics, 0.1 + 0.5 * draw.random()) for n in range(before)]
    last = [
        _row(prompts[n], _edit(old[n], draw) if n < before else text(output_words), references[n], metrics,
             0.3 + 0.5 * draw.random())
        for n in range(rows)
    ]  # fmt: skip
    _write_lines(folder / "before.jsonl", first)
    _write_lines(folder / "predictions.jsonl", last)
    _write_lines(
        folder / "metrics.jsonl", [line for n in range(1, steps + 1) for line in _log(n, steps, metrics, draw)]
    )
    for n in range(1, steps + 1):
        _write_draws(folder, 10 * n, num_samples, text, prompt_words, output_words, draw)
    settings = {"method": "semi_offline", "num_samples": num_samples, "per_device_train_batch_size": 4}
    write_atomically(folder / "config.yaml", json.dumps(settings))
    return folder


def _row(prompt: str, prediction: str, reference: str, metrics: Sequence[str], value: float) -> dict[str, Any]:
    own = {name: round(value / (n + 1), 6) for n, name in enumerate(metrics)}
    surface = {"length": float(len(prediction.split())), "repetition": 0.0, "distinct": 1.0}
    return {"prompt": prompt, "prediction": prediction, "references": [reference]} | own | surface


def _edit(text: str, draw: random.Random) -> str:
    """The text with a word replaced and one added."""
    words = text.split(" ")
    words[draw.randrange(len(words))] = draw.choice(WORDS)
    return " ".join([*words, "again"])


def _log(n: int, steps: int, metrics: Sequence[str], draw: random.Random) -> list[dict[str, float]]:
    noise, reward = draw.gauss(0, 0.01), 0.3 + 0.3 * n / steps
    train = {
        "step": 10 * n, "loss": 2 / n + noise, "grad_norm": 1 + noise, "learning_rate": 1e-4 * (1 - n / steps),
        "entropy": 2 - n / steps, "mask_rate": 0.4, "reward": reward + noise, "reward_std": 0.1,
        "frac_reward_zero_std": 0.05, "frac_reward_none": 0.0, f"rewards/{metrics[0]}/mean": reward + noise,
        f"rewards/{metrics[0]}/std": 0.1 + noise, "loss/mle": 1 / n, "loss/rl": noise, "grad/mle": 0.1, "grad/rl": 0.1,
        "time/step": 0.2 + noise, "time/train": 2.0 * n,
    }  # fmt: skip
    if n % 5:
        return [train]
    scores = {f"eval_{name}": (reward + noise) / (k + 1) for k, name in enumerate(metrics)}
    surface = {"eval_length": 15.0, "eval_repetition": 0.0, "eval_distinct": 1.0 - 0.01 * n / steps}
    return [train, {"step": 10 * n, **scores, **surface, "eval_reward": reward + noise, "time/train": 2.0 * n}]


def _write_draws(
    folder: Path, step: int, samples: int, text: Callable[[int], str], prompt: int, output: int, draw: random.Random
) -> None:
    tokens, completions = [], []
    for example in range(4):
        target = [f" {word}" for word in text(output).split(" ")]
        rewards = [round(draw.random(), 4) for _ in range(samples)]
        masked = [n for n in range(len(target)) if draw.random() < 0.4] or [0]
        drawn = [(place, f" {text(1)}", draw.randint(1, samples)) for place in masked for _ in range(6)]
        tokens.append(
            {
                "example": example, "prompt": text(prompt), "target": target, "rewards": rewards,
                "position": [place for place, _, _ in drawn], "token": [token for _, token, _ in drawn],
                "count": [count for _, _, count in drawn], "probability": [draw.random() for _ in drawn],
                "advantage": [draw.gauss(0, 0.1) for _ in drawn],
            }
        )  # fmt: skip
        completions += [
            {"example": example, "prompt": "", "sample": text(output), "reward": reward} for reward in rewards
        ]
    for name, rows in (("tokens", tokens), ("completions", completions)):
        make_folder(folder / name)
        stored = BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_whole(rows)), stored)
        write_atomically(folder / name / f"step-{step}.parquet", stored.getvalue())


def _whole(value: Any) -> Any:
    """Without halves of characters, which Parquet cannot hold."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
