"""Which positions of a target are masked, and what the model sees there."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Observation, Text

MaskUnit = Literal["token", "word"]
MaskPattern = Literal["random", "suffix", "span", "mixed"]


def hide(text: Text, rate: float | Tensor, mask_id: int, uniforms: Tensor, unit: MaskUnit = "token") -> Observation:
    """Replace each ordinary token by the mask token with probability `rate` (Definition 4 of the paper).

    M_t ~ Bernoulli(rate) for every ordinary position t; the observation has the mask token where M_t = 1 and the text's
    own token where M_t = 0. Special tokens and padding are never masked. With unit "word" one number decides for all
    pieces of a word (the published code instead lets a masked piece pull in the pieces after it, which hides more than
    the rate says).

    uniforms: (B, T) numbers in [0, 1); rate: a number or (B, 1).
    """
    return cover(text, _random(text, rate, uniforms, unit), mask_id)


def cover(text: Text, hidden: Tensor, mask_id: int) -> Observation:
    """Replace the tokens at the positions `hidden` (B, T) by the mask token."""
    return Observation(ids=text.ids.masked_fill(hidden, mask_id), hidden=hidden)


def choose_hidden(
    text: Text,
    rate: float,
    uniforms: Tensor,
    unit: MaskUnit = "token",
    pattern: MaskPattern = "random",
    span: float = 3.0,
) -> Tensor:
    """Return (B, T), True at the positions to mask.

    random: each unit (token or word) by itself, with probability `rate`. suffix: as many units as the random mask has,
    but the last ones. span: runs of `span` units on average. mixed: as random, but each row has its own rate, so that
    training also has contexts with few masks, as in decoding. The expected share is `rate` in every pattern, and the
    numbers of a row decide for it alone.
    """
    if pattern == "suffix":
        return _suffix(text, rate, uniforms, unit)
    if pattern == "span":
        return _spans(text, rate, uniforms, unit, span)
    if pattern == "mixed":
        return _random(text, _own_rates(text, rate, uniforms), uniforms, unit)
    return _random(text, rate, uniforms, unit)


def with_end(text: Text, hidden: Tensor, end_id: int, after: int) -> Tensor:
    """Add to `hidden` the end token of each text that has `after` ordinary tokens. Other predictions do not change: no
    position sees the end token."""
    last = torch.arange(text.ids.shape[1], device=text.ids.device) == text.keep_mask.sum(1, keepdim=True) - 1
    long_enough = text.ordinary.sum(1, keepdim=True) >= after
    return hidden | (last & long_enough & (text.ids == end_id) & ~text.ordinary)


def _random(text: Text, rate: float | Tensor, uniforms: Tensor, unit: MaskUnit) -> Tensor:
    if unit == "word":
        uniforms = uniforms.gather(1, _word_starts(text.words))
    return (uniforms < rate) & text.ordinary


def _own_rates(text: Text, rate: float, uniforms: Tensor) -> Tensor:
    """Return (B, 1) rates with mean `rate`: uniform over [0, 2 rate], or over [2 rate - 1, 1] where that would pass 1.

    A row's number is that of its last token, which is EOS: it is never hidden, so the number decides nothing else.
    """
    last = text.keep_mask.sum(1, keepdim=True).clamp(min=1) - 1
    low, high = max(0.0, 2.0 * rate - 1.0), min(1.0, 2.0 * rate)
    return low + (high - low) * uniforms.gather(1, last)


def _suffix(text: Text, rate: float, uniforms: Tensor, unit: MaskUnit) -> Tensor:
    """Mask the last n units, n ~ Binomial(number of units, rate), which is the number that the random mask hides."""
    begins = _unit_begins(text, unit)
    many = (begins & (uniforms < rate)).sum(1, keepdim=True)
    return text.ordinary & (begins.cumsum(1) > begins.sum(1, keepdim=True) - many)


def _spans(text: Text, rate: float, uniforms: Tensor, unit: MaskUnit, span: float) -> Tensor:
    """Mask runs of units, drawn from a Markov chain: a run ends with probability 1 / span and begins with rate / (span
    (1 - rate)).

    Its stationary share is `rate`; the first unit starts there, so every unit is hidden with that probability. A rate
    above span / (1 + span) leaves no room between runs of that length: they are rate / (1 - rate) long then.
    """
    if rate >= 1.0:
        return text.ordinary
    span = max(span, rate / (1.0 - rate))
    stay, enter = 1.0 - 1.0 / span, rate / (span * (1.0 - rate))
    begins, ordinary = _unit_begins(text, unit), text.ordinary
    state = torch.zeros_like(begins[:, 0])
    chance = torch.full_like(uniforms[:, 0], rate)
    columns = []
    for t in range(begins.shape[1]):
        state = torch.where(begins[:, t], uniforms[:, t] < chance, state)
        chance = torch.where(begins[:, t], torch.where(state, stay, enter).to(chance), chance)
        columns.append(state & ordinary[:, t])
    return torch.stack(columns, dim=1)


def _unit_begins(text: Text, unit: MaskUnit) -> Tensor:
    """Return (B, T) True at the first token of every unit: at every ordinary token, or where a word begins."""
    if unit == "token":
        return text.ordinary
    positions = torch.arange(text.words.shape[1], device=text.words.device)
    return text.ordinary & (_word_starts(text.words) == positions)


def _word_starts(words: Tensor) -> Tensor:
    """Return (B, T), the position of the first token of each token's word. words: (B, T) word numbers."""
    positions = torch.arange(words.shape[1], device=words.device).expand_as(words)
    begins = torch.ones_like(words, dtype=torch.bool)
    begins[:, 1:] = words[:, 1:] != words[:, :-1]
    return torch.where(begins, positions, 0).cummax(1).values


def mask_uniforms(text: Text, index: Tensor, randomness: Randomness, purpose: str) -> Tensor:
    """Return (B, T) random numbers for `hide`. The numbers of a row do not depend on the padding of its batch."""
    size, length = text.ids.shape
    numbers = randomness.uniform(purpose, index, [length] * size).view(size, length).to(text.ids.device)
    return torch.where(text.keep_mask, numbers, 1.0)
