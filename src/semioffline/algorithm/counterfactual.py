"""Samples that differ from a base sample in one token, and the gradient that their rewards give.

Masked positions are drawn independently given the observation: a ~ prod_t p_t. Let Q_t(v) be the reward of a with a_t
replaced by v. Then

    dE[R]/dz_t[v] = p_t(v) E[Q_t(v) - sum_u p_t(u) Q_t(u)].

Everything else in the text is the same on both sides of the difference, so its noise cancels. For each position t, S_t
is a set of tokens with the base token among them, w_t is p_t, normalised on S_t, and

    g_t[v] = w_t(v) (Q_t(v) - sum_{u in S_t} w_t(u) Q_t(u)) for v in S_t, 0 elsewhere.

The number of calls of a position, n_t, does not depend on the draws: it is the number of its tokens among the likeliest
of the row, the best token of each position left aside. S_t is the n_t + 1 likeliest tokens of the position; if the base
token is not among them, it replaces the last one.

This is exact on average where every token that can be drawn is in S_t. What is outside makes a bias: positions without
calls get no gradient, and if e_t is the mass outside S_t, D the range of the rewards, then the bias at position t has
an L1 norm of at most 3 D E[e_t].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semioffline.algorithm.losses import LossScale


@dataclass
class Swaps:
    """Samples around one base sample."""

    draws: Tensor
    """(M, K) tokens: the base in column 0, then one token swapped in each row and column; the base where none is."""
    columns: Tensor
    """(M, C) the sample that has a position's c-th token."""
    weights: Tensor
    """(M, C) p_t of these tokens, 0 where there is none; normalised where rewards are known."""

    def gradient(self, rewards: Tensor, rows: Tensor) -> Tensor:
        """(M, K) the estimate of dE[R]/dz at the tokens of `draws`, given (B, K) rewards and the row of each position.

        Its sum over a position is 0. Samples without a reward (NaN) are left out. Equal rewards give exactly 0.
        """
        highest = rewards.nan_to_num(nan=-torch.inf).amax(1, keepdim=True).clamp(min=-torch.finfo(rewards.dtype).max)
        q = (rewards - highest)[rows]  # (M, K)
        own = q.gather(1, self.columns)
        weights = self.weights.to(q).masked_fill(own.isnan(), 0.0)
        own = own.nan_to_num(nan=0.0)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        values = weights * (own - (weights * own).sum(1, keepdim=True))
        return torch.zeros_like(q).scatter_add_(1, self.columns, values)


@torch.no_grad()
def swap(p: Tensor, base: Tensor, counts: list[int], many: int) -> Swaps:
    """`many` samples for each row: the base sample and its variants.

    Args:
        p: (M, V) the distributions at the masked positions. base: (M,) a token drawn from each.
        counts: B numbers of masked positions of each row, which sum to M; the positions of a row are together.
    """
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(p.device)
    width = min(many, p.shape[1])
    likely, order = p.topk(width, dim=1)
    number = spread(likely[:, 1:], counts, many - 1)[:, None]  # (M, 1) n_t
    ranks = torch.arange(width, device=p.device)
    in_head = ((order == base[:, None]) & (ranks < number)).any(1, keepdim=True)
    last = torch.where(in_head, order.gather(1, number), base[:, None])
    tokens = torch.where(ranks < number, order, last)  # (M, width)
    weights = torch.where(ranks <= number, p.gather(1, tokens), 0.0)

    swapped = (ranks <= number) & (tokens != base[:, None])
    before = swapped.flatten().cumsum(0).view_as(swapped)  # of all rows; each row counts from 1
    per_row = torch.zeros(len(counts), dtype=torch.long, device=p.device).index_add_(0, rows, swapped.sum(1))
    columns = torch.where(swapped, before - (per_row.cumsum(0) - per_row)[rows][:, None], 0)
    draws = base[:, None].repeat(1, many)
    draws.scatter_(1, columns, torch.where(columns > 0, tokens, base[:, None]))
    return Swaps(draws, columns, weights)


def spread(likely: Tensor, counts: list[int], calls: int) -> Tensor:
    """(M,) how many of each position's next likely tokens, (M, W) probabilities, are among the `calls` likeliest of its
    row. These have the largest p (1 - p), the factor of a token's gradient, of all tokens that are not the best one of
    their position; and so n_t does not depend on the draws."""
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


def swap_coefficients(
    swaps: Swaps, rewards: Tensor, rows: Tensor, masked: Tensor, loss_scale: LossScale = "token"
) -> Tensor:
    """(M, K) the weights of the drawn logits in `losses.reinforce`.

    sequence: the scale of REINFORCE without its factor (K - 1)/K. token: K / |M| times it, as there.

    Args:
        rewards: (B, K). rows: (M,) the row of each position. masked: (B,) masked positions of each row.
    """
    found = swaps.gradient(rewards, rows)
    return found if loss_scale == "sequence" else found * (rewards.shape[1] / masked.clamp(min=1))[rows][:, None]
