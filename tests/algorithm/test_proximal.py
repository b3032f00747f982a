"""PPO's pieces against loops and values computed by hand."""

import pytest
import torch

from semioffline.algorithm.proximal import (
    clipped_surrogate,
    clipped_value_loss,
    generalized_advantages,
    is_clipped,
)

OLD = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.5]).log()
NEW = torch.tensor([0.5, 0.8, 0.8, 0.2, 0.2]).log()
"""Ratios 1, 1.6, 1.6, 0.4, 0.4."""
ADVANTAGES = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0])


def test_the_clipped_ratio_by_hand():
    """min(r A, clip(r) A): a gain counts up to the bound, a loss counts whole."""
    assert clipped_surrogate(NEW, OLD, ADVANTAGES, 0.2).tolist() == pytest.approx([2.0, 1.2, -1.6, 0.4, -0.8])


def test_where_it_is_clipped_there_is_no_gradient():
    log_p = NEW.clone().requires_grad_()
    clipped_surrogate(log_p, OLD, ADVANTAGES, 0.2).sum().backward()
    found = is_clipped(NEW, OLD, ADVANTAGES, 0.2)
    assert found.tolist() == [False, True, False, False, True]
    assert (log_p.grad == 0).tolist() == found.tolist()


def test_at_a_ratio_of_one_the_gradient_is_that_of_reinforce():
    log_p = OLD.clone().requires_grad_()
    clipped_surrogate(log_p, OLD, ADVANTAGES, 0.2).sum().backward()
    assert torch.allclose(log_p.grad, ADVANTAGES)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.97, 0.0)])
def test_generalised_advantages_by_a_loop(gamma, lam):
    """A_t = sum_l (gamma lam)**l d_{t+l} over the actions of each row alone; the last action has the reward."""
    generator = torch.Generator().manual_seed(0)
    values, rewards = torch.randn(4, 7, generator=generator), torch.tensor([1.0, -0.5, 2.0, float("nan")])
    actions = torch.arange(7) < torch.tensor([7, 3, 5, 4])[:, None]
    actions[0, 0] = actions[2, 2] = False  # forced tokens
    values = values * actions
    found = generalized_advantages(rewards, values, actions, gamma, lam)
    for b in range(4):
        chosen = actions[b].nonzero()[:, 0].tolist()
        v = [values[b, t].item() for t in chosen] + [0.0]
        delta = [
            gamma * v[n + 1] - v[n] + (rewards[b].item() if n == len(chosen) - 1 else 0) for n in range(len(chosen))
        ]
        for n, t in enumerate(chosen):
            expected = sum((gamma * lam) ** (m - n) * delta[m] for m in range(n, len(chosen)))
            assert found.advantages[b, t].item() == pytest.approx(expected, rel=1e-5, nan_ok=True)
            assert found.returns[b, t].item() == pytest.approx(expected + v[n], rel=1e-5, nan_ok=True)
        assert (found.advantages[b][~actions[b]] == 0).all()
        assert (found.returns[b][~actions[b]] == 0).all()


def test_with_lambda_one_the_advantage_is_reward_minus_value():
    values = torch.tensor([[0.2, 0.7, 0.1]])
    found = generalized_advantages(torch.tensor([1.0]), values, torch.ones(1, 3, dtype=torch.bool), 1.0, 1.0)
    assert torch.allclose(found.advantages, 1.0 - values)
    assert torch.allclose(found.returns, torch.ones(1, 3))


def test_the_value_loss_by_hand():
    """The worse of the value and the one that moved by at most 0.2."""
    values, old = torch.tensor([1.0, 1.0, 0.1]), torch.tensor([0.0, 0.9, 0.0])
    returns = torch.tensor([1.0, 2.0, 1.0])
    found = clipped_value_loss(values, old, returns, 0.2)
    assert found.tolist() == pytest.approx([(0.2 - 1) ** 2, (1.0 - 2) ** 2, (0.1 - 1) ** 2])
