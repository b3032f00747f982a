"""Inputs made from the descriptions of the settings: what is allowed must be accepted, all else refused by name."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from semioffline import cli
from semioffline.cli.compare_options import CompareOptions
from semioffline.cli.train import TrainOptions
from semioffline.config import TRANSFORMERS, MethodConfig, config_descriptions
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.experiments.job_options import JobOptions
from semioffline.methods.shared.registry import config_class, method_names
from semioffline.policy.decoding import Decoding
from semioffline.validation import Description, Options, descriptions


def _options_of(command: str) -> list[Any]:
    """The options that a command reads: those in its file. `train` adds those of a method."""
    found = vars(importlib.import_module(f"semioffline.cli.{command}")).values()
    return [one for one in found if isinstance(one, type) and issubclass(one, Options) and one is not Options]


COMMANDS: dict[str, list[Any]] = {name: _options_of(name) for name in cli.COMMANDS if name != "train"}
COMMANDS["compare"] = [DataOptions, ModelOptions, CompareOptions]
COMMANDS["run"] = COMMANDS["demo"] = [DataOptions, ModelOptions, JobOptions]
WITH: dict[str, dict[str, Any]] = {
    "bf16": {"use_cpu": True},
    "draw_end": {"eos_after": 1},
    "kl_target": {"kl_weight": 0.1},
    "early_stopping_patience": {"eval_strategy": "steps"},
    "load_best_model_at_end": {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1},
    "save_strategy": {"metric_for_best_model": "reward"},
}
"""What else must be set for a setting to be accepted."""
WITH_OF_METHOD: dict[tuple[str, str], dict[str, Any]] = {
    ("ablations", "eos_after"): {"observation": "no_mask"},
    ("ablations", "draw_end"): {"observation": "no_mask"},
    ("erpo", "top_k"): {"edit_share": 0.0},
    ("erpo", "top_p"): {"edit_share": 0.0},
}
"""The same for one method alone."""
SAMPLED = {name: {"do_sample": True} for name in ("temperature", "top_p", "top_k", "num_return_sequences")}
DECODING: dict[str, dict[str, Any]] = SAMPLED | {
    "diversity_penalty": {"num_beams": 2, "num_beam_groups": 2},
    "num_beam_groups": {"num_beams": 2**12, "diversity_penalty": 1.0},
    "min_new_tokens": {"max_new_tokens": 10**6},
}
"""The same for settings of decoding."""
NEEDS_MORE = {
    "lr_scheduler_type": ("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"),
    "logging_steps": ("1.5",),
    "save_steps": ("1.5",),
    "eval_steps": ("1.5",),
    "mask_where": ("\x1b[31mred",),
}
"""What is allowed but needs arguments of its own, steps above 1 that are not whole, and no regular expression."""
WORDS = ["", "  ", "much", "nan", "inf", "-inf", "1e400", "-1e400", "9" * 400, "9" * 5000, "-1", "0", "1", "1.5"]
WORDS += ["true", "None", "[1]", "{", "\x1b[31mred", "[/b]", "\u202e", "x" * 300, "x/" * 3000, "s3://bucket/x", "½"]
VALUES: list[Any] = [None, True, False, 0, 1, -1, 0.5, -0.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400]
VALUES += [-(10**400), 10**5000, 2**63, "", " ", "1", "much", "a\0b", "x" * 300, "x/" * 3000, "s3://bucket/x", b"1"]
VALUES += [[], [None], ["a", 1], [1, "a"], [True], [math.nan], [""], {}, {"a": 1}, (), {1}, 1j, object(), int]


class Case(NamedTuple):
    """One value of one setting."""

    where: str
    """The class, or the command."""
    name: str
    value: Any
    allowed: bool
    """Whether the description allows it."""


def of_python(kind: Any, described: dict[str, Description]) -> Iterator[Case]:
    for name, description in described.items():
        if description.kinds:
            for value in [*VALUES, *_edges(description)]:
                yield Case(kind.__name__, name, value, allows(description, value) and _is_readable(name, value))


def of_command(command: str, described: dict[str, Description]) -> Iterator[Case]:
    for name, description in described.items():
        if description.kinds:
            for word in [*WORDS, *(str(value) for value in _edges(description) if abs(value) < 10**100)]:
                value = _read(description, word)
                fits = value is not None and allows(description, value) and _is_readable(name, value)
                yield Case(command, name, word, fits)


def _is_readable(name: str, value: Any) -> bool:
    """--settings is the one text that must be JSON."""
    if name != "settings" or not isinstance(value, str):
        return True
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False


def allows(description: Description, value: Any) -> bool:
    """Whether the description allows a value, told without the code that is tested."""
    if value is None:
        return description.optional
    if isinstance(value, (list, tuple)):
        return description.is_list and all(_allows_one(description, one) for one in value)
    return description.is_single and _allows_one(description, value)


def _allows_one(description: Description, value: Any) -> bool:
    kinds, allowed = description.kinds, description.allowed
    if type(value) is bool:
        return bool in kinds
    if type(value) in (int, float):
        fits = float in kinds or (int in kinds and type(value) is int)
        if not fits or (type(value) is float and not math.isfinite(value)):
            return False
        inside = allowed.low <= value <= allowed.high
        on_edge = (value == allowed.low and allowed.open_low) or (value == allowed.high and allowed.open_high)
        return (inside and not on_edge) or value == allowed.also
    if type(value) is not str or str not in kinds:
        return False
    if description.choices:
        return value in description.choices
    too_long = len(value) > 4096 or max(map(len, value.split("/"))) > 255
    if description.place and ("://" in value or too_long):
        return False
    return (bool(value.strip()) or description.blank) and "\0" not in value


def _edges(description: Description) -> list[Any]:
    """The ends of the range, and the numbers next to them outside."""
    low, high = description.allowed.low, description.allowed.high
    if description.kinds == {int}:
        return [low, high, low - 1, high + 1]
    if float in description.kinds:
        return [low, high, math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
    return []


def _read(description: Description, word: str) -> Any:
    """What a word of the command line means for a setting; None for nothing."""
    if description.kinds == {bool}:
        return {"true": True, "1": True, "0": False}.get(word)
    kind = next((kind for kind in (int, float) if description.kinds == {kind}), str)
    try:
        value = kind(word)
    except ValueError:
        return None
    return [value] if description.is_list and not description.is_single else value


def own_settings(kind: Any) -> dict[str, Description]:
    """The settings that a method adds to those of all methods."""
    shared = {item.name for item in fields(MethodConfig)}
    return {name: item for name, item in config_descriptions(kind).items() if name not in shared}


def promised(case: Case) -> bool:
    """Whether the case is for a setting of this library, or a documented one of Transformers, so that what its
    description allows is accepted."""
    ours = {item.name for item in fields(MethodConfig) if "group" in item.metadata} | set(TRANSFORMERS)
    transformers = {item.name for item in fields(MethodConfig)}
    needs_more = case.value in NEEDS_MORE.get(case.name, ()) if isinstance(case.value, str) else False
    return (case.name in ours or case.name not in transformers) and not needs_more


def python_cases() -> list[Case]:
    found = list(of_python(MethodConfig, config_descriptions(MethodConfig)))
    for method in method_names():
        found += [case._replace(where=method) for case in of_python(MethodConfig, own_settings(config_class(method)))]
    found += of_python(Decoding, descriptions(Decoding))
    for kind in {kind for kinds in COMMANDS.values() for kind in kinds} | {TrainOptions}:
        found += of_python(kind, descriptions(kind))
    return found


def command_cases() -> list[Case]:
    found = list(of_command("train semi_offline", config_descriptions(MethodConfig)))
    for method in method_names():
        found += of_command(f"train {method}", own_settings(config_class(method)))
    found += of_command("train mft", descriptions(TrainOptions))
    for command, kinds in COMMANDS.items():
        for kind in kinds:
            found += of_command(command, descriptions(kind))
    return found
