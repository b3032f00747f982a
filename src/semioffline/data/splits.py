"""Train, validation and test rows of a job. Missing splits are taken from train."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semioffline.data.examples import as_dataset, check_columns
from semioffline.data.options import DataOptions
from semioffline.errors import UserError, unknown
from semioffline.tasks.reading.places import VALIDATION, as_path

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "validation", "test")
SHARES = {"test": (0.2, 1000), "validation": (0.1, 200)}
"""split -> the share of the inputs to take from train for it, and their maximum number"""
FEWEST = 20
"""Minimum number of different inputs in train to take a split from it."""


@dataclass(frozen=True)
class Splits:
    """The splits of a job, with the columns prompt and completion."""

    rows: dict[str, Dataset]
    cut: dict[str, int]
    """split -> number of rows, for splits that were taken from train"""


def load_splits(data: DataOptions, seed: int) -> Splits:
    """Load the splits of files, a folder, a dataset on the Hub, or a task."""
    task = data.load_task()
    rows = {"train": task.load(data.source(seed), "train")}
    on_hub = bool(data.data_dir) and not as_path(str(data.data_dir)).exists()
    for split in SPLITS[1:]:
        limit = data.eval_limit if split == "validation" else None
        if data.has(split):
            try:
                rows[split] = task.load(data.source(seed, limit), split)
            except UserError:
                if not on_hub:  # only the Hub can tell which splits it has
                    raise
    return cut_missing(rows)


def splits_of(given: Any) -> Splits:
    """Make splits of rows in memory: a dict (or DatasetDict) of splits, or training rows alone."""
    parts: Mapping[str, Any] = given if isinstance(given, Mapping) else {"train": given}
    named = {("validation" if name in VALIDATION else name): rows for name, rows in parts.items()}
    for name in named.keys() - set(SPLITS):
        raise unknown("split in data", str(name), SPLITS)
    if "train" not in named:
        raise UserError(f"data has no train split: it has {', '.join(named) or 'nothing'}")
    rows = {split: as_dataset(part) for split, part in named.items()}
    for split, part in rows.items():
        try:
            check_columns(part)
        except UserError as error:
            raise UserError(f"the {split} rows: {error}") from error
    return cut_missing(rows)


def cut_missing(rows: Mapping[str, Dataset]) -> Splits:
    """Take missing splits from train, by input: rows with one prompt stay together. The hash of the prompt decides, so
    the choice depends neither on the order of the rows nor on a seed."""
    missing = [split for split in SHARES if split not in rows]
    if not missing:
        return Splits({split: rows[split] for split in SPLITS}, {})
    keys = [input_key(prompt) for prompt in rows["train"]["prompt"]]
    inputs = sorted(set(keys), key=lambda key: hashlib.sha256(key.encode()).digest())
    if len(inputs) < FEWEST:
        raise UserError(
            f"there is no {' and no '.join(missing)} split, and train has {len(inputs)} different prompts: at least "
            f"{FEWEST} are needed to cut one from it; give --validation_file and --test_file, or more rows"
        )
    found, cut, taken = dict(rows), {}, 0
    owner: dict[str, str] = {}
    for split in missing:
        share, most = SHARES[split]
        number = min(most, max(1, round(share * len(inputs))))
        owner |= dict.fromkeys(inputs[taken : taken + number], split)
        taken += number
    for split in (*missing, "train"):
        found[split] = rows["train"].select([n for n, key in enumerate(keys) if owner.get(key, "train") == split])
        cut[split] = len(found[split])
    del cut["train"]
    return Splits({split: found[split] for split in SPLITS}, cut)


def input_key(prompt: object) -> str:
    """Return a prompt, which may be messages, as one text."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)


def digest_splits(splits: Splits) -> str:
    """Return a digest of the prompts and completions of all splits, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for split, rows in splits.rows.items():
        digest.update(split.encode())
        for prompt, completion in zip(rows["prompt"], rows["completion"], strict=True):
            digest.update(json.dumps([prompt, completion], default=str).encode())
    return digest.hexdigest()
