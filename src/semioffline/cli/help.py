"""The help of a command, made from the fields of its dataclasses: one line for each setting, in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from transformers import TrainingArguments

from semioffline.config import TRANSFORMERS
from semioffline.printing import say

_OTHER = "Transformers' other settings"
_FIRST = ("Data", "Model", "Reward")
_LAST = ("Text", "Training", "Evaluation", "Log", "Speed and memory", "Advanced", _OTHER)
_RARE = ("Advanced", _OTHER)


def print_help(command: str, types: Sequence[type], everything: bool = False) -> None:
    """Print a command's settings. everything: also those that are rarely needed."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for item in [item for kind in types for item in fields(kind) if item.init]:
        groups.setdefault(_group(item), []).append((f"--{item.name}", _explanation(item)))
    rare = sum(len(groups.pop(name, [])) for name in _RARE if not everything)
    say(f"usage: semioffline {command} [--config RECIPE.yaml] [--setting value ...]")
    width = max((len(usage) for lines in groups.values() for usage, _ in lines), default=0)
    for group in sorted(groups, key=_order):
        say(f"{group}:")
        for usage, explanation in groups[group]:
            say(f"  {usage:<{width}}  {explanation}")
    if rare:
        say(f"--help-all lists {rare} more, most of them of transformers.TrainingArguments.")


def _order(group: str) -> int:
    if group in _FIRST:
        return _FIRST.index(group)
    return len(_FIRST) + (1 + _LAST.index(group) if group in _LAST else 0)


def _group(item: Field[Any]) -> str:
    if item.metadata.get("group"):
        return item.metadata["group"]
    if item.name in TRANSFORMERS:
        return "Training"
    return _OTHER if item.name in _TRAINING_ARGUMENTS else "Options"


_TRAINING_ARGUMENTS = {item.name for item in fields(TrainingArguments)}


def _explanation(item: Field[Any]) -> str:
    help_text = TRANSFORMERS[item.name][0] if item.name in TRANSFORMERS else item.metadata.get("help") or ""
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    default = getattr(default, "value", default)
    if isinstance(default, list):
        default = " ".join(map(str, default))
    shown = "" if default is None or default is MISSING or default == "" else f" [{default}]"
    return " ".join(help_text.split()) + shown
