"""Settings that change over training."""

import math
from collections.abc import Sized
from typing import Literal

from semioffline.config import MethodConfig
from semioffline.errors import UserError

Decay = Literal["linear", "exponential", "inverse_sigmoid", "constant"]


def training_steps(config: MethodConfig, examples: Sized) -> int:
    """Return the number of optimizer steps of a run, counted as transformers.Trainer does."""
    if config.max_steps > 0:
        return config.max_steps
    rounded = math.floor if config.dataloader_drop_last else math.ceil
    batches = rounded(rounded(len(examples) / config.train_batch_size) / config.world_size)
    updates = max(math.ceil(batches / config.gradient_accumulation_steps), 1)
    return math.ceil(config.num_train_epochs * updates)


def scheduled_rate(first: float, last: float | None, step: int, total_steps: int) -> float:
    """Return a rate that changes linearly from `first` at the first step to `last` at the last one; `first` if `last`
    is None."""
    if last is None:
        return first
    if total_steps <= 0:
        raise UserError("mask_rate_end needs the number of training steps: set max_steps")
    done = min(step / max(total_steps - 1, 1), 1.0)
    return (1.0 - done) * first + done * last


def decayed_rate(decay: Decay, end: float, step: int, total_steps: int) -> float:
    """Return a rate that falls from about 1 to `end` at the last step: the decays of Bengio et al. 2015, section 2.4.

    linear: 1 - c i. exponential: k**i. inverse_sigmoid: k / (k + exp(i / k)), which starts at k / (k + 1). c and k are
    chosen so that the last step i has `end`. constant: `end` from the first step.
    """
    last = max(total_steps - 1, 1)
    i = min(step, last)
    if decay == "constant":
        return end
    if decay == "linear":
        return 1.0 - (1.0 - end) * i / last
    if decay == "exponential":
        return end ** (i / last)
    low, high = 1e-3 * last, 1e3 * (last + 1.0)  # the rate of the last step grows with k
    while high - low > 1e-9 * high:
        k = (low + high) / 2
        low, high = (k, high) if _inverse_sigmoid(k, last) < end else (low, k)
    return _inverse_sigmoid((low + high) / 2, i)


def _inverse_sigmoid(k: float, i: int) -> float:
    return 1.0 / (1.0 + math.exp(min(i / k, 700.0)) / k)
