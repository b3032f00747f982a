"""Proximal policy optimisation: clipped ratios, generalised advantages, clipped value loss. Pure functions."""

from typing import NamedTuple

import torch
from torch import Tensor


def clipped_surrogate(log_p: Tensor, old_log_p: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Return (P,), min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) with r = p / p_old, to be maximised. All arguments are
    (P,).

    Equation 7 of Schulman et al. 2017. Where log_p is old_log_p, its gradient is that of REINFORCE, A * grad log p.
    """
    ratio = (log_p - old_log_p).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)


def is_clipped(log_p: Tensor, old_log_p: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Return (P,), True where clipping has removed the gradient of `clipped_surrogate`."""
    ratio = (log_p - old_log_p).exp()
    return ((ratio > 1 + epsilon) & (advantages > 0)) | ((ratio < 1 - epsilon) & (advantages < 0))


class Estimates(NamedTuple):
    """Advantages and returns for each of B * T positions; 0 where there is no action."""

    advantages: Tensor
    """(B, T)"""
    returns: Tensor
    """(B, T) advantage plus value, the target of the value head."""


def generalized_advantages(rewards: Tensor, values: Tensor, actions: Tensor, gamma: float, lam: float) -> Estimates:
    """Compute generalised advantages: A_t = sum_l (gamma lam)**l d_{t+l}, d_t = r_t + gamma V_{t+1} - V_t, V = 0 after
    the end.

    Schulman et al. 2016. The reward comes with the last action.

    Args:
        rewards: (B,) of whole texts.
        values: (B, T) V_t, of the text before t.
        actions: (B, T) True at the tokens that the policy chose; others are passed over.
    """
    found = torch.zeros_like(values)
    later, next_value = torch.zeros_like(rewards), torch.zeros_like(rewards)
    reward = rewards.clone()  # (B,) 0 once the last action has it
    for t in reversed(range(values.shape[1])):
        acts = actions[:, t]
        advantage = reward + gamma * next_value - values[:, t] + gamma * lam * later
        later, next_value = torch.where(acts, advantage, later), torch.where(acts, values[:, t], next_value)
        reward = torch.where(acts, 0.0, reward)
        found[:, t] = torch.where(acts, advantage, 0.0)
    return Estimates(found, torch.where(actions, found + values, 0.0))


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Return (P,), max((V - G)**2, (clip(V, V_old - clip, V_old + clip) - G)**2), as in PPO's code. Tensors are
    (P,)."""
    kept = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (kept - returns).square())
