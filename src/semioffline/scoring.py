"""Samples to rewards: decode, call the reward functions, check what they return, sum up."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semioffline.errors import UserError
from semioffline.losses import equal_rewards
from semioffline.policy import Policy
from semioffline.rewards import RewardFunction, load_reward
from semioffline.types import Batch, Samples


class RewardError(UserError):
    """A reward function raised, or returned something that is not one number or None for each sample."""


class RewardSet:
    """One or more reward functions and their weights: the reward is the weighted sum."""

    def __init__(
        self,
        rewards: Any,
        weights: Sequence[float] | None = None,
        processing_classes: Any = None,
        device: Any = None,
    ):
        given = list(rewards) if isinstance(rewards, (list, tuple)) else [rewards]
        tokenizers = list(processing_classes) if isinstance(processing_classes, (list, tuple)) else [processing_classes]
        tokenizers += [None] * (len(given) - len(tokenizers))
        loaded = [load_reward(r, t, device) for r, t in zip(given, tokenizers, strict=False)]
        self.functions: dict[str, RewardFunction] = {}
        for name, function in loaded:
            unique = name if name not in self.functions else f"{name}_{len(self.functions)}"
            self.functions[unique] = function
        self.weights = [1.0] * len(loaded) if weights is None else [float(w) for w in weights]
        if len(self.weights) != len(loaded):
            raise UserError(f"{len(loaded)} rewards but {len(self.weights)} reward_weights: give one weight for each")

    def __call__(self, columns: dict[str, list[Any]]) -> tuple[list[float], dict[str, list[float]]]:
        """Columns (with completions among them) -> the weighted sums and each function's values; NaN = left out."""
        number = len(columns["completions"])
        parts = {name: check(name, out, number) for name, out in self._call_all(columns).items()}
        sums = [sum(w * v for w, v in zip(self.weights, row, strict=True)) for row in zip(*parts.values(), strict=True)]
        return sums, parts

    def _call_all(self, columns: dict[str, list[Any]]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        waiting: dict[str, Any] = {}
        for name, function in self.functions.items():
            try:
                out = function(**columns)
            except Exception as error:
                raise RewardError(f"the reward function '{name}' raised {type(error).__name__}: {error}") from error
            (waiting if inspect.isawaitable(out) else results)[name] = out
        if waiting:
            results |= _await_all(waiting)
        return {name: results[name] for name in self.functions}


_LOOP: list[asyncio.AbstractEventLoop] = []


def _event_loop() -> asyncio.AbstractEventLoop:
    """One loop in a thread of its own for the whole run: it works inside a notebook's loop too, and what a reward keeps
    between steps (semaphores, HTTP clients) stays valid."""
    if not _LOOP:
        _LOOP.append(asyncio.new_event_loop())
        threading.Thread(target=_LOOP[0].run_forever, daemon=True).start()
    return _LOOP[0]


def _await_all(waiting: dict[str, Any]) -> dict[str, Any]:
    """Run coroutines at the same time."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*waiting.values(), return_exceptions=True)

    out = asyncio.run_coroutine_threadsafe(gather(), _event_loop()).result()
    for name, value in zip(waiting, out, strict=True):
        if isinstance(value, BaseException):
            raise RewardError(f"the reward function '{name}' raised {type(value).__name__}: {value}") from value
    return dict(zip(waiting, out, strict=True))


def check(name: str, out: Any, number: int) -> list[float]:
    """One finite number, None or NaN for each sample; None and NaN become NaN."""
    if hasattr(out, "tolist"):  # an array or a tensor
        out = out.tolist()
    if not isinstance(out, (list, tuple)):
        raise RewardError(
            f"the reward function '{name}' returned {type(out).__name__}, but must return a list of {number} numbers"
        )
    if len(out) != number:
        raise RewardError(f"the reward function '{name}' returned {len(out)} values for {number} samples")
    values = []
    for row, value in enumerate(out):
        if value is None:
            value = math.nan
        if not isinstance(value, (int, float)) and hasattr(value, "item"):
            value = value.item()
        if not isinstance(value, (int, float)) or math.isinf(value):
            raise RewardError(
                f"the reward function '{name}' returned {value!r} for sample {row}: expected a finite number or None"
            )
        values.append(float(value))
    return values


def reward_columns(
    columns: dict[str, list[Any]], texts: list[str], ids: list[list[int]], many: int = 1
) -> dict[str, list]:
    """What reward functions are called with: every column, each value `many` times, beside `many` texts an input."""
    repeated = {name: [v for v in values for _ in range(many)] for name, values in columns.items()}
    repeated["prompts"] = repeated.pop("prompt")
    repeated.pop("completion")
    return repeated | {"completions": texts, "completion_ids": ids}


@dataclass
class Scores:
    rewards: Tensor
    """(B, K), NaN where a sample is left out."""
    texts: list[list[str]]
    """B lists of K samples."""
    metrics: dict[str, float]


@dataclass
class Scorer:
    """What a method calls: samples and their batch -> rewards."""

    policy: Policy
    reward_set: RewardSet

    def __call__(self, samples: Samples, batch: Batch) -> Scores:
        size, many, _ = samples.ids.shape
        host, keep = samples.ids.tolist(), samples.keep_mask.tolist()
        ids = [
            [t for t, real in zip(host[b][k], keep[b], strict=True) if real] for b in range(size) for k in range(many)
        ]
        return self.score_ids(ids, batch, many)

    def score_ids(self, ids: list[list[int]], batch: Batch, many: int) -> Scores:
        """B * K token lists, the K samples of a row together."""
        started = time.perf_counter()
        texts = self.policy.decode(ids)
        sums, parts = self.reward_set(reward_columns(batch.columns, texts, ids, many))
        rewards = torch.tensor(sums).view(-1, many)
        metrics = describe(rewards)
        for name, values in parts.items():
            part = torch.tensor(values)
            metrics[f"rewards/{name}/mean"] = part.nanmean().item()
            metrics[f"rewards/{name}/std"] = _std(part.view(1, -1)).item()
        metrics["time/reward"] = time.perf_counter() - started
        grouped = [texts[i : i + many] for i in range(0, len(texts), many)]
        return Scores(rewards.to(batch.index.device), grouped, metrics)


def describe(rewards: Tensor) -> dict[str, float]:
    """What the log says about (B, K) rewards."""
    spread = _std(rewards)
    return {
        "reward": rewards.nanmean().item(),
        "reward_std": spread.mean().item(),
        "frac_reward_zero_std": equal_rewards(rewards).float().mean().item(),
        "frac_reward_none": rewards.isnan().float().mean().item(),
        "rows_without_reward": rewards.isnan().all(1).float().sum().item(),
    }


def _std(rewards: Tensor) -> Tensor:
    """(B, K) -> (B,) standard deviation of the samples that count."""
    counts = (~rewards.isnan()).sum(1)
    centred = (rewards - rewards.nanmean(1, keepdim=True)).nan_to_num(0.0)
    return (centred.square().sum(1) / (counts - 1).clamp(min=1)).sqrt()
