"""Combine several reward functions into one: the weighted sum of their checked values."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from semioffline.errors import UserError
from semioffline.rewards.contract import Reward
from semioffline.rewards.registry import FAMILIES
from semioffline.scoring.awaiting import await_all
from semioffline.scoring.calls import Distinct, call, check, find_distinct, own_copy
from semioffline.scoring.context import RewardContext
from semioffline.scoring.named import find_reward, reward_names
from semioffline.storage.untrusted import check_name

Values = list[float] | np.ndarray
"""The values of one reward function, one for each sample."""


class RewardSet:
    """One or more reward functions and their weights: the reward is the weighted sum."""

    def __init__(
        self,
        rewards: Any,
        weights: Sequence[float] | None = None,
        processing_classes: Any = None,
        device: Any = None,
        timeout: float | None = None,
    ):
        given = list(rewards) if isinstance(rewards, (list, tuple)) else [rewards]
        tokenizers = list(processing_classes) if isinstance(processing_classes, (list, tuple)) else [processing_classes]
        tokenizers += [None] * (len(given) - len(tokenizers))
        loaded = [find_reward(r, t, device) for r, t in zip(given, tokenizers, strict=False)]
        self.timeout = timeout
        self.calls = 0
        """Number of texts scored in the last call, by the function that scored most."""
        self.context = RewardContext()
        self.sources = [source for source in given if isinstance(source, str)]
        """Rewards given by name, as they were given."""
        self.functions: dict[str, Reward] = {}
        self.built_in: dict[str, str] = {}
        """Rewards that any process can build from a name: functions of the row and the text that use no device."""
        for source, (name, function) in zip(given, loaded, strict=True):
            check_name("reward", str(name))  # of columns in tables, keys in logs, and files of loggers
            unique = name if name not in self.functions else f"{name}_{len(self.functions)}"
            self.functions[unique] = function
            if _is_built_in(source, function):
                self.built_in[unique] = source
        self.weights = [1.0] * len(loaded) if weights is None else [float(w) for w in weights]
        if len(self.weights) != len(loaded):
            raise UserError(f"{len(loaded)} rewards but {len(self.weights)} reward_weights: give one weight for each")
        if not np.isfinite(self.weights).all():
            raise UserError(f"reward_weights={self.weights} must be finite")

    def __call__(self, columns: dict[str, list[Any]]) -> tuple[list[float], dict[str, list[float]]]:
        """Return the weighted sums and each function's values, given columns (completions among them). NaN: left
        out."""
        parts = self.call(columns)
        return self.add(parts).tolist(), parts

    def add(self, parts: Mapping[str, Values]) -> np.ndarray:
        """Return the weighted sum of the functions' values."""
        pairs = zip(self.weights, self.functions, strict=True)
        weighted = [weight * np.asarray(parts[name]) for weight, name in pairs]
        return cast(np.ndarray, sum(weighted)) if weighted else np.zeros(0)

    def add_tensors(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of values on a device."""
        pairs = zip(self.weights, self.functions, strict=True)
        return cast(Tensor, sum(weight * parts[name] for weight, name in pairs))

    @torch.no_grad()  # also for a function that switches gradients off and leaves them so
    def call(
        self, columns: dict[str, list[Any]], rows: Sequence[int] | None = None, but: Sequence[str] = ()
    ) -> dict[str, list[float]]:
        """Return each function's checked values, except for the functions in `but`.

        rows: the input that each sample belongs to. Deterministic functions then score identical samples of an input
        once.
        """
        results: dict[str, list[float]] = {}
        waiting: dict[str, Awaitable[object]] = {}
        asked: dict[str, Distinct] = {}
        for name, function in self.functions.items():
            if name in but:
                continue
            once = asked[name] = Distinct(columns, None) if rows is None else find_distinct(function, columns, rows)
            given = once.columns if rows is not None and name in self.built_in else own_copy(once.columns)
            out = call(name, function, given | self.context.arguments(function, once), self.timeout)
            if inspect.isawaitable(out):
                waiting[name] = out
            else:
                results[name] = check(name, out, once.columns["completions"])
        for name, out in await_all(waiting, self.timeout).items() if waiting else ():
            results[name] = check(name, out, asked[name].columns["completions"])
        self.calls = max((len(once.columns["completions"]) for once in asked.values()), default=0)
        return {name: asked[name].spread(results[name]) for name in self.functions if name in results}


def check_names(given: list[str]) -> None:
    """Check that rewards given by name exist, before any other work. Models are not loaded, because that takes long."""
    RewardSet([name for name in given if name.partition(":")[0] not in FAMILIES])


def _is_built_in(given: Any, function: Reward) -> bool:
    if not isinstance(given, str) or not (given in reward_names() or given.startswith("length_penalty:")):
        return False
    return not function.on_device and not function.single_process
