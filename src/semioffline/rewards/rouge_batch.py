"""ROUGE of many completions of few references, counted for all of them at once.

A step scores K samples of each reference. The words of all texts become one array of numbers, of which only the words
and n-grams of each text's own reference matter. The floating-point operations are those of one pair in the same order,
so the values are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
from rapidfuzz.distance import LCSseq

_BETWEEN, _MARK = b"|", " \0 "
"""Stands after every text, and what stands there before it is read: no word has either."""
_SEPARATE = _BETWEEN + bytes(b if chr(b).isascii() and chr(b).isalnum() else ord(" ") for b in range(1, 256))


class Batch:
    """References and their completions as numbers, one for each word (words of one stem share a number)."""

    def __init__(self, references: Sequence[str], completions: Sequence[Sequence[str]], vocabulary: Any):
        """completions: for each reference, its own."""
        self.line, between = _write(_words(references), _words(chain(*completions)), vocabulary)
        codes = np.frombuffer(self.line.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.ends = np.flatnonzero(codes == ord(between))
        self.starts = np.concatenate([[0], self.ends[:-1] + 1])
        self.lengths = self.ends - self.starts
        self.references = len(references)
        self.group = np.concatenate(
            [np.arange(self.references), np.repeat(np.arange(self.references), [len(own) for own in completions])]
        )
        """(texts,) the reference of each text; a reference's own is itself."""
        self._number(codes)

    def _number(self, codes: np.ndarray) -> None:
        """Number the words of each reference from 1 on; every other word, and what stands between texts, is 0."""
        self.text = np.repeat(np.arange(len(self.ends)), self.lengths + 1)
        owner = self.group[self.text]
        head = codes[: self.ends[self.references - 1] + 1]
        known = np.unique(head)
        compact = np.full(int(codes.max()) + 1, len(known))  # the last column: words of no reference
        compact[known] = np.arange(len(known))
        table = np.zeros((self.references, len(known) + 1), dtype=np.int64)
        inside = head != codes[self.ends[0]]
        table[owner[: len(head)][inside], compact[head[inside]]] = 1
        table *= table.cumsum(axis=1)
        self.words = int(table.max(initial=0))
        self.numbers = table.take(compact.take(codes) + owner * table.shape[1])

    def hits(self, n: int) -> np.ndarray:
        """For each completion, the sum over n-grams of min(count in completion, count in its reference).

        n is at most 4: n-grams are numbered in 64 bits.
        """
        texts = len(self.ends)
        if n == 1:  # words have numbers of their own already
            return self._least(self.text, self.numbers, self.words + 1, first=1)
        size = max(len(self.numbers) - n + 1, 0)
        grams, whole = np.zeros(size, dtype=np.int64), np.ones(size, dtype=bool)
        for k in range(n):
            part = self.numbers[k : k + size]
            grams = grams * (self.words + 1) + part
            whole &= part > 0  # a gram with a foreign word, or over the end of a text, can match nothing
        grams, text = grams[whole], self.text[:size][whole]
        group, space = self.group[text], (self.words + 1) ** n
        grams += group * space
        known = np.unique(grams[text < self.references])  # reference after reference
        if not len(known):
            return np.zeros(texts - self.references, dtype=np.int64)
        found = _find(known, grams, self.references * space)
        right = found >= 0
        first = np.searchsorted(known, np.arange(self.references) * space)
        local = (found - first[group])[right]  # among the n-grams of its own reference
        return self._least(text[right], local, int(local.max()) + 1)

    def _least(self, text: np.ndarray, numbers: np.ndarray, width: int, first: int = 0) -> np.ndarray:
        """For each completion, the sum over numbers, from `first` on, of min(count in it, count in its reference)."""
        texts = len(self.ends)
        table = np.bincount(text * width + numbers, minlength=texts * width).reshape(texts, width)[:, first:]
        return np.minimum(table[self.references :], table[self.group[self.references :]]).sum(axis=1)

    def common(self) -> np.ndarray:
        """For each completion, the length of its longest common subsequence with its reference."""
        texts = [self.line[a:b] for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]
        pairs = zip(self.group[self.references :].tolist(), texts[self.references :], strict=True)
        similarity = LCSseq.similarity
        return np.array([similarity(texts[group], text) for group, text in pairs], dtype=np.int64)

    def f_measures(self, variant: str) -> np.ndarray:
        """F = 2PR / (P + R) of every completion, 0 without hits; in rouge_score's order of operations."""
        n = 1 if variant == "rougeL" else int(variant[5:])
        hits = self.common() if variant == "rougeL" else self.hits(n)
        some = hits > 0
        totals = np.where(some, self.lengths[self.references :] - n + 1, 1)
        wanted = np.where(some, self.lengths[self.group[self.references :]] - n + 1, 1)
        precision, recall = hits / totals, hits / wanted
        return 2 * precision * recall / np.where(some, precision + recall, 1.0)


def _words(texts: Iterable[str]) -> list[bytes]:
    """The words of all texts, and what stands between texts after each."""
    texts = list(texts)
    line = _MARK.join([*texts, ""])
    if line.count("\0") > len(texts):
        line = _MARK.join([*(text.replace("\0", " ") for text in texts), ""])
    return line.lower().encode("ascii", "replace").translate(_SEPARATE).split()


def _write(head: list[bytes], words: list[bytes], vocabulary: Any) -> tuple[str, str]:
    """One character for each word of the references (head) and of the completions; and that between texts.

    Without stems only words of the references need characters of their own: a table of a few words is looked up
    several times faster than one of all words that were ever seen.
    """
    if vocabulary.has_stems:
        try:
            line = "".join(map(vocabulary.get, chain(head, words)))
        except TypeError:  # a word that has none yet
            line = "".join(map(vocabulary.__getitem__, chain(head, words)))
        return line, vocabulary[_BETWEEN]
    known = {word: chr(n) for n, word in enumerate(dict.fromkeys(head), start=1)}
    return "".join(map(known.get, chain(head, words), repeat("\0"))), known[_BETWEEN]


def _find(known: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """The place of each value in the sorted array `known`, -1 where it is not there. All numbers are below `size`."""
    if size <= 1 << 20:
        table = np.full(size, -1, dtype=np.int64)
        table[known] = np.arange(len(known))
        return table[values]
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places, -1)
