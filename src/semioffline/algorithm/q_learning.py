"""Implicit Q-learning on token sequences: expectile loss, conservative term, bootstrapped targets. Pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from semioffline.algorithm.tensors import send


def expectile(differences: Tensor, tau: float) -> Tensor:
    """(P,) -> (P,): |tau - 1(d < 0)| d**2. tau = 0.5: half the square; towards 1 only d > 0 counts (Kostrikov 2021)."""
    return torch.where(differences < 0, 1 - tau, tau) * differences.square()


def conservative(q: Tensor, actions: Tensor) -> Tensor:
    """(P, V), (P,) -> (P,): logsumexp_a Q(s, a) - Q(s, y). Pushes down the values of actions that the data lack."""
    return F.cross_entropy(q, send(actions, q.device), reduction="none")


def bootstrapped(values: Tensor, texts: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """(P,) r_t + gamma V(s_{t+1}) at the P positions of several texts, in order: the last one of a text has its reward.

    values: (P,) V(s_t); texts: (P,) the text of each position; rewards: one for each text.
    """
    texts = send(texts, values.device)
    ends = texts != torch.cat([texts[1:], texts.new_full((1,), -1)])
    following = torch.cat([values[1:], values.new_zeros(1)])
    return torch.where(ends, rewards.to(values)[texts], gamma * following)
