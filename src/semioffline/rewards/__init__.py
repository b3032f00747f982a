"""Rewards by name, as functions, or as models; one file for each. A reward sees strings, never tensors."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semioffline.errors import UserError, unknown

RewardFunction = Callable[..., Any]
"""Called by keyword with lists of equal length: prompts, completions, completion_ids, references and every other
column; returns one number (or None, to leave that sample out) for each. May be async."""

_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def _rouge(*variants: str, stem: bool = False) -> RewardFunction:
    from semioffline.rewards.rouge import Rouge

    return Rouge(variants, use_stemmer=stem)


def _bleu() -> RewardFunction:
    from semioffline.rewards.bleu import SentenceBleu

    return SentenceBleu()


def _function(module: str, name: str) -> Callable[[], RewardFunction]:
    return lambda: getattr(importlib.import_module(module), name)


REWARDS: dict[str, Callable[[], RewardFunction]] = {
    "rouge": lambda: _rouge("rouge1", "rouge2", "rougeL"),
    "rouge_stem": lambda: _rouge("rouge1", "rouge2", "rougeL", stem=True),
    **{name: (lambda name=name: _rouge(name)) for name in _ROUGE},  # type: ignore[misc]
    **{f"{name}_stem": (lambda name=name: _rouge(name, stem=True)) for name in _ROUGE},  # type: ignore[misc]
    "bleu": _bleu,
    "length": _function("semioffline.rewards.surface", "length"),
    "repetition": _function("semioffline.rewards.surface", "repetition"),
    "distinct": _function("semioffline.rewards.surface", "distinct"),
    "click_rate": _function("semioffline.tasks.ads", "click_rate"),
    "facts_right": _function("semioffline.tasks.ads", "facts_right"),
}


def load_reward(given: Any, processing_class: Any = None, device: Any = None) -> tuple[str, RewardFunction]:
    """A name, "module:function", "file.py:function", "model:NAME", a model or a callable -> (name, function)."""
    if not isinstance(given, str):
        if hasattr(given, "config") and hasattr(given, "forward"):
            from semioffline.rewards.model import ModelReward

            given = ModelReward(given, processing_class, device=device)
        if not callable(given):
            raise UserError(f"a reward must be a name, a function or a model, not {type(given).__name__}")
        return reward_name(given), given
    if given in REWARDS:
        return given, REWARDS[given]()
    if given.startswith("model:"):
        from semioffline.rewards.model import ModelReward

        reward = ModelReward.load(given.removeprefix("model:"), processing_class, device=device)
        return reward.name, reward
    if ":" in given:
        function = _import(given)
        return reward_name(function), function
    raise unknown("reward", given, REWARDS)


def reward_name(function: Any) -> str:
    return getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__


def _import(given: str) -> RewardFunction:
    """ "rewards.py:score" or "package.module:score", code that the user wrote."""
    place, _, name = given.rpartition(":")
    try:
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise UserError(f"reward '{given}': there is no file {place}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None:
                raise UserError(f"reward '{given}': {place} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except UserError:
        raise
    except Exception as error:  # whatever the user's module does when it is imported
        raise UserError(f"reward '{given}': cannot import {place}: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, name, None)):
        raise unknown(f"function in {place}", name, [n for n in vars(module) if callable(getattr(module, n))])
    return getattr(module, name)
