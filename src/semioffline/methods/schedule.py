"""Settings that change over training."""

import math
from collections.abc import Sized

from semioffline.config import MethodConfig
from semioffline.errors import UserError


def training_steps(config: MethodConfig, examples: Sized) -> int:
    """Optimizer steps of a run, counted as transformers.Trainer does."""
    if config.max_steps > 0:
        return config.max_steps
    rounded = math.floor if config.dataloader_drop_last else math.ceil
    batches = rounded(rounded(len(examples) / config.train_batch_size) / config.world_size)
    updates = max(math.ceil(batches / config.gradient_accumulation_steps), 1)
    return math.ceil(config.num_train_epochs * updates)


def scheduled_rate(first: float, last: float | None, step: int, total_steps: int) -> float:
    """A rate that goes linearly from `first` at the first to `last` at the last step; `first` when `last` is None."""
    if last is None:
        return first
    if total_steps <= 0:
        raise UserError("mask_rate_end needs the number of training steps: set max_steps")
    done = min(step / max(total_steps - 1, 1), 1.0)
    return (1.0 - done) * first + done * last
