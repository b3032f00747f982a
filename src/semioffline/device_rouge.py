"""ROUGE of samples where they are: counted from token ids on the model's device, so that no step waits for the host.

Each token's text is split into parts, runs of letters and digits. Parts that touch make a word. The number of a word is
a polynomial in its letters modulo 2^64, so that the numbers of words follow from those of their parts; the words of
references get theirs on the host. Everything else is comparing numbers. The floating-point operations are those of
`rewards.rouge` in the same order: the values are the same to the last bit, unless two words happen to have the same
number (hardly ever, and never one and the same), or bytes of several tokens spell the Kelvin sign or a dotted capital
I, which are read as spaces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semioffline.fast_decode import FastDecoder
from semioffline.layout import round_up, widen
from semioffline.rewards.rouge import Rouge
from semioffline.types import Samples, send

MOST_PARTS = 4
"""In one token. A vocabulary with longer ones is left to the host."""
BITS = 62
"""Words of the shorter of two texts: their places are the bits of a number."""
LONGEST = 512
"""Letters of a word."""
MULTIPLE = 8
"""Sizes are multiples of this where graphs are replayed."""
MOST_AT_ONCE = 1 << 25
"""Pairs of words that are compared at once: 17 bytes each."""
NO_REFERENCE = 1
"""Stands where a reference has no more words; where a sample has none there is 0. No word has these numbers."""
_SIZE = 1 << 64
_RANDOM = random.Random(20230523)
_BASE = _RANDOM.randrange(1 << 62, _SIZE) | 1
_LETTER = [_RANDOM.randrange(1, _SIZE) for _ in range(256)]
_LOWER = bytes(ord(chr(b).lower()) if b < 128 and chr(b).isalnum() else ord(" ") for b in range(256))
_KELVIN, _DOTTED_I = "\N{KELVIN SIGN}".encode(), "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}".encode()
"""The only letters outside ASCII whose lower case has a letter inside it."""


def _signed(number: int) -> int:
    number %= _SIZE
    return number - _SIZE if number >= _SIZE >> 1 else number


@lru_cache(maxsize=1 << 16)
def _number(word: bytes) -> int:
    number = 0
    for letter in word:
        number = number * _BASE + _LETTER[letter]
    return _signed(number)


def _read_bytes(text: bytes) -> bytes:
    """Lower-case letters and digits; a space for every other byte."""
    return text.replace(_KELVIN, b"k").replace(_DOTTED_I, b"i ").translate(_LOWER)


@lru_cache(maxsize=1 << 16)
def _numbers(text: str) -> np.ndarray | None:
    """Of a reference's words; None where one of them is too long."""
    words = _read_bytes(text.encode("utf-8", "replace")).split()
    if max(map(len, words), default=0) > LONGEST:
        return None
    return np.array([_number(word) for word in words], np.int64)


def on_device(
    function: Any, decoder: FastDecoder, device: torch.device, replay: Callable[..., Any] | None = None
) -> DeviceRouge | None:
    """What gives this reward function's values on the device; None where nothing does.

    replay: makes a graph of a function of tensors; sizes are then rounded up, so that there are few.
    """
    if type(function) is not Rouge or function.use_stemmer or function.multi_reference != "best":
        return None
    if "rougeLsum" in function.variants:
        return None
    letters = [_read_bytes(piece) for piece in decoder.pieces]
    if not decoder.is_fast or max(len(line.split()) for line in letters) > MOST_PARTS:
        return None
    return DeviceRouge(function.variants, letters, decoder.between, device, replay)


