"""Compute ROUGE on the model's device from token ids, so that no step waits for the host.

The text of each token is split into parts: runs of letters and digits. Adjacent parts make a word. The number of a word
is a polynomial in its letters modulo 2^64, so it can be computed from the numbers of its parts; the number of an n-gram
is computed in the same way from those of its words. The host lists the n-grams of an input's references. The device
looks up each n-gram of a sample among them and counts.

The floating-point operations are those of `rewards.rouge` in the same order. The values are the same to the last bit,
with two exceptions: two words may have the same number (hardly ever, and always the same two), and bytes of several
tokens may spell the Kelvin sign or a dotted capital I, which are read as spaces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from semioffline.algorithm.tensors import Samples, send
from semioffline.policy.packing import round_up, widen
from semioffline.rewards.rouge import Rouge
from semioffline.scoring.fast_decode import FastDecoder

MOST_PARTS = 4
"""Maximum number of parts in one token. Vocabularies with more are left to the host."""
BITS = 62
"""Number of bits of an integer that are used. The words of a reference are bits in longest common subsequences."""
LONGEST = 512
"""Maximum number of letters of a word."""
SMALLEST, FEWEST = 32, 8
"""If graphs are replayed, sizes are rounded up to powers of two, so that there are few: at least SMALLEST, and FEWEST
for the number of references. Words of samples are rounded up to a multiple of BITS, those of references to half of
it."""
MOST_READ = 1 << 16
"""Maximum number of inputs whose references are remembered."""
MOST_AT_ONCE = 1 << 26
"""Maximum number of counts compared at once."""
_SIZE = 1 << 64
_RANDOM = random.Random(20230523)
_BASE = _RANDOM.randrange(1 << 62, _SIZE) | 1
_NEXT = _RANDOM.randrange(1 << 62, _SIZE >> 1) | 1
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
    """Keep lower-case letters and digits of a text; every other byte becomes a space."""
    return text.replace(_KELVIN, b"k").replace(_DOTTED_I, b"i ").translate(_LOWER)


class Grams(NamedTuple):
    """The n-grams of one input's references."""

    known: np.ndarray
    """Sorted numbers of the distinct n-grams."""
    places: np.ndarray
    """Indices into `known` of all n-grams, reference after reference."""


class Read(NamedTuple):
    """The references of one input, as numbers."""

    lengths: np.ndarray
    """(Q,) number of words of each reference."""
    grams: list[Grams]
    """The n-grams for each requested n."""


class _Reader:
    """Reads the references of a whole batch together, and remembers them."""

    def __init__(self, sizes: Sequence[int]):
        self.sizes = sizes
        self._known: dict[tuple[str, ...], Read | None] = {}

    def __call__(self, inputs: Sequence[Sequence[str]]) -> list[Read | None]:
        """Read the references of each input; None if only the host can read them."""
        asked = [tuple(references) for references in inputs]
        if len(self._known) > MOST_READ:
            self._known.clear()
        new = [references for references in dict.fromkeys(asked) if references not in self._known]
        if new:
            words = [[_numbers(text) for text in references] for references in new]
            can = [bool(own) and None not in own for own in words]
            read = iter(_read([own for own, fine in zip(words, can, strict=True) if fine], self.sizes))
            self._known |= {own: next(read) if fine else None for own, fine in zip(new, can, strict=True)}
        return [self._known[references] for references in asked]


def _numbers(text: str) -> list[int] | None:
    """Return the numbers of a text's words; None if a word is too long."""
    words = _read_bytes(text.encode("utf-8", "replace")).split()
    if max(map(len, words), default=0) > LONGEST:
        return None
    return [_number(word) for word in words]


def _read(inputs: Any, sizes: Sequence[int]) -> list[Read]:
    """Read inputs. Each is a list of references, each a list of the numbers of its words."""
    words = np.array([number for own in inputs for reference in own for number in reference], np.int64)
    lengths = [np.array([len(reference) for reference in own]) for own in inputs]
    grams = zip(*(_grams_of(words, lengths, n) for n in sizes), strict=True)
    return [Read(own, list(of_sizes)) for own, of_sizes in zip(lengths, grams, strict=True)]


