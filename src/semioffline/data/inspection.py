"""Inspect data (columns, rows, repeated rows, lengths), and choose settings of a job from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semioffline.data.examples import Examples
from semioffline.data.splits import Splits, input_key
from semioffline.policy.policy import Policy
from semioffline.storage.records import Record

if TYPE_CHECKING:
    from datasets import Dataset

LOOKED_AT = 2000
"""Number of training rows whose lengths are measured, spread evenly over the split."""
MOST_PROMPT, MOST_COMPLETION = 512, 256
"""Maximum lengths in tokens, unless the user sets others."""
OURS = ("prompt", "completion", "references", "candidates", "candidate_rewards")


@dataclass(frozen=True)
class Spread(Record):
    """Lengths of texts in tokens."""

    median: int
    most: int
    """99 % of the texts are not longer than this."""
    longest: int


@dataclass(frozen=True, kw_only=True)
class Inspection(Record):
    """Properties of the splits of a job."""

    columns: list[str]
    """Further columns of the train split, which rewards get."""
    rows: dict[str, int]
    cut: dict[str, int]
    """split -> number of rows, for splits that were taken from train"""
    repeated: dict[str, int]
    """split -> number of rows whose prompt and completion an earlier row has"""
    shared: dict[str, int]
    """`validation` and `test` -> number of rows whose prompt is in train, too"""
    prompts: Spread
    completions: Spread
    """Lengths of the training completions."""

    def warnings(self) -> list[str]:
        """Return problems of the data that a user should know before training."""
        said = [
            f"{number} of {self.rows[split]} rows of {split} repeat an earlier row"
            for split, number in self.repeated.items()
            if number > 0.01 * self.rows[split]
        ]
        said += [
            f"{number} of {self.rows[split]} prompts of {split} are in train, too: results on them say little about "
            "new inputs"
            for split, number in self.shared.items()
            if number
        ]
        if self.rows["test"] < 100:
            said.append(f"{self.rows['test']} test rows: only large differences can be significant")
        return said


def inspect(splits: Splits, policy: Policy) -> Inspection:
    """Inspect all rows, and measure the lengths of some."""
    train = splits.rows["train"]
    known = {input_key(prompt) for prompt in train["prompt"]}
    step = max(1, len(train) // LOOKED_AT)
    some = train.select(range(0, len(train), step)).select_columns(["prompt", "completion"])
    examples = Examples(some, policy, 10**6, 10**6, progress=False)
    return Inspection(
        columns=[name for name in train.column_names if name not in OURS],
        rows={split: len(rows) for split, rows in splits.rows.items()},
        cut=splits.cut,
        repeated={split: _repeated(rows) for split, rows in splits.rows.items()},
        shared={
            split: sum(input_key(prompt) in known for prompt in splits.rows[split]["prompt"])
            for split in ("validation", "test")
        },
        prompts=_spread([len(example.source.ids) for example in examples.examples]),
        completions=_spread([len(example.target.ids) for example in examples.examples]),
    )


def choose_lengths(found: Inspection, policy: Policy) -> tuple[int, int]:
    """Return maximum lengths (prompt, completion) in tokens, as multiples of 8: for prompts what 99 % of them need, for
    completions the longest one, but at most 1.5 times what 99 % of them need. Both stay within MOST_PROMPT,
    MOST_COMPLETION and the model's positions."""
    completion = min(_round(min(found.completions.longest, int(1.5 * found.completions.most))), MOST_COMPLETION)
    prompt = min(_round(found.prompts.most), MOST_PROMPT)
    most = policy.max_positions()
    if most is None:
        return prompt, completion
    if policy.is_encoder_decoder:
        return min(prompt, most), min(completion, most)
    completion = min(completion, most // 2)
    return min(prompt, most - completion), completion


def _round(length: int) -> int:
    return -(-length // 8) * 8


def _repeated(rows: Dataset) -> int:
    pairs = {(input_key(p), input_key(c)) for p, c in zip(rows["prompt"], rows["completion"], strict=True)}
    return len(rows) - len(pairs)


def _spread(lengths: list[int]) -> Spread:
    return Spread(int(np.median(lengths)), int(np.percentile(lengths, 99, method="higher")), max(lengths))
