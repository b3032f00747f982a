"""Print the help of a command: one line for each setting, in groups, made from the fields of its dataclasses.

Importing these takes seconds, most of it torch and Transformers. So `make tables` writes the settings of every command
to help.json, and a test fails if that file is out of date. It is not used with another version of Transformers, which
has other settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from semioffline.printing import say

KNOWN = Path(__file__).with_name("help.json")
WORDS = {"-h", "--help", "--help-all"}
DEFAULT_METHOD = "semi_offline"
"""The method whose settings `train --help` lists."""
_OTHER = "Transformers' other settings"
_FIRST = ("Data", "Model", "Reward")
_LAST = ("Text", "Training", "Evaluation", "Log", "Speed and memory", "Cluster", "Advanced", _OTHER)
_RARE = ("Advanced", _OTHER)


class HelpLine(NamedTuple):
    """One setting."""

    group: str
    flag: str
    text: str


def wants_help(argv: list[str]) -> bool:
    return bool(WORDS & set(argv))


def print_known_help(argv: list[str]) -> bool:
    """Print the help that this command line asks for, if help.json has it, without importing anything slow. Return
    whether it did."""
    asked = argv[:1] if argv[0] != "train" else ["train", argv[1] if argv[1] not in WORDS else DEFAULT_METHOD]
    if not KNOWN.exists() or (known := json.loads(KNOWN.read_bytes()))["transformers"] != transformers_version():
        return False
    command = known["commands"].get(" ".join(asked))
    if command is None:
        return False
    print_help(command["usage"], [HelpLine(*known["lines"][n]) for n in command["lines"]], "--help-all" in argv)
    return True


def transformers_version() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""


def print_help(usage: str, lines: Sequence[HelpLine], everything: bool = False) -> None:
    """Print the settings of a command. everything: include rarely needed ones."""
    groups: dict[str, list[HelpLine]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    of_transformers = "" if everything or _OTHER not in groups else ", most of them of transformers.TrainingArguments"
    hidden = (*_RARE, "Cluster") if usage.startswith("train") else _RARE  # training has the most settings
    rare = sum(len(groups.pop(name, [])) for name in hidden if not everything)
    say(f"usage: semioffline {usage} [--config RECIPE.yaml] [--setting value ...]", margin=len("usage: "))
    column = 4 + max((len(line.flag) for group in groups.values() for line in group), default=0)
    for name in sorted(groups, key=_order):
        say(f"{name}:")
        for line in groups[name]:
            say(f"  {line.flag:<{column - 2}}{line.text}", margin=column)
    if rare:
        say(f"--help-all lists {rare} more{of_transformers}.", margin=0)


def lines_of(types: Sequence[type]) -> list[HelpLine]:
    """Return one help line for each setting of these dataclasses."""
    return [
        HelpLine(_group(item), f"--{item.name}", _text(item)) for kind in types for item in fields(kind) if item.init
    ]


def _order(group: str) -> int:
    if group in _FIRST:
        return _FIRST.index(group)
    return len(_FIRST) + (1 + _LAST.index(group) if group in _LAST else 0)


def _group(item: Field[Any]) -> str:
    if item.metadata.get("group"):
        return item.metadata["group"]
    if item.name in _transformers_help():
        return "Training"
    return _OTHER if item.name in _transformers_names() else "Options"


def _text(item: Field[Any]) -> str:
    """Return the help text of a setting and its default."""
    own = item.metadata.get("help") if item.metadata.get("group") else None
    help_text = own or _transformers_help().get(item.name) or item.metadata.get("help") or ""
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    default = getattr(default, "value", default)
    if isinstance(default, list):
        default = " ".join(map(str, default))
    shown = "" if default is None or default is MISSING or default == "" else f" [{default}]"
    return " ".join(help_text.split()) + shown


@cache
def _transformers_names() -> set[str]:
    from transformers import TrainingArguments

    return {item.name for item in fields(TrainingArguments)}


@cache
def _transformers_help() -> dict[str, str]:
    from semioffline.config import TRANSFORMERS

    return {name: text for name, (text, _) in TRANSFORMERS.items()}
