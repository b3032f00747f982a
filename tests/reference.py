"""References that the library's fast forms are tested against: the losses as they are printed."""

import torch
from torch import Tensor

from semioffline.algorithm.losses import Advantages, reinforce, sample_weights


def masked_counts(rows: Tensor, number: int) -> Tensor:
    """(number,) masked positions of each row."""
    return torch.bincount(rows, minlength=number)


def reinforce_dense(
    logits: Tensor, draws: Tensor, rows: Tensor, advantages: Advantages, loss_scale: str = "token"
) -> Tensor:
    """REINFORCE over the masked positions with a whole log-softmax: - sum_k w_k sum_t log p(a_t^k | o_t).

    logits: (M, V) of the distribution drawn from (after temperature and restriction); draws: (M, K); rows: (M,).
    """
    counts = masked_counts(rows, len(advantages.counts))
    divisors = advantages.counts if loss_scale == "sequence" else counts
    weights = (advantages.values / divisors.clamp(min=1)[:, None])[rows]
    return -(weights * logits.float().log_softmax(1).gather(1, draws)).sum()


def trained_loss(drawn_logits: Tensor, rows: Tensor, advantages: Advantages, loss_scale: str = "token") -> Tensor:
    """The loss that trains, with rewards that are there."""
    counts = masked_counts(rows, len(advantages.counts))
    return reinforce(drawn_logits, rows, lambda: sample_weights(advantages, counts, loss_scale), ready=True).total
