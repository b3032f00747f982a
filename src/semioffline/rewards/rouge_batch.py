"""ROUGE of many completions against one reference, counted for all of them at once.

A step scores K samples of each reference. All their words become one array of numbers, of which only the words and
n-grams of the reference matter. The floating-point operations are those of one pair in the same order, so the values
are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rapidfuzz.distance import LCSseq

_SEPARATE = bytes(b if chr(b).isascii() and chr(b).isalnum() else ord(" ") for b in range(256))
_BETWEEN = b"|"
"""Stands between texts: no word has it."""


class Batch:
    """Completions and their one reference as numbers, one for each word (words of one stem share a number)."""

    def __init__(self, completions: Sequence[str], reference: str, vocabulary: Any):
        lowered = [text.lower().encode("ascii", "replace").translate(_SEPARATE) for text in (reference, *completions)]
        words = (b" " + _BETWEEN + b" ").join(lowered).split()
        self.line = "".join(map(vocabulary.__getitem__, words))
        codes = np.frombuffer(self.line.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ends = np.flatnonzero(codes == ord(vocabulary[_BETWEEN]))
        self.starts = np.concatenate([[0], ends + 1])
        self.ends = np.concatenate([ends, [len(codes)]])
        self.lengths = self.ends - self.starts  # of the reference, then of each completion
        self.text = np.repeat(np.arange(len(self.starts)), self.lengths + 1)[: len(codes)]
        own = np.unique(codes[: self.ends[0]])
        self.numbers = _find(own, codes)
        """(total,) each word's number among those of the reference, from 1 on; 0 for others and between texts."""
        self.words = len(own)

    def hits(self, n: int) -> np.ndarray:
        """For each completion, the sum over n-grams of min(count in completion, count in reference).

        n is at most 4: n-grams are numbered in 64 bits.
        """
        if not self.words or len(self.numbers) < n:
            return np.zeros(len(self.lengths) - 1, dtype=np.int64)
        size = len(self.numbers) - n + 1
        grams, whole = np.zeros(size, dtype=np.int64), np.ones(size, dtype=bool)
        for k in range(n):
            part = self.numbers[k : k + size]
            grams = grams * (self.words + 1) + part
            whole &= part > 0  # a gram with a foreign word, or over the end of a text, can match nothing
        grams, texts = grams[whole], self.text[:size][whole]
        known, counts = np.unique(grams[texts == 0], return_counts=True)
        found = _find(known, grams)
        table = np.bincount(texts * (len(known) + 1) + found, minlength=len(self.lengths) * (len(known) + 1))
        table = table.reshape(len(self.lengths), len(known) + 1)[1:, 1:]
        return np.minimum(table, counts).sum(axis=1)

    def common(self) -> np.ndarray:
        """For each completion, the length of its longest common subsequence with the reference."""
        texts = [self.line[a:b] for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]
        reference, similarity = texts[0], LCSseq.similarity
        return np.array([similarity(reference, text) for text in texts[1:]], dtype=np.int64)


def _find(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The place of each value in the sorted array `known`, from 1 on; 0 where it is not there."""
    if not len(known):
        return np.zeros(len(values), dtype=np.int64)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places + 1, 0)


def f_measures(
    completions: Sequence[str], reference: str, variants: Sequence[str], vocabulary: Callable[[], Any]
) -> list[np.ndarray]:
    """For each variant, F = 2PR / (P + R) of every completion; 0 without hits. As rouge_score computes it."""
    batch = Batch(completions, reference, vocabulary())
    found = []
    for variant in variants:
        n = 1 if variant == "rougeL" else int(variant[5:])
        hits = batch.common() if variant == "rougeL" else batch.hits(n)
        some = hits > 0
        totals = np.where(some, batch.lengths[1:] - n + 1, 1)
        precision, recall = hits / totals, hits / max(batch.lengths[0] - n + 1, 1)
        found.append(2 * precision * recall / np.where(some, precision + recall, 1.0))
    return found
