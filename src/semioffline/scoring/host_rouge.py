"""Compute ROUGE on the host from token ids, without decoding texts: the samples of a row share all visible tokens.

The text of each token is split once into parts: runs of letters and digits. A part that touches no other part is a
word, and a table says which word of the references it is. Parts that touch make a word together. They are read letter
by letter, if the first of them can begin a word of a reference. Counting and floating-point operations are those of
`rewards.rouge_batch`: the values are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from semioffline.rewards.rouge import MANY, Rouge, covers
from semioffline.rewards.rouge_batch import RougeBatch
from semioffline.scoring.fast_decode import FastDecoder
from semioffline.scoring.worker import Group, deal

_HALVES = (b"\xe2", b"\xe2\x84", b"\xc4"), (b"\x84", b"\xaa", b"\xb0")
"""First and further bytes of the Kelvin sign and the dotted capital I, the two letters outside ASCII whose lower case
contains an ASCII letter. If tokens may have spelled one together, the text must be read."""
_BETWEEN = "\uffff"


def on_host(function: Any, decoder: FastDecoder | None) -> HostRouge | None:
    """Return an object that computes this reward from token ids; None if the reward must read texts."""
    if type(function) is not Rouge or function.use_stemmer or not all(map(covers, function.variants)):
        return None
    if function.multi_reference != "best":
        return None
    return None if decoder is None or not decoder.is_fast else HostRouge(function.variants, decoder)


class HostRouge:
    """Computes, from groups, draws and references, the mean F-measure of `variants` for each sample."""

    def __init__(self, variants: Sequence[str], decoder: FastDecoder):
        self.variants = variants
        lines = [_read(piece) for piece in decoder.pieces]
        parts = [line.split() for line in lines]
        touches = [not decoder.between and bool(own) for own in parts]
        self.words = list(dict.fromkeys(word for own in parts for word in own))
        self.numbers = {word: n for n, word in enumerate(self.words)}
        self.counts = np.array([len(own) for own in parts])
        self.firsts = self.counts.cumsum() - self.counts
        self.parts = np.array([self.numbers[word] for own in parts for word in own], np.int64)
        pairs = list(zip(lines, touches, strict=True))
        self.starts = np.array([touch and line[:1] != b" " for line, touch in pairs])
        self.ends = np.array([touch and line[-1:] != b" " for line, touch in pairs])
        self.half_ends = np.array([piece.endswith(_HALVES[0]) for piece in decoder.pieces])
        self.half_starts = np.array([piece.startswith(_HALVES[1]) for piece in decoder.pieces])
        self.blank = np.array([not line for line in lines])
        """Tokens without text: the tokens before and after them touch."""

    def __call__(
        self, groups: Sequence[Group], draws: np.ndarray, references: Sequence[Sequence[str]]
    ) -> np.ndarray | None:
        """Return (samples,) values, group after group; None if the texts are needed."""
        if min(group.many for group in groups) < MANY:
            return None
        numbers = [len(references[group.row]) for group in groups]
        texts = [_plain(reference).split() for group in groups for reference in references[group.row]]
        known = {word: n for n, word in enumerate(dict.fromkeys(word for own in texts for word in own), start=1)}
        if len(known) >= 0xD800:  # characters from there on are halves of others
            return None
        codes, can_begin = np.zeros(len(self.words), np.uint32), np.zeros(len(self.words), bool)
        for word, code in known.items():
            if (number := self.numbers.get(word)) is not None:
                codes[number] = code
            begins = (self.numbers.get(word[:length]) for length in range(1, len(word)))
            can_begin[[number for number in begins if number is not None]] = True
        head = "".join("".join(chr(known[word]) for word in own) + _BETWEEN for own in texts)
        lines = [head]
        for group, own, number in zip(groups, deal(groups, draws), numbers, strict=True):
            line = self._line(group, own, codes, can_begin, known)
            if line is None:
                return None
            lines += [line] * number
        shapes = [(number, group.many) for group, number in zip(groups, numbers, strict=True)]
        batch = RougeBatch("".join(lines), _BETWEEN, [many for number, many in shapes for _ in range(number)])
        values = [_best(batch.f_measures(variant), shapes) for variant in self.variants]
        return reduce(add, values) / len(values)

    def _line(
        self, group: Group, draws: np.ndarray, codes: np.ndarray, can_begin: np.ndarray, known: dict[bytes, int]
    ) -> str | None:
        """Encode K samples as one string: one character per word, and _BETWEEN after each sample."""
        tokens = np.repeat(group.static[None].astype(np.int64), group.many, axis=0)  # (K, T)
        tokens[:, group.places] = draws.T
        if tokens.max(initial=0) >= len(self.counts):  # an id without a token
            return None
        before, after = self._neighbours(tokens), tokens[:, 1:]
        if (self.half_ends[before] & self.half_starts[after]).any():
            return None
        joined = np.zeros(tokens.shape, bool)
        joined[:, 1:] = self.starts[after] & self.ends[before]
        counts = self.counts[tokens]
        flat, total = counts.ravel(), int(counts.sum())
        firsts = flat.cumsum() - flat  # of each token, where its first part is
        parts = self.parts[np.repeat(self.firsts[tokens.ravel()] - firsts, flat) + np.arange(total)]
        found = codes[parts]
        if joined.any():
            begins = np.delete(np.arange(total), firsts[joined.ravel()])
            found, ends = found[begins], np.append(begins[1:], total)
            longer = np.flatnonzero(ends - begins > 1)
            found[longer] = 0
            words = self.words
            for n in longer[can_begin[parts[begins[longer]]]].tolist():
                found[n] = known.get(b"".join([words[part] for part in parts[begins[n] : ends[n]].tolist()]), 0)
        return _with_ends(found, counts.sum(1) - joined.sum(1))

    def _neighbours(self, tokens: np.ndarray) -> np.ndarray:
        """Return (K, T - 1), the last token with a text before each token but the first."""
        before = tokens[:, :-1]
        nothing = self.blank[before]
        if not nothing[:, 1:].any():
            return before
        last = np.maximum.accumulate(np.where(nothing, 0, np.arange(before.shape[1])), axis=1)
        return np.take_along_axis(before, last, axis=1)


def _best(values: np.ndarray, shapes: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return for each sample the highest value over references. values: of (references, samples), group after group."""
    ends = np.cumsum([number * many for number, many in shapes])
    parts = zip(np.split(values, ends[:-1]), shapes, strict=True)
    return np.concatenate([part.reshape(shape).max(axis=0) for part, shape in parts])


def _with_ends(found: np.ndarray, lengths: np.ndarray) -> str:
    """Encode numbers as characters, with _BETWEEN after each text of these lengths."""
    line = np.full(len(found) + len(lengths), ord(_BETWEEN), np.uint32)
    inside = np.ones(len(line), bool)
    inside[lengths.cumsum() + np.arange(len(lengths))] = False
    line[inside] = found
    return line.tobytes().decode("utf-32-le")


def _read(piece: bytes) -> bytes:
    """Keep lower-case letters and digits of a token's text; all else becomes a space. Bytes that are only part of a
    character count as part of a non-letter."""
    try:
        return _plain(piece.decode())
    except UnicodeDecodeError:
        return piece.translate(_LETTERS).lower()


def _plain(text: str) -> bytes:
    return text.lower().encode("ascii", "replace").translate(_LETTERS)


_LETTERS = bytes(b if chr(b).isascii() and chr(b).isalnum() else ord(" ") for b in range(256))
