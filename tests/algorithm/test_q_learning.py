"""Implicit Q-learning's pieces by hand and by loops."""

import pytest
import torch

from semioffline.algorithm.q_learning import bootstrapped, conservative, expectile


def test_the_expectile_loss_by_hand():
    d = torch.tensor([2.0, -2.0, 0.0])
    assert expectile(d, 0.7).tolist() == pytest.approx([0.7 * 4, 0.3 * 4, 0.0])
    assert expectile(d, 0.5).tolist() == pytest.approx([2.0, 2.0, 0.0])


@pytest.mark.parametrize(("tau", "expected"), [(0.5, 0.5), (0.9, 0.9), (0.99, 0.99)])
def test_its_minimum_goes_to_the_largest_value(tau, expected):
    """Of two values 0 and 1 that are equally frequent, the expectile is tau."""
    v = torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.SGD([v], lr=0.2)
    for _ in range(500):
        optimizer.zero_grad()
        expectile(torch.tensor([0.0, 1.0]) - v, tau).sum().backward()
        optimizer.step()
    assert v.item() == pytest.approx(expected, abs=1e-3)


def test_the_conservative_term_by_a_loop():
    q, actions = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 5, 2, 2])
    expected = [torch.log(sum(q[n].exp())).item() - q[n, a].item() for n, a in enumerate(actions.tolist())]
    assert conservative(q, actions).tolist() == pytest.approx(expected, rel=1e-5)


def test_targets_by_hand():
    """Texts of three, one and two tokens: gamma times the next value, and the reward at the end."""
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    texts = torch.tensor([0, 0, 0, 2, 3, 3])
    found = bootstrapped(values, texts, torch.tensor([1.0, 9.0, 2.0, 3.0]), 0.5)
    assert found.tolist() == pytest.approx([0.1, 0.15, 1.0, 2.0, 0.3, 3.0])
