"""Make a blind rating: a page with outputs in random order and without names, and the key that says which model wrote
which."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal

from semioffline.errors import UserError
from semioffline.report.html import render
from semioffline.report.run_folders import OutputRow, named_apart, read_folder
from semioffline.storage.files import write_atomically
from semioffline.storage.records import Record

Protocol = Literal["overall", "criteria", "pairwise"]
PAGE, KEY = "rate.html", "key.json"
INITIAL = "initial checkpoint"
CRITERIA = ("grammar", "understanding", "correctness")
"""The criteria of the paper's human evaluation of generated questions (SQuAD)."""


@dataclass(frozen=True)
class System(Record):
    """The outputs of one run, to be rated."""

    label: str
    folder: str
    """Its run folder, to which the results are added."""


@dataclass(frozen=True)
class Item(Record):
    """One task for a rater: the numbers of the systems whose outputs are shown, in their order on the page."""

    prompt: str
    systems: list[int]


@dataclass(frozen=True)
class Key(Record):
    """The content of key.json: which model wrote which output. Raters must not see it."""

    id: str
    protocol: str
    criteria: list[str]
    """The criteria that are scored; one name for the protocols overall and pairwise."""
    systems: list[System]
    items: list[Item] = field(default_factory=list)


@dataclass(frozen=True)
class _Outputs:
    system: System
    by_prompt: dict[str, OutputRow]


def write_rating_page(
    folders: Sequence[Path], folder: Path, protocol: Protocol, criteria: Sequence[str], inputs: int
) -> Key:
    """Write rate.html for raters and key.json for you. Inputs for which all runs have outputs are drawn at random, and
    so is the order of outputs for every input. The random numbers come from the system: the order cannot be guessed
    from the page.

    Args:
        inputs: The number of inputs, or all if there are fewer.
    """
    found = _outputs(folders)
    if len(found) < 2 and protocol == "pairwise":
        raise UserError("--protocol pairwise needs two runs: name a second one")
    prompts = [prompt for prompt in found[0].by_prompt if all(prompt in each.by_prompt for each in found)]
    if not prompts:
        raise UserError(
            f"the runs {', '.join(each.system.label for each in found)} have no inputs in common: choose runs that "
            "were tested on the same split"
        )
    source = random.SystemRandom()
    chosen = source.sample(prompts, min(inputs, len(prompts)))
    items = [Item(prompt, systems) for prompt in chosen for systems in _shown_together(len(found), protocol)]
    source.shuffle(items)
    for item in items:
        source.shuffle(item.systems)
    named = list(criteria) if protocol == "criteria" else ["overall" if protocol == "overall" else "preference"]
    key = Key(secrets.token_hex(8), protocol, named, [each.system for each in found], items)
    write_atomically(folder / KEY, json.dumps(key.to_json(), indent=1, ensure_ascii=True))
    write_atomically(folder / PAGE, _page(key, found))
    return key


def _shown_together(systems: int, protocol: Protocol) -> list[list[int]]:
    every = list(range(systems))
    return [list(pair) for pair in combinations(every, 2)] if protocol == "pairwise" else [every]


def _outputs(folders: Sequence[Path]) -> list[_Outputs]:
    """Return the outputs of the runs in these folders; for a single run, also those of its initial checkpoint."""
    runs = [run for folder in named_apart(map(read_folder, folders)) for run in folder.runs if run.after]
    if not runs:
        raise UserError("there are no outputs to rate: expected predictions.jsonl in the run folders")
    found = [_Outputs(System(run.label, str(run.folder.resolve())), _by_prompt(run.after)) for run in runs]
    if len(runs) == 1 and runs[0].before:
        found.insert(0, _Outputs(System(INITIAL, ""), _by_prompt(runs[0].before)))
    return found


def _by_prompt(rows: Sequence[OutputRow]) -> dict[str, OutputRow]:
    return {str(row["prompt"]): row for row in reversed(rows)}


def _page(key: Key, found: Sequence[_Outputs]) -> str:
    """Return the page: texts and the identifier, nothing that distinguishes the systems."""
    items = [
        [item.prompt, [str(found[n].by_prompt[item.prompt]["prediction"]) for n in item.systems]] for item in key.items
    ]
    return render(
        "rate.html.j2",
        ("base.css", "rate.css"),
        ("base.js", "rate.js"),
        title="Rate the outputs",
        protocol=key.protocol,
        criteria=key.criteria,
        data={"id": key.id, "protocol": key.protocol, "criteria": key.criteria, "items": items},
    )