class DeviceRouge:
    """(samples, references) -> the mean F-measure of `variants` for each sample; the best of several references."""

    def __init__(
        self,
        variants: Sequence[str],
        letters: Sequence[bytes],
        between: bytes,
        device: torch.device,
        replay: Callable[..., Any] | None = None,
    ):
        """letters: of the text of each token; between: what stands between them; replay: as in `on_device`."""
        self.variants = list(variants)
        self.multiple = 1 if replay is None else MULTIPLE
        self._run = self._values if replay is None else replay(self._values)
        letters = [*letters, b""]  # the last are those of ids without a token: a model may have more of them
        parts = [line.split() for line in letters]
        self.most = max(map(len, parts), default=0)
        size = max(self.most, 1)
        numbers, lengths = np.zeros((2, len(letters), size), np.int64)
        edges = np.zeros((len(letters), 3), bool)
        for token, (line, own) in enumerate(zip(letters, parts, strict=True)):
            numbers[token, : len(own)] = [_number(part) for part in own]
            lengths[token, : len(own)] = [len(part) for part in own]
            touches = bool(own) and not between
            edges[token] = touches and line[:1] != b" ", touches and line[-1:] != b" ", not line
        self.parts = lengths.astype(bool).sum(1)
        powers = [1]
        for _ in range(LONGEST):
            powers.append(powers[-1] * _BASE % _SIZE)
        self._numbers, self._lengths, self._edges, self._powers = (
            torch.from_numpy(array).to(device)
            for array in (numbers, lengths, edges, np.array(list(map(_signed, powers)), np.int64))
        )
        self.device = device

    def __call__(self, samples: Samples, references: Sequence[Sequence[str]]) -> Tensor | None:
        """(B, K) values in float64; None where only the host can tell."""
        asked = _read(references, self.multiple)
        if asked is None:
            return None
        most = self._most_words(samples)
        if min(most, asked[0].shape[-1]) > BITS and "rougeL" in self.variants:
            return None
        theirs, lengths = (send(tensor, self.device) for tensor in asked)  # (B, Q, R), (B, Q)
        length = round_up(samples.text.ids.shape[1], self.multiple)
        ids = widen(samples.ids_on(self.device), length, 0).clamp(max=len(self.parts) - 1)
        keep = send(widen(samples.text.keep_mask, length, False), self.device)
        return self._run(ids, keep, theirs, lengths, torch.empty(most, device=self.device))

    def _values(self, ids: Tensor, keep: Tensor, theirs: Tensor, lengths: Tensor, most: Tensor) -> Tensor:
        """most: as long as no sample has more words."""
        words, counts = self._read_samples(ids, keep, len(most))
        at_once = max(MOST_AT_ONCE // (theirs.numel() * len(most)), 1)
        parts = zip(words.split(at_once, dim=1), counts.split(at_once, dim=1), strict=True)
        return torch.cat([self._measure(own, number, theirs, lengths) for own, number in parts], dim=1)

    def _measure(self, words: Tensor, counts: Tensor, theirs: Tensor, lengths: Tensor) -> Tensor:
        """(B, K) values of samples of (B, K, W) words against (B, Q, R)."""
        same = words[:, :, None, :, None] == theirs[:, None, :, None, :]  # (B, K, Q, W, R)
        values = []
        for variant in self.variants:
            n = 1 if variant == "rougeL" else int(variant[5:])
            hits = _common(same) if variant == "rougeL" else _hits(same, theirs, n)
            values.append(_f_measure(hits, counts[:, :, None] - n + 1, lengths[:, None] - n + 1, lengths[:, None] >= 0))
        sums = reduce(add, values)
        return sums / torch.full_like(sums, len(values))  # a device divides by a plain number as it likes

    def _read_samples(self, ids: Tensor, keep: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """(B, K, W) the numbers of each sample's words, at most so many, and (B, K) how many they are."""
        size, many, length = ids.shape
        edges = self._edges[ids]  # (B, K, T, 3)
        joins, ends, blank = edges.unbind(-1)
        blank = blank | ~keep[:, None]
        lengths = self._lengths[ids] * keep[:, None, :, None]  # (B, K, T, S)
        at = torch.arange(length, device=self.device)
        last = torch.where(blank, -1, at).cummax(-1).values  # the last token up to here that has a text
        before = torch.cat([last.new_full((size, many, 1), -1), last[..., :-1]], dim=-1)
        touched = ends.gather(-1, before.clamp(min=0)) & (before >= 0)
        there = lengths > 0
        new = there.clone()
        new[..., 0] &= ~(joins & touched)
        shape = (size, many, -1)
        word = (new.reshape(shape).cumsum(-1) - 1).clamp(min=0)  # of each part
        own_length = lengths.reshape(shape)
        upto = own_length.cumsum(-1)
        ends_at = upto.new_zeros(size, many, most).scatter_reduce(-1, word, upto, "amax")
        exponent = (ends_at.gather(-1, word) - upto).clamp(max=LONGEST)
        number = self._numbers[ids].reshape(shape) * self._powers[exponent] * there.reshape(shape)
        counts = new.reshape(shape).sum(-1)
        words = number.new_zeros(size, many, most).scatter_add(-1, word, number)
        return words, counts

    def _most_words(self, samples: Samples) -> int:
        """What no sample has more words than: known without the draws."""
        text = samples.text
        shown = self.parts[np.minimum(text.ids.cpu().numpy(), len(self.parts) - 1)] * text.keep_mask.cpu().numpy()
        hidden = samples.hidden.cpu().numpy().reshape(-1, *shown.shape)
        return round_up(max(int(np.where(hidden, self.most, shown).sum(-1).max()), 1), self.multiple)


def _hits(same: Tensor, theirs: Tensor, n: int) -> Tensor:
    """(B, K, Q) sums over n-grams of min(count in the sample, count in the reference): of the c occurrences that an
    n-gram has in the reference, the sample has those before which there are fewer than it has itself."""
    found = _grams(same, n).sum(-2)  # (B, K, Q, R') how often the sample has the n-gram that begins there
    before = _grams(theirs[..., :, None] == theirs[..., None, :], n).tril(-1).sum(-1)  # (B, Q, R') in the reference
    return (found > before[:, None]).sum(-1)


def _grams(same: Tensor, n: int) -> Tensor:
    """Equal words -> equal n-grams, by where they begin."""
    grams = same
    for k in range(1, n):
        grams = grams[..., :-1, :-1] & same[..., k:, k:]
    return grams


def _common(same: Tensor) -> Tensor:
    """(B, K, Q) lengths of longest common subsequences, bit-parallel (Hyyrö, 2004): a step for each word of one text,
    whose matches in the other, as long as there are bits, are the bits of a number."""
    own, theirs = same.shape[-2:]
    if own > BITS or own < theirs <= BITS:
        same = same.transpose(-1, -2)
    bits = torch.arange(same.shape[-2], device=same.device)
    matches = (same.long() << bits[:, None]).sum(-2).movedim(-1, 0).contiguous()  # (R, B, K, Q)
    row = torch.full_like(matches[0], (1 << same.shape[-2]) - 1)
    for match in matches:
        used = row & match
        row = (row + used) | (row - used)
    return ((row[..., None] >> bits) & 1 == 0).sum(-1)


def _f_measure(hits: Tensor, totals: Tensor, wanted: Tensor, there: Tensor) -> Tensor:
    """(B, K) the best F = 2PR / (P + R) over references, 0 without hits; in rouge_score's order of operations."""
    some = hits > 0
    precision = hits.double() / torch.where(some, totals, 1)
    recall = hits.double() / torch.where(some, wanted, 1)
    values = 2 * precision * recall / torch.where(some, precision + recall, 1.0)
    return values.masked_fill(~there, -1.0).amax(-1)


def _read(references: Sequence[Sequence[str]], multiple: int = 1) -> tuple[Tensor, Tensor] | None:
    """(B, Q, R) the numbers of the references' words, and (B, Q) how many they are, -1 where there is no reference.

    multiple: of what R is, and what Q is unless it is 1.
    """
    if not all(references):
        return None
    words: Any = [[_numbers(text) for text in row] for row in references]
    if any(own is None for row in words for own in row):
        return None
    most, many = max(len(own) for row in words for own in row), max(map(len, words))
    shape = len(words), many if many == 1 else round_up(many, multiple), round_up(max(most, 1), multiple)
    numbers = np.full(shape, NO_REFERENCE, np.int64)
    lengths = np.full(numbers.shape[:2], -1, np.int64)
    for b, row in enumerate(words):
        for q, own in enumerate(row):
            numbers[b, q, : len(own)] = own
            lengths[b, q] = len(own)
    return torch.from_numpy(numbers), torch.from_numpy(lengths)
