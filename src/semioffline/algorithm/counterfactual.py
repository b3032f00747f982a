"""Samples that differ from a base sample in one token, and the gradient that their rewards give.

Masked positions are drawn independently given the observation: a ~ prod_t p_t. Let Q_t(v) be the reward of the text `a`
after its token a_t is replaced by v. Then

    dE[R]/dz_t[v] = p_t(v) E[Q_t(v) - sum_u p_t(u) Q_t(u)].

The rest of the text is the same on both sides of the difference, so its noise cancels. For each position t, S_t is a
set of tokens that contains the base token. Its weights w_t are p_t, normalised on S_t. The estimate is

    g_t[v] = w_t(v) (Q_t(v) - sum_{u in S_t} w_t(u) Q_t(u)) for v in S_t, 0 elsewhere.

n_t is the number of reward calls for position t. It does not depend on the draws: leave out the most likely token of
each position; n_t counts the tokens of position t among the most likely remaining tokens of the row. S_t has the
n_t + 1 most likely tokens of the position. If the base token is not among them, it replaces the last one.

The expectation is exact if S_t has every token that can be drawn. Tokens outside S_t are ignored, which is a bias.
Positions without calls get no gradient. If e_t is the probability outside S_t and D the range of the rewards, the bias
at position t has an L1 norm of at most 3 D E[e_t].
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
    """(M, K) tokens. Column 0 has the base. Each other entry is the base token or its replacement in that sample."""
    columns: Tensor
    """(M, C) the number of the sample that has the c-th token of a position."""
    weights: Tensor
    """(M, C) p_t of these tokens, 0 if there is no c-th token. `gradient` normalises it to w_t."""

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
        return torch.zeros_like(q).scatter_add_(1, self.columns, values)


@torch.no_grad()
def swap(p: Tensor, base: Tensor, counts: list[int], many: int) -> Swaps:
    """Return `many` samples for each row: the base sample and variants with one other token.

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


def swap_coefficients(
    swaps: Swaps, rewards: Tensor, rows: Tensor, masked: Tensor, loss_scale: LossScale = "token"
) -> Tensor:
    """Return (M, K), the weights of the drawn logits in `losses.reinforce`.

    sequence: the scale of REINFORCE without its factor (K - 1)/K. token: K / |M| times it, as there.

    Args:
        rewards: (B, K). rows: (M,) the row of each position. masked: (B,) masked positions of each row.
    """
    found = swaps.gradient(rewards, rows)
    return found if loss_scale == "sequence" else found * (rewards.shape[1] / masked.clamp(min=1))[rows][:, None]