def _grams_of(words: np.ndarray, lengths: list[np.ndarray], n: int) -> list[Grams]:
    """Return the n-grams of each input. words: those of all references of all inputs, one after the other. lengths: of
    the references of each input."""
    if not lengths:
        return []
    flat = np.concatenate(lengths)
    left = np.repeat(flat.cumsum(), flat) - np.arange(len(words))  # words up to the end of the reference
    begins = (left >= n).nonzero()[0]
    numbers = _join(np.append(words, np.zeros(n - 1, np.int64)), n)[begins]
    owner = np.repeat(np.arange(len(lengths)), [own.sum() for own in lengths])[begins]
    order = np.lexsort((numbers, owner))
    numbers, owner = numbers[order], owner[order]
    first = np.append(True, (numbers[1:] != numbers[:-1]) | (owner[1:] != owner[:-1]))[: len(numbers)]
    starts = np.searchsorted(owner[first], np.arange(len(lengths) + 1))  # of each input among those that differ
    places = np.empty(len(numbers), np.int64)
    places[order] = first.cumsum() - 1 - starts[owner]
    ends = np.searchsorted(owner, np.arange(len(lengths) + 1)).tolist()
    known, bounds = numbers[first], zip(pairwise(starts.tolist()), pairwise(ends), strict=True)
    return [Grams(known[start:end], places[begin:stop]) for (start, end), (begin, stop) in bounds]


def _join(words: Any, n: int) -> Any:
    """Compute the numbers of n-grams from those of words, along the last dimension, by the position where an n-gram
    begins."""
    length = max(words.shape[-1] - n + 1, 0)
    grams = words[..., :length]
    for k in range(1, n):
        grams = grams * _NEXT + words[..., k : k + length]
    return grams


def _table(rows: Sequence[np.ndarray], width: int, empty: int) -> np.ndarray:
    """Put rows of different lengths into one array."""
    table = np.full((len(rows), width), empty)
    table[np.arange(width) < np.array([len(row) for row in rows])[:, None]] = np.concatenate(rows)
    return table


def on_device(
    function: Any, decoder: FastDecoder, device: torch.device, replay: Callable[..., Any] | None = None
) -> DeviceRouge | None:
    """Return an object that computes this reward on the device; None if that is not possible.

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
    """Computes, from samples and references, the mean F-measure of `variants` for each sample. With several references
    the best one counts."""

    def __init__(
        self,
        variants: Sequence[str],
        letters: Sequence[bytes],
        between: bytes,
        device: torch.device,
        replay: Callable[..., Any] | None = None,
    ):
        """letters: of the text of each token. between: the text between tokens. replay: see `on_device`."""
        self.variants = list(variants)
        self.sizes = tuple(sorted({_size(variant) for variant in variants}))
        self._read = _Reader(self.sizes)
        self.rounds = replay is not None
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
        """Return (B, K) values in float64; None if only the host can compute them."""
        read = self._read(references)
        if None in read:
            return None
        tables = [send(table, self.device) for table in self._lay_out(read)]
        length = self._fit(samples.text.ids.shape[1])
        ids = widen(samples.ended_on(self.device), length, 0).clamp(max=len(self.parts) - 1)
        keep = send(widen(samples.text.keep_mask, length, False), self.device)
        return self._run(ids, keep, torch.empty(self._most_words(samples), device=self.device), *tables)

    def _fit(self, size: int, smallest: int = SMALLEST) -> int:
        return max(smallest, 1 << (size - 1).bit_length()) if self.rounds else size

    def _lay_out(self, read: Sequence[Any]) -> Iterator[Tensor]:
        """Yield (B, Q) words of references, -1 for none; then, for each n, (B, U) n-grams and (B, Q, R) indices."""
        many = max(len(lengths) for lengths, _ in read)
        many = many if many == 1 else self._fit(many, FEWEST)
        counts = _table([lengths for lengths, _ in read], many, -1)
        yield torch.from_numpy(counts)
        for n, grams in zip(self.sizes, zip(*(grams for _, grams in read), strict=True), strict=True):
            size = self._fit(max(len(own.known) for own in grams) + 1)
            own_counts = np.maximum(counts - n + 1, 0)
            longest = max(int(own_counts.max()), 1)
            longest = round_up(longest, BITS // 2) if self.rounds else longest
            places = np.full((len(grams), many, longest), size)  # nowhere
            places[np.arange(longest) < own_counts[:, :, None]] = np.concatenate([own.places for own in grams])
            known = _table([own.known for own in grams], size, np.iinfo(np.int64).max)
            yield from (torch.from_numpy(known), torch.from_numpy(places))

    def _values(self, ids: Tensor, keep: Tensor, most: Tensor, lengths: Tensor, *tables: Tensor) -> Tensor:
        """Compute the values. most: upper limit of the number of words of a sample."""
        words, counts = self._read_samples(ids, keep, len(most))
        largest = max(known.shape[1] for known in tables[::2])
        at_once = max(MOST_AT_ONCE // (lengths.numel() * max(largest, len(most))), 1)
        parts = zip(words.split(at_once, dim=1), counts.split(at_once, dim=1), strict=True)
        return torch.cat([self._measure(own, number, lengths, tables) for own, number in parts], dim=1)

    def _measure(self, words: Tensor, counts: Tensor, lengths: Tensor, tables: Sequence[Tensor]) -> Tensor:
        """Return (B, K) values of samples of (B, K, W) words, of which the first `counts` are real."""
        asked = {
            n: (_look_up(_join(words, n), counts - n + 1, known), places, known.shape[1])
            for n, known, places in zip(self.sizes, tables[::2], tables[1::2], strict=True)
        }
        values = []
        for variant in self.variants:
            n = _size(variant)
            count = _common if variant == "rougeL" else _hits
            hits = count(*asked[n])
            values.append(_f_measure(hits, counts[:, :, None] - n + 1, lengths[:, None] - n + 1, lengths[:, None] >= 0))
        sums = reduce(add, values)
        return sums / torch.full_like(sums, len(values))  # a device divides by a plain number as it likes

    def _read_samples(self, ids: Tensor, keep: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Return (B, K, W), the numbers of each sample's words, up to a maximum, and (B, K), their count."""
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
        """Return an upper bound of the number of words in a sample, known without the draws."""
        text = samples.text
        shown = self.parts[np.minimum(text.ids.cpu().numpy(), len(self.parts) - 1)] * text.keep_mask.cpu().numpy()
        hidden = samples.hidden.cpu().numpy().reshape(-1, *shown.shape)
        most = max(int(np.where(hidden, self.most, shown).sum(-1).max()), 1)
        return round_up(most, BITS) if self.rounds else most


