"""Compute ROUGE of many completions of few references, all at once.

The floating-point operations are those of one pair in the same order, so the values are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from rapidfuzz.distance import LCSseq
from rapidfuzz.process import cdist

from semioffline.rewards.ngrams import Counts, write

_BETWEEN, _MARK = b"|", " \0 "
"""Stands after every text, and what stands there before it is read: no word has either."""
_SEPARATE = _BETWEEN + bytes(b if chr(b).isascii() and chr(b).isalnum() else ord(" ") for b in range(1, 256))


class RougeBatch(Counts):
    """References and their completions as numbers, one for each word (words of one stem share a number)."""

    def __init__(self, line: str, between: str, completions: Sequence[int]):
        """line: one character for each word, and `between` after each text; all references, then the completions of
        each. completions: number of completions of each reference."""
        self.texts, self.completions = line.split(between)[:-1], completions
        super().__init__(line, between, [1] * len(completions), completions)

    @classmethod
    def of_texts(cls, references: Sequence[str], completions: Sequence[Sequence[str]], vocabulary: Any) -> RougeBatch:
        """Make a batch of texts. completions: a list for each reference."""
        line, between = _write(_words(references), _words(chain(*completions)), vocabulary)
        return cls(line, between, [len(own) for own in completions])

    def common(self) -> np.ndarray:
        """Return for each completion the length of its longest common subsequence with its reference."""
        ends = self.references + np.cumsum([0, *self.completions])
        found = [
            cdist([reference], self.texts[start:end], scorer=LCSseq.similarity, dtype=np.int64)[0]
            for reference, start, end in zip(self.texts, ends.tolist(), ends[1:].tolist(), strict=False)
        ]
        return np.concatenate(found)

    def f_measures(self, variant: str) -> np.ndarray:
        """Return F = 2PR / (P + R) of every completion, 0 without hits, in rouge_score's order of operations."""
        n = 1 if variant == "rougeL" else int(variant[5:])
        hits = self.common() if variant == "rougeL" else self.hits(n)
        some = hits > 0
        totals = np.where(some, self.lengths[self.references :] - n + 1, 1)
        wanted = np.where(some, self.lengths[self.group[self.references :]] - n + 1, 1)
        precision, recall = hits / totals, hits / wanted
        return 2 * precision * recall / np.where(some, precision + recall, 1.0)


def _words(texts: Iterable[str]) -> list[bytes]:
    """Return the words of all texts, with a separator after each text."""
    texts = list(texts)
    line = _MARK.join([*texts, ""])
    if line.count("\0") > len(texts):
        line = _MARK.join([*(text.replace("\0", " ") for text in texts), ""])
    return line.lower().encode("ascii", "replace").translate(_SEPARATE).split()


def _write(head: list[bytes], words: list[bytes], vocabulary: Any) -> tuple[str, str]:
    """Write texts with one character for each word and a separator after each text. Return those of the references
    (head) and of the completions."""
    if not vocabulary.has_stems:
        return write(head, words, _BETWEEN)
    try:
        line = "".join(map(vocabulary.get, chain(head, words)))
    except TypeError:  # a word that has none yet
        line = "".join(map(vocabulary.__getitem__, chain(head, words)))
    return line, vocabulary[_BETWEEN]
