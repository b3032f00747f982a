"""Count what a method costs, by hooks on the model: decoder rows, encoder rows, calls and tokens. Also measure
memory."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn


class Meter:
    """Counts every call of the decoder and the encoder.

    One row through the decoder is one forward pass (FP). A token generated with a key-value cache is one, too, so
    batching does not change the count. Rows that sample or score trajectories (purpose "rl") are counted separately
    from the MLE row. Calls without `announce`, such as those of `generate`, count as RL rows.
    """

    def __init__(self, decoder: nn.Module, encoder: nn.Module | None):
        self.counts: Counter[str] = Counter()
        self._announced: Counter[str] | None = None
        self._paused = False
        decoder.register_forward_pre_hook(self._on_decoder, with_kwargs=True)
        if encoder is not None:
            encoder.register_forward_pre_hook(self._on_encoder, with_kwargs=True)

    def _on_decoder(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._paused:
            return
        batch, length = _input_shape(args, kwargs)
        self.counts["calls"] += 1
        self.counts["tokens"] += batch * length
        self.counts.update(self._announced if self._announced is not None else {"rl_rows": batch})

    def _on_encoder(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._paused:
            return
        batch, length = _input_shape(args, kwargs)
        self.counts["encoder_rows"] += batch
        self.counts["tokens"] += batch * length

    @contextmanager
    def announce(self, purposes: list[str], batch_size: int) -> Iterator[None]:
        """Count the next decoder call as one row for each purpose ("mle", "rl", "grad") and example, however they are
        packed."""
        self._announced = Counter()
        for purpose in purposes:
            self._announced[f"{purpose}_rows"] += batch_size
        try:
            yield
        finally:
            self._announced = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside the block, such as an evaluation, which is not a cost of training."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def add_inputs(self, number: int) -> None:
        self.counts["inputs"] += number

    def per_input(self) -> dict[str, float]:
        """Return averages over the inputs so far. forward_passes: RL rows, or MLE rows if there are no RL rows.
        reward_calls: distinct texts that were scored, if the host computed the rewards."""
        inputs = max(self.counts["inputs"], 1)
        rows = self.counts["rl_rows"] or self.counts["mle_rows"]
        names = ("mle_rows", "grad_rows", "encoder_rows", "calls", "tokens")
        calls = ("reward_calls",) if "reward_calls" in self.counts else ()  # none on a GPU, which reads no texts
        return {"forward_passes": rows / inputs} | {name: self.counts[name] / inputs for name in (*names, *calls)}


def _input_shape(args: tuple, kwargs: dict) -> tuple[int, int]:
    for value in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args[:1]):
        if value is not None:
            return value.shape[0], value.shape[1]
    raise RuntimeError("the decoder was called without input_ids or inputs_embeds")


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Measure the peak memory in megabytes: that of the GPU if there is one, else the resident memory of this process,
    sampled often."""
    found: dict[str, float] = {}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        yield found
        found["mb"] = torch.cuda.max_memory_allocated() / 2**20
        return
    status, done = Path("/proc/self/statm"), threading.Event()
    if not status.exists():
        yield found
        return
    page = os.sysconf("SC_PAGE_SIZE")

    def watch() -> None:
        while not done.wait(0.05):
            found["mb"] = max(found.get("mb", 0.0), int(status.read_text(encoding="utf-8").split()[1]) * page / 2**20)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
