"""Samples that differ from a base sample in one token, and the gradient that their rewards give.

Masked positions are drawn independently given the observation: a ~ prod_t p_t. Let Q_t(v) be the reward of the text `a`
after its token a_t is replaced by v. Then

    dE[R]/dz_t[v] = p_t(v) E[Q_t(v) - sum_u p_t(u) Q_t(u)].

The rest of the text is the same on both sides of the difference, so its noise cancels. For each position t, S_t is a
set of tokens that contains the base token. Its weights w_t sum to 1. The estimate is

    g_t[v] = w_t(v) (Q_t(v) - sum_{u in S_t} w_t(u) Q_t(u)) for v in S_t, 0 elsewhere.

n_t is the number of reward calls for position t. It does not depend on the draws: leave out the most likely token of
each position; n_t counts the tokens of position t among the most likely remaining tokens of the row. H_t are the n_t
most likely tokens of the position.

tail="truncate": S_t is H_t and the base token, or the next likely token if the base token is in H_t. w_t is p_t,
normalised on S_t. This is biased, because tokens outside S_t are ignored. Positions without calls get no gradient.

tail="sample": S_t is H_t and one token u drawn from all other tokens, the tail. w_t(u) is the total probability m_t of
the tail. If the base token is in the tail, it is this draw. The expectation of g_t then lacks only the differences
inside the tail, 1/2 m_t^2 E[(Q_t(v) - Q_t(u)) (e_v - e_u)], with u and v drawn from the tail. Further calls draw a
position and a second token v of its tail, in proportion to this probability, and are weighted by its inverse. So the
expectation is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.losses import LossScale
from semioffline.algorithm.sampling import invert

Tail = Literal["sample", "truncate"]
TAIL_SHARE = 4
"""One of this many calls compares two tokens of a tail."""


class Pairs(NamedTuple):
    """Comparisons of two tokens of one tail, E comparisons for each row."""

    places: Tensor
    """(B * E,) the masked position, among the M."""
    first: Tensor
    """(B * E,) the sample with the tail's first token."""
    second: Tensor
    """(B * E,) the sample with the other one."""
    weights: Tensor
    """(B * E,)"""


@dataclass
class Swaps:
    """Samples around one base sample."""

    draws: Tensor
    """(M, K) tokens. Column 0 has the base. Each other entry is the base token or its replacement in that sample."""
    columns: Tensor
    """(M, C) the number of the sample that has the c-th token of a position."""
    weights: Tensor
    """(M, C) w_t, 0 if there is no c-th token."""
    pairs: Pairs | None

    def gradient(self, rewards: Tensor, rows: Tensor) -> Tensor:
        """Return (M, K), the estimate of dE[R]/dz at the tokens of `draws`. rewards: (B, K). rows: (M,) the row of each
        position.

        Its sum over a position is 0. Samples without a reward (NaN) are left out. Equal rewards give exactly 0.
        """
        highest = rewards.nan_to_num(nan=-torch.inf).amax(1, keepdim=True).clamp(min=-torch.finfo(rewards.dtype).max)
        q = (rewards - highest)[rows]  # (M, K)
        own = q.gather(1, self.columns)
        weights = self.weights.to(q).masked_fill(own.isnan(), 0.0)
        own = own.nan_to_num(nan=0.0)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        values = weights * (own - (weights * own).sum(1, keepdim=True))
        found = torch.zeros_like(q).scatter_add_(1, self.columns, values)
        if self.pairs is not None:
            places, first, second, scale = self.pairs
            gaps = scale.to(q) * (q[places, second] - q[places, first]).nan_to_num(nan=0.0)
            found.index_put_((places, second), gaps, accumulate=True)
            found.index_put_((places, first), -gaps, accumulate=True)
        return found


class Uniforms(NamedTuple):
    """Numbers in [0, 1) that decide the draws around one base sample."""

    tail: Tensor
    """(M,) for the token drawn from each tail."""
    pairs: Tensor
    """(B, E, 2) for position and token of further comparisons; E = 0: none."""


