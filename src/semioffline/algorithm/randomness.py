"""Random numbers that depend only on the seed, the step and the example."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Randomness:
    """Random numbers keyed by (seed, step, example).

    The same example at the same step gets the same numbers whatever batch, process or accumulation step it is in,
    and after a resume. They are drawn on the CPU, so that they do not depend on the device either.
    """

    seed: int
    step: int

    def key(self, purpose: str, example: int = 0) -> int:
        """Return 63 bits that identify seed, step, purpose and example."""
        packed = struct.pack("<qqq", self.seed, self.step, example) + purpose.encode()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1

    def uniform(self, purpose: str, examples: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return uniform numbers in [0, 1), one example after the other; sizes: how many for each example.

        The n-th number of an example does not depend on how many are drawn. The generator is SplitMix64 (Steele, Lea
        and Flood, 2014). It mixes a counter, so the numbers of all examples are computed at once. Starting one
        generator for each example would take longer than drawing.
        """
        counts = np.asarray(sizes, dtype=np.int64)
        ends = counts.cumsum()
        starts = _mix(examples.cpu().numpy().astype(np.uint64) * _STEP + np.uint64(self.key(purpose)))
        starts -= (ends - counts).astype(np.uint64) * _STEP  # one count goes through all examples
        bits = np.arange(1, counts.sum() + 1, dtype=np.uint64)
        bits *= _STEP
        bits += np.repeat(starts, counts)
        return torch.from_numpy((_mix(bits) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = [(np.uint64(shift), np.uint64(factor)) for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))]
_LAST = np.uint64(31)


def _mix(numbers: np.ndarray) -> np.ndarray:
    """Apply the mixing function of SplitMix64, from 64 bits to 64 bits. It changes `numbers` in place."""
    for shift, factor in _MIX:
        numbers ^= numbers >> shift
        numbers *= factor
    numbers ^= numbers >> _LAST
    return numbers
