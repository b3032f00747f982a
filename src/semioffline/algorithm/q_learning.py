"""Implicit Q-learning on token sequences: expectile loss and conservative term. Pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from semioffline.algorithm.tensors import send


def expectile(differences: Tensor, tau: float) -> Tensor:
    """Return (P,), |tau - 1(d < 0)| d**2 for (P,) differences d. tau = 0.5: half the square. tau near 1: mostly d > 0
    counts (Kostrikov 2021)."""
    return torch.where(differences < 0, 1 - tau, tau) * differences.square()


def conservative(q: Tensor, actions: Tensor) -> Tensor:
    """Return (P,), logsumexp_a Q(s, a) - Q(s, y): it lowers the values of actions that are not in the data. q: (P, V).
    actions: (P,)."""
    return F.cross_entropy(q, send(actions, q.device), reduction="none")