def compared(calls: int, tail: Tail) -> int:
    """Return the number of calls that compare two tokens of a tail."""
    return min(calls, max(1, calls // TAIL_SHARE)) if tail == "sample" else 0


@torch.no_grad()
def swap(p: Tensor, base: Tensor, counts: list[int], many: int, tail: Tail, uniforms: Uniforms) -> Swaps:
    """Return `many` samples for each row: the base sample and variants with one other token.

    Args:
        p: (M, V) the distributions at the masked positions. base: (M,) a token drawn from each.
        counts: B numbers of masked positions of each row, which sum to M; the positions of a row are together.
    """
    calls = many - 1
    extra = compared(calls, tail)
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(p.device)
    width = min(calls - extra + 1, p.shape[1])
    likely, order = p.topk(width, dim=1)
    number = spread(likely[:, 1:], counts, calls - extra)  # (M,) n_t
    ranks = torch.arange(width, device=p.device)
    head = ranks < number[:, None]  # (M, width) H_t
    in_head = ((order == base[:, None]) & head).any(1)

    left = p.scatter(1, order, torch.where(head, 0.0, likely))  # the tails
    if tail == "sample":
        drawn = invert(left, uniforms.tail[:, None]).squeeze(1)
        last = torch.where(in_head, drawn, base)
        mass = left.sum(1)
    else:
        last = torch.where(in_head, order.gather(1, number[:, None]).squeeze(1), base)
        mass = p.gather(1, last[:, None]).squeeze(1)
    tokens = torch.where(head, order, last[:, None])  # (M, width): H_t, then the token of the tail
    weights = torch.where(head, likely, torch.where(ranks == number[:, None], mass[:, None], 0.0))

    swapped = (ranks <= number[:, None]) & (tokens != base[:, None])
    before = swapped.flatten().cumsum(0).view_as(swapped)  # of all rows; each row counts from 1
    per_row = torch.zeros(len(counts), dtype=torch.long, device=p.device).index_add_(0, rows, swapped.sum(1))
    columns = torch.where(swapped, before - (per_row.cumsum(0) - per_row)[rows][:, None], 0)
    draws = base[:, None].repeat(1, many)
    draws.scatter_(1, columns, torch.where(columns > 0, tokens, base[:, None]))
    own = columns.gather(1, number[:, None]).squeeze(1)  # the sample with the token of the tail
    pairs = _pairs(left, last, own, rows, counts, many - extra, uniforms.pairs, draws) if extra else None
    return Swaps(draws, columns, weights, pairs)


def spread(likely: Tensor, counts: list[int], calls: int) -> Tensor:
    """Divide the calls of each row among its positions, and return (M,) numbers of calls.

    likely: (M, W) the probabilities of each position's next likely tokens. A position gets as many calls as it has
    tokens among the `calls` most likely of its row. These tokens have the largest p (1 - p), the factor in the gradient
    of a token, of all tokens that are not the best one of their position. The numbers do not depend on the draws.
    """
    number = likely.new_zeros(len(likely), dtype=torch.long)
    if not likely.numel() or calls < 1:
        return number
    most, width = max(counts), likely.shape[1]
    sizes = torch.tensor(counts)
    at = torch.cat([torch.arange(n) for n in counts]).to(likely.device)
    rows = torch.repeat_interleave(torch.arange(len(counts)), sizes).to(likely.device)
    padded = likely.new_zeros(len(counts), most, width)
    padded[rows, at] = likely
    best = padded.flatten(1).topk(min(calls, most * width), dim=1)
    chosen = torch.zeros_like(padded, dtype=torch.long).flatten(1).scatter_(1, best.indices, (best.values > 0).long())
    return chosen.view_as(padded).sum(2)[rows, at]


def _pairs(
    left: Tensor,
    last: Tensor,
    own: Tensor,
    rows: Tensor,
    counts: list[int],
    start: int,
    uniforms: Tensor,
    draws: Tensor,
) -> Pairs:
    """Draw (position, token) of each row with probability in proportion to m_t p_t(v), over v != u of the tails."""
    size, extra = uniforms.shape[:2]
    others = left.scatter(1, last[:, None], 0.0)
    masses = left.sum(1).double() * others.sum(1).double()  # (M,)
    total = masses.new_zeros(size).index_add_(0, rows, masses)
    most = max(counts, default=0)
    if not most:
        none = torch.zeros(0, dtype=torch.long, device=left.device)
        return Pairs(none, none, none, none.float())
    at = torch.cat([torch.arange(n) for n in counts]).to(left.device)
    padded = masses.new_zeros(size, most)
    padded[rows, at] = masses
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0).to(left.device)
    chosen = invert(padded, uniforms[..., 0]) + starts[:, None]  # (B, E)
    places = chosen.clamp(max=len(left) - 1).flatten()
    tokens = invert(others[places], uniforms[..., 1].reshape(-1, 1)).squeeze(1)
    second = (start + torch.arange(extra, device=left.device)).repeat(size)
    weights = (total[:, None].expand(size, extra) / (2 * extra)).flatten()
    weights = torch.where(masses[places] > 0, weights, 0.0)
    tokens = torch.where(weights > 0, tokens, draws[places, 0])
    draws[places, second] = tokens
    return Pairs(places, own[places], second, weights.float())


def swap_coefficients(
    swaps: Sequence[Swaps], rewards: Tensor, rows: Tensor, masked: Tensor, loss_scale: LossScale = "token"
) -> Tensor:
    """Return (M, K), the weights of the drawn logits in `losses.reinforce`: the mean of the gradients of all bases.

    sequence: the expectation of REINFORCE without its factor (K - 1)/K. token: K / |M| times it, as there.

    Args:
        swaps: one for each base, whose samples are next to each other. rewards: (B, K). rows: (M,). masked: (B,).
    """
    parts = rewards.split([one.draws.shape[1] for one in swaps], dim=1)
    found = torch.cat([one.gradient(own, rows) for one, own in zip(swaps, parts, strict=True)], dim=1) / len(swaps)
    return found if loss_scale == "sequence" else found * (rewards.shape[1] / masked.clamp(min=1))[rows][:, None]
