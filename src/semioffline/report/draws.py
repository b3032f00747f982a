"""Prepare the token explorer: the tokens that were drawn at masked positions, with their estimated advantages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from semioffline.report.outputs import cut
from semioffline.report.run_folders import Run, finite

MOST_STEPS = 200
"""Maximum number of logged steps on the page, over all runs. Of more, every second, third, ... is shown."""
MOST_SAMPLES = 3
"""Number of best samples of an input that are shown, and of worst ones."""
MOST_WORDS = 8
LEAST_PUSH = 1e-9
LONGEST_WORD = 60
LONGEST_PROMPT = 1500
LONGEST_SAMPLE = 600
_STEP = re.compile(r"step-(\d+)\.parquet")
_COLUMNS = ("position", "token", "count", "probability", "advantage")


def draws_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the label and the steps of each run that logged draws. A step has inputs: see `_input`."""
    logged = {run.label: _files(run.folder / "tokens") for run in runs}
    several = max(1, sum(bool(files) for files in logged.values()))
    found = []
    for run in runs:
        files = _evenly(logged[run.label], max(2, MOST_STEPS // several))
        steps = [step for step in (_step(run.folder, number, path) for number, path in files) if step is not None]
        if steps:
            found.append({"label": run.label, "steps": steps, "words": _words(steps)})
    return found


def _words(steps: Sequence[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return liked, disliked: [token, push, times drawn] of the tokens with the largest and smallest push. The push of
    a token is its share of the samples times its advantage, summed over positions: its weight in the RL loss."""
    pushes: dict[str, float] = {}
    drawn: Counter[str] = Counter()
    for shown in [shown for step in steps for shown in step["inputs"]]:
        for _, token, count, _, advantage in shown["draws"]:
            word = token.strip() or token
            pushes[word] = pushes.get(word, 0.0) + count / max(1, len(shown["rewards"])) * (advantage or 0.0)
            drawn[word] += count
    ordered = sorted(pushes, key=lambda word: -pushes[word])
    liked = [word for word in ordered if pushes[word] > LEAST_PUSH][:MOST_WORDS]
    disliked = [word for word in reversed(ordered) if pushes[word] < -LEAST_PUSH][:MOST_WORDS]
    return {
        kind: [[cut(word, LONGEST_WORD), _short(pushes[word]), drawn[word]] for word in words]
        for kind, words in (("liked", liked), ("disliked", disliked))
    }


def _files(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, file) of each log, in order."""
    named = [(_STEP.fullmatch(path.name), path) for path in folder.glob("step-*.parquet")]
    return sorted((int(match[1]), path) for match, path in named if match)


def _evenly(files: list[tuple[int, Path]], most: int) -> list[tuple[int, Path]]:
    """Return at most this many items, spread evenly, including the first and the last."""
    if len(files) <= most:
        return files
    return [files[round(n * (len(files) - 1) / (most - 1))] for n in range(most)]


def _step(folder: Path, number: int, path: Path) -> dict[str, Any] | None:
    rows = _read(path)
    examples = [row["example"] for row in rows if isinstance(row.get("example"), int)]
    samples = _samples(folder / "completions" / path.name, examples)
    inputs = [_input(row, samples.get(int(row.get("example") or 0), [])) for row in rows if _is_complete(row)]
    return {"step": number, "inputs": inputs} if inputs else None


def _input(row: dict[str, Any], samples: list[list[Any]]) -> dict[str, Any]:
    """Return the data of one input. target: its tokens. rewards: of the K samples. draws: [position, token, count,
    probability, advantage]. samples: [text, reward], best first, the best and the worst ones."""
    draws = [
        [position, token, count, _short(probability), _short(advantage)]
        for position, token, count, probability, advantage in zip(*(row[name] for name in _COLUMNS), strict=True)
        if 0 <= position < len(row["target"])
    ]
    return {
        "prompt": cut(str(row.get("prompt", "")), LONGEST_PROMPT),
        "target": [str(token) for token in row["target"]],
        "rewards": [_short(reward) for reward in row["rewards"]],
        "draws": draws,
        "samples": samples,
    }


def _short(value: object) -> float | None:
    number = finite(value)
    return None if number is None else float(f"{number:.3g}")


def _is_complete(row: dict[str, Any]) -> bool:
    """Return whether a row has all that the explorer shows: another program may have written it."""
    lists = [row.get(name) for name in (*_COLUMNS, "target", "rewards")]
    return all(isinstance(each, list) for each in lists) and len({len(row[name]) for name in _COLUMNS}) == 1


def _samples(path: Path, examples: Iterable[int]) -> dict[int, list[list[Any]]]:
    """Return example -> its best and its worst samples, with their rewards."""
    wanted = set(examples)
    if not wanted or not path.exists():
        return {}
    found: dict[int, dict[str, float]] = {}
    for row in _read(path, ("example", "sample", "reward"), wanted):
        reward = finite(row.get("reward"))
        if reward is not None:
            found.setdefault(row["example"], {})[str(row.get("sample"))] = reward
    return {example: _extremes(rewards) for example, rewards in found.items()}


def _extremes(rewards: dict[str, float]) -> list[list[Any]]:
    ordered = sorted(rewards.items(), key=lambda item: -item[1])
    kept = ordered if len(ordered) <= 2 * MOST_SAMPLES else ordered[:MOST_SAMPLES] + ordered[-MOST_SAMPLES:]
    return [[cut(text, LONGEST_SAMPLE), _short(reward)] for text, reward in kept]


def _read(path: Path, columns: Sequence[str] | None = None, examples: set[int] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a Parquet file, only of these examples if they are given; none if the file cannot be read."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=None if columns is None else list(columns))
        if examples is not None:
            chosen = pyarrow.array(sorted(examples), type=table.column("example").type)
            table = table.filter(pyarrow.compute.is_in(table.column("example"), value_set=chosen))
    except (OSError, KeyError, pyarrow.ArrowException):
        return []
    return table.to_pylist()