def _size(variant: str) -> int:
    return 1 if variant == "rougeL" else int(variant[5:])


def _look_up(grams: Tensor, counts: Tensor, known: Tensor) -> Tensor:
    """Return (B, K, W), the index in `known` (B, U) of each of the first `counts` (B, K) n-grams of a sample; U if it
    is not there."""
    size, many, length = grams.shape
    last, flat = known.shape[1] - 1, grams.reshape(size, -1).contiguous()
    at = torch.searchsorted(known, flat).clamp(max=last)
    same = (known.gather(1, at) == flat).view(size, many, length)
    real = torch.arange(length, device=grams.device) < counts[..., None]
    return torch.where(same & real, at.view(size, many, length), last + 1)


def _hits(found: Tensor, places: Tensor, size: int) -> Tensor:
    """Return (B, K, Q), sums over n-grams of min(count in the sample, count in the reference)."""
    mine, theirs = (
        at.new_zeros((*at.shape[:2], size + 1), dtype=torch.int32).scatter_add(
            -1, at, torch.ones_like(at, dtype=torch.int32)
        )[..., :size]
        for at in (found, places)
    )
    return torch.minimum(mine[:, :, None], theirs[:, None]).sum(-1)


def _common(found: Tensor, places: Tensor, size: int) -> Tensor:
    """Return (B, K, Q), lengths of longest common subsequences, computed bit-parallel (Hyyrö, 2004). Each step handles
    one word of the reference, whose positions in the sample are bits of integers, BITS in each; carries go to the next
    integer. (The number of words of a reference is known; of a sample, only an upper limit.)"""
    batch, many, _ = found.shape
    number, length = places.shape[1:]
    full = (1 << BITS) - 1
    bits = torch.arange(BITS, device=places.device)
    at = places.reshape(batch, 1, -1).expand(-1, many, -1)
    parts = []
    for own in found.split(BITS, dim=2):
        masks = own.new_zeros(batch, many, size + 1).scatter_add_(2, own, (1 << bits[: own.shape[2]]).expand_as(own))
        masks[..., size] = 0
        parts.append(masks.gather(2, at).view(batch, many, number, length).movedim(3, 0))  # (R, B, K, Q)
    rows = [torch.full_like(part[0], full) for part in parts]
    for matches in zip(*parts, strict=True):
        total: Any = 0
        for n, match in enumerate(matches):
            used = rows[n] & match
            total = rows[n] + used + (total >> BITS if n else 0)
            rows[n] = (total & full) | (rows[n] - used)
    return reduce(add, [((row[..., None] >> bits) & 1 == 0).sum(-1) for row in rows])


def _f_measure(hits: Tensor, totals: Tensor, wanted: Tensor, there: Tensor) -> Tensor:
    """Return (B, K), the best F = 2PR / (P + R) over references, 0 without hits, in rouge_score's order of
    operations."""
    some = hits > 0
    precision = hits.double() / torch.where(some, totals, 1)
    recall = hits.double() / torch.where(some, wanted, 1)
    values = 2 * precision * recall / torch.where(some, precision + recall, 1.0)
    return values.masked_fill(~there, -1.0).amax(-1)
