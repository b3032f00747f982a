"""semioffline explain: show how each word of a text changes its reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semioffline.cli.options import parse
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.evaluation.explanation import Explanation, explain
from semioffline.printing import say
from semioffline.validation import BATCH, NOT_NEGATIVE, Options, setting

EMPTY = "(no text)"
LEAST = 0.005
"""Words with a lower probability are not printed."""


@dataclass
class ExplainOptions(Options):
    prompt: str | None = setting(None, "The input, or else --row.", "Text")
    completion: str | None = setting(None, "The text to explain; what the model writes when not given.", "Text")
    references: list[str] = setting([], "What the reward compares the text with.", "Text")
    row: int | None = setting(
        None, "Number of a row of the data, from 0: its prompt and columns.", "Text", NOT_NEGATIVE
    )
    split: str = setting("test", "The split that --row is of.", "Text")
    reward: list[str] = setting([], "By name or file.py:function; the task's own when not given.", "Reward")
    alternatives: int = setting(5, "Other words that are tried in the place of each.", "Text", BATCH)


def run(argv: list[str]) -> None:
    types = [DataOptions, ModelOptions, ExplainOptions]
    task = parse("explain", types, argv)[0].load_task()
    data, model, options = parse("explain", types, argv, {"reward": [task.reward] if task.reward else None})
    if (options.prompt is None) == (options.row is None):
        raise UserError("what should be explained? give --prompt TEXT, or --row NUMBER with the data")
    device = model.checked_device()
    row: dict[str, Any] = {} if options.row is None else _find_row(data, model, options.split, options.row)
    found = explain(
        model.load().to(device),
        row.get("prompt", options.prompt),
        options.completion,
        options.reward or None,
        references=options.references,
        row=row,
        alternatives=options.alternatives,
    )
    _print(found)


def _find_row(data: DataOptions, model: ModelOptions, split: str, number: int) -> dict[str, Any]:
    data.read_by(model.model)
    rows = data.load_task().load(data.source(), split)
    if number >= len(rows):
        raise UserError(
            f"--row {number} does not exist: the {split} split has {len(rows)} rows, numbered from 0 to {len(rows) - 1}"
        )
    return dict(rows[number])


def _print(found: Explanation) -> None:
    say(found.completion, strong=True)
    say("it has no reward" if found.reward is None else f"reward {found.reward:.4g}; {found.texts} texts were scored")
    column = 2 + max((len(word.text) for word in found.words), default=0)
    say(f"\n{'':<{column}}  p    in its place: change of the reward (p)")
    for word in found.words:
        others = [
            f"{other.text or EMPTY} {'–' if other.change is None else f'{other.change:+.3g}'} ({other.probability:.2f})"
            for other in word.alternatives
            if other.probability >= LEAST
        ]
        say(f"{word.text:<{column}}{word.probability:.2f}  {', '.join(others)}".rstrip(), margin=column + 6)
