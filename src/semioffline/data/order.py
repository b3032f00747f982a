"""The order of rows in an epoch, and repeated optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Order(Protocol):
    """Row numbers in an order that depends on the epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


OrderT = TypeVar("OrderT", bound=Order)


class Shuffled(Sampler[int]):
    """Random order, the same in every process and after a resume."""

    def __init__(self, number: int, seed: int):
        self.number, self.seed, self.epoch = number, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng((self.seed, self.epoch)).permutation(self.number).tolist())


class Sequential(Shuffled):
    """The order of the data."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.number))


class Repeated(Sampler[int]):
    """A sampler that repeats the rows of each optimizer step `times` times in a row.

    An epoch ends with a whole step, which is filled up with the first rows.
    """

    def __init__(self, rows: Order, number: int, together: int, times: int):
        """number: of rows. together: rows in an optimizer step, over all micro-batches and processes."""
        self.rows, self.number, self.together, self.times = rows, number, together, times

    def set_epoch(self, epoch: int) -> None:
        self.rows.set_epoch(epoch)

    def __len__(self) -> int:
        return -(-self.number // self.together) * self.together * self.times

    def __iter__(self) -> Iterator[int]:
        order = list(self.rows)
        for start in range(0, len(order), self.together):
            step = [order[n % len(order)] for n in range(start, start + self.together)]
            yield from step * self.times


class Epochs(TrainerCallback):
    """Tells the sampler its epoch. Without it, a run with several processes that resumes within an epoch would have
    another order."""

    sampler: Order | None = None

    def follow(self, sampler: OrderT) -> OrderT:
        self.sampler = sampler
        return sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.sampler is not None:
            self.sampler.set_epoch(int(state.epoch or 0))
