"""Find rewards by name, as functions, or as models. There is one file for each reward."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semioffline.errors import UserError, unknown
from semioffline.rewards.contract import Reward, RewardFunction, as_reward

if TYPE_CHECKING:
    from semioffline.rewards.encoder import EncoderReward

_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_BRIO = ("rouge1", "rouge2", "rougeLsum")


def _make(module: str, name: str, *args: Any, **kwargs: Any) -> Callable[[], RewardFunction]:
    """Return a function that imports a file of this folder and builds its reward, when the reward is needed."""
    return lambda: getattr(importlib.import_module(f"semioffline.rewards.{module}"), name)(*args, **kwargs)


def _function(module: str, name: str) -> Callable[[], RewardFunction]:
    return lambda: getattr(importlib.import_module(f"semioffline.rewards.{module}"), name)


_SURFACE = ("length", "repetition", "distinct", "distinct1", "distinct2", "repetition_penalty")
REWARDS: dict[str, Callable[[], RewardFunction]] = {
    "rouge": _make("rouge", "Rouge"),
    "rouge_stem": _make("rouge", "Rouge", use_stemmer=True),
    **{name: _make("rouge", "Rouge", name) for name in _ROUGE},
    **{f"{name}_stem": _make("rouge", "Rouge", name, use_stemmer=True) for name in _ROUGE},
    "rouge_brio": _make("brio", "BrioRouge"),
    **{f"{name}_brio": _make("brio", "BrioRouge", name) for name in _BRIO},
    "lmqg_rougeL": _make("lmqg", "LmqgRougeL"),
    "lmqg_bleu4": _make("lmqg", "LmqgBleu4"),
    "bleu": _make("bleu", "SentenceBleu"),
    "corpus_bleu": _make("bleu", "CorpusBleu"),
    "bleu_rougeL": _function("bleu_rouge", "bleu_rougeL"),
    "chrf": _make("chrf", "SentenceChrf"),
    "meteor": _make("meteor", "Meteor"),
    "corpus_meteor": _make("meteor", "CorpusMeteor"),
    "exact_match": _make("exact", "ExactMatch"),
    "length_penalty": _make("surface", "LengthPenalty"),
    **{name: _function("surface", name) for name in _SURFACE},
}
"""name -> function that builds the reward"""

FAMILIES: dict[str, tuple[str, str]] = {
    "model": ("model", "ModelReward"),
    "similarity": ("similarity", "Similarity"),
    "bertscore": ("bertscore", "BertScore"),
}
"""prefix -> file and class, for names like `model:NAME_OR_PATH?option=value&option=value`"""


def load_reward(
    given: Any, processing_class: Any = None, device: Any = None, more: Mapping[str, Callable[[], RewardFunction]] = {}
) -> tuple[str, Reward]:
    """Return (name, reward) for a name, FAMILY:NAME_OR_PATH, length_penalty:LOW-HIGH, "module:function",
    "file.py:function", a model or a callable. more: further names, and functions that build them."""
    known = {**REWARDS, **more}
    if not isinstance(given, str):
        if hasattr(given, "config") and hasattr(given, "forward"):
            from semioffline.rewards.model import ModelReward

            given = ModelReward(given, processing_class, device=device)
        if not callable(given):
            raise UserError(f"a reward must be a name, a function or a model, not {type(given).__name__}")
        reward = as_reward(given)
        return reward.name, reward
    if given in known:
        return given, as_reward(known[given]())
    family, _, rest = given.partition(":")
    if family in FAMILIES:
        model = _load_model(family, rest, processing_class, device)
        return model.name, model
    if family == "length_penalty":
        from semioffline.rewards.surface import LengthPenalty

        return family, LengthPenalty.parse(rest)
    if ":" in given:
        reward = as_reward(import_function(given))
        return reward.name, reward
    raise unknown("reward", given, [*known, *(f"{name}:NAME" for name in FAMILIES)])


_MODELS: dict[tuple[str, str], EncoderReward] = {}


def _load_model(family: str, given: str, processing_class: Any, device: Any) -> EncoderReward:
    """Load a model reward once in a process, because every evaluation asks for its metrics again. It is moved to the
    given device."""
    if not given.partition("?")[0]:
        raise UserError(f"'{family}:' needs the name or the path of a model: {family}:NAME_OR_PATH")
    module, name = FAMILIES[family]
    kind: type[EncoderReward] = getattr(importlib.import_module(f"semioffline.rewards.{module}"), name)
    if processing_class is not None:
        return kind.load(given, processing_class, device)
    if (family, given) not in _MODELS:
        _MODELS[family, given] = kind.load(given, device=device)
    reward = _MODELS[family, given]
    if device is not None and "device=" not in given:
        reward.model.to(device)
    return reward


def import_function(given: str, what: str = "reward") -> Callable[..., Any]:
    """Import the user's function "rewards.py:score" or "package.module:score". what: the setting that names it, for
    messages."""
    place, _, name = given.rpartition(":")
    try:
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise UserError(f"{what} '{given}': there is no file {place}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None:
                raise UserError(f"{what} '{given}': {place} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name == place and get_close_matches(place, [*FAMILIES, "length_penalty"], cutoff=0.6):
            raise unknown("kind of reward", place, [*FAMILIES, "length_penalty"]) from error
        raise UserError(f"{what} '{given}': cannot import {place}: {type(error).__name__}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        raise UserError(f"{what} '{given}': cannot import {place}: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, name, None)):
        raise unknown(f"function in {place}", name, [n for n in vars(module) if callable(getattr(module, n))])
    return getattr(module, name)
