"""Random edits of a text and their probabilities. Tokens are replaced, so the length does not change."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Text


class EditNumbers(NamedTuple):
    """Uniform numbers in [0, 1) for `draw_edits`."""

    distance: Tensor
    """(B,)"""
    places: Tensor
    """(B, K, T)"""
    tokens: Tensor
    """(B, K, T)"""


def edit_uniforms(text: Text, index: Tensor, number: int, randomness: Randomness) -> EditNumbers:
    """Return the random numbers for the edits of each example. They do not depend on the padding of the batch."""
    size, length = text.ids.shape
    distance = randomness.uniform("edit distance", index, [1] * size)
    places, tokens = (
        randomness.uniform(f"edit {what}", index, [length * number] * size).view(size, length, number).transpose(1, 2)
        for what in ("place", "token")
    )
    return EditNumbers(distance, places, tokens)


def draw_edits(text: Text, allowed: Tensor, rate: float, number: int, uniforms: EditNumbers) -> Tensor:
    """Return (B, K, T), K = `number` edits of each text, stratified by their Hamming distance e from the text.

    Each edit alone is distributed as q(y) = (rate / (V - 1))**e (1 - rate)**(T - e): e is Binomial(T, rate), any e
    places are as likely as any others, and so is any other allowed token at each. This is exp(-e / tau) / Z for

        rate = (V - 1) exp(-1 / tau) / (1 + (V - 1) exp(-1 / tau)),

    the distribution of Norouzi et al. 2016 for Hamming distance, of which they sample e first, too. The K edits of a
    text have distances from K equal parts of the distribution of e. T counts ordinary tokens, V allowed ones; special
    tokens stay. `log_q_edit` gives log q.
    """
    ordinary, lengths = text.ordinary, text.ordinary.sum(1)
    most = int(lengths.max()) if len(lengths) else 0
    distances = torch.arange(most + 1)
    counts = torch.distributions.Binomial(lengths[:, None].double(), torch.tensor(rate).double(), validate_args=False)
    possible = distances <= lengths[:, None]
    chances = counts.log_prob(distances.clamp(max=lengths[:, None]).double()).exp().masked_fill(~possible, 0.0)
    parts = (torch.arange(number) + uniforms.distance.double()[:, None]) / number  # (B, K)
    edits = torch.searchsorted(chances.cumsum(1), parts, right=True).clamp(max=lengths[:, None])
    order = uniforms.places.masked_fill(~ordinary[:, None], 2.0).argsort(2).argsort(2)  # (B, K, T) the rank of a place
    replaced = (order < edits[:, :, None]) & ordinary[:, None]
    ids = allowed.nonzero()[:, 0]
    own = torch.searchsorted(ids, text.ids)[:, None]  # (B, 1, T) the number of the token among the allowed ones
    other = (uniforms.tokens.double() * (len(ids) - 1)).long()
    return torch.where(replaced, ids[(other + (other >= own)).clamp(max=len(ids) - 1)], text.ids[:, None])


def log_q_edit(edits: Text, text: Text, allowed: Tensor, rate: float) -> Tensor:
    """Return (B * K,), the log-probability that `draw_edits` gives each text, K texts for each of B; -inf if it never
    does.

    log q = e log(rate / (V - 1)) + (T - e) log(1 - rate), with the Hamming distance e.
    """
    many = len(edits.ids) // len(text.ids)
    width = max(edits.ids.shape[1], text.ids.shape[1])

    def widened(tensor: Tensor, value: int | bool, times: int = 1) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=value).repeat_interleave(times, 0)

    kept, ordinary = widened(text.keep_mask, False, many), widened(text.ordinary, False, many)
    ids = widened(edits.ids, 0)
    differs = kept & (ids != widened(text.ids, 0, many))
    impossible = (kept != widened(edits.keep_mask, False)) | (differs & ~(ordinary & allowed[ids]))
    distance, length = differs.sum(1).double(), ordinary.sum(1).double()
    chance = torch.tensor([rate / (int(allowed.sum()) - 1), 1.0 - rate], dtype=torch.float64).log()
    return (distance * chance[0] + (length - distance) * chance[1]).masked_fill(impossible.any(1), -torch.inf).float()
