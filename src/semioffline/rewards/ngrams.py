"""Count the n-grams of many completions of few references, all at once.

Each step scores K samples against the references of one input. The words of all texts become one array of numbers. Only
words and n-grams of a text's own references count.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat

import numpy as np

LARGEST = 2**63 - 1
"""N-grams are numbered in 64 bits."""


class Counts:
    """Groups of references and their completions, as numbers: one number for each word that a reference of the group
    has."""

    def __init__(self, line: str, between: str, references: Sequence[int], completions: Sequence[int]):
        """line: one character for each word, and `between` after each text; first all references, group after group,
        then all completions. references, completions: number of texts of each kind in each group."""
        codes = np.frombuffer(line.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.ends = np.flatnonzero(codes == ord(between))
        self.starts = np.concatenate([[0], self.ends[:-1] + 1])
        self.lengths = self.ends - self.starts
        self.groups, self.references = len(references), sum(references)
        self.first = np.cumsum([0, *references[:-1]])
        """(groups,) the first reference of each."""
        groups = np.arange(self.groups)
        self.group = np.concatenate([np.repeat(groups, references), np.repeat(groups, completions)])
        """(texts,) the group of each text."""
        self._number(codes)

    def _number(self, codes: np.ndarray) -> None:
        """Number the words of each group's references from 1. All other words, and the separator between texts, get
        0."""
        self.text = np.repeat(np.arange(len(self.ends)), self.lengths + 1)
        owner = self.group[self.text]
        head = codes[: self.ends[self.references - 1] + 1]
        known = np.unique(head)
        compact = np.full(int(codes.max()) + 1, len(known))  # the last column: words of no reference
        compact[known] = np.arange(len(known))
        table = np.zeros((self.groups, len(known) + 1), dtype=np.int64)
        inside = head != codes[self.ends[0]]
        table[owner[: len(head)][inside], compact[head[inside]]] = 1
        table *= table.cumsum(axis=1)
        self.words = int(table.max(initial=0))
        self.numbers = table.take(compact.take(codes) + owner * table.shape[1])

    def hits(self, n: int) -> np.ndarray:
        """Return for each completion the sum over n-grams of min(count in completion, highest count in a reference)."""
        if n == 1:  # words have numbers of their own already
            return self._least(self.text, self.numbers, self.words + 1, first=1)
        size = max(len(self.numbers) - n + 1, 0)
        grams, whole, space = np.zeros(size, dtype=np.int64), np.ones(size, dtype=bool), 1
        for k in range(n):
            part = self.numbers[k : k + size]
            if space * (self.words + 1) * self.groups > LARGEST:
                distinct, grams = np.unique(grams, return_inverse=True)
                space = len(distinct)
            grams = grams * (self.words + 1) + part
            whole &= part > 0  # a gram with a foreign word, or over the end of a text, can match nothing
            space *= self.words + 1
        grams, text = grams[whole], self.text[:size][whole]
        group = self.group[text]
        grams += group * space
        known = np.unique(grams[text < self.references])  # group after group
        if not len(known):
            return np.zeros(len(self.ends) - self.references, dtype=np.int64)
        found = _find(known, grams, self.groups * space)
        right = found >= 0
        first = np.searchsorted(known, np.arange(self.groups) * space)
        local = (found - first[group])[right]  # among the n-grams of its own group
        return self._least(text[right], local, int(local.max()) + 1)

    def _least(self, text: np.ndarray, numbers: np.ndarray, width: int, first: int = 0) -> np.ndarray:
        """Return for each completion the sum over numbers, from `first` on, of min(count in it, highest count in a
        reference)."""
        texts = len(self.ends)
        table = np.bincount(text * width + numbers, minlength=texts * width).reshape(texts, width)[:, first:]
        most = np.maximum.reduceat(table[: self.references], self.first)
        return np.minimum(table[self.references :], most[self.group[self.references :]]).sum(axis=1)


def write(head: Sequence[Hashable], words: Iterable[Hashable], between: Hashable) -> tuple[str, str]:
    """Write texts with one character for each word and `between` after each text. Return those of the references (head)
    and of the completions.

    Only words of the references get their own characters: looking up a small table is several times faster than looking
    up all words that were ever seen.
    """
    known = {word: chr(n) for n, word in enumerate(dict.fromkeys(head), start=1)}
    line = "".join(map(known.__getitem__, head))
    return line + "".join(map(known.get, words, repeat("\0"))), known[between]


def _find(known: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Return the index of each value in the sorted array `known`, -1 if it is not there. All numbers are below
    `size`."""
    if size <= 1 << 20:
        table = np.full(size, -1, dtype=np.int64)
        table[known] = np.arange(len(known))
        return table[values]
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places, -1)
