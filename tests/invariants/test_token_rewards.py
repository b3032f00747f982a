"""Proposition 3: the sequence reward is a sum of rewards of single tokens."""

import pytest
import torch
from tests.reference import reinforce_dense

from semioffline.algorithm.losses import advantages, token_advantages

B, K, V = 3, 16, 5
ROWS = torch.tensor([0, 0, 0, 1, 2, 2])  # hidden positions of each row


def setting(seed: int):
    generator = torch.Generator().manual_seed(seed)
    log_p = torch.randn(len(ROWS), V, generator=generator).log_softmax(1)
    draws = torch.multinomial(log_p.exp(), K, replacement=True, generator=generator)
    rewards = torch.rand(B, K, generator=generator) * 3
    return log_p, draws, rewards


@pytest.mark.parametrize("options", [{}, {"baseline": "leave_one_out"}, {"scale": True}])
@pytest.mark.parametrize("left_out", [0, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_token_losses_sum_to_the_loss(seed, left_out, options):
    """L_RL = sum_t sum_i L_t^i with L_t^i = - (C_t^i / K) * A_t^i * log p(V_i | o_t).

    C_t^i counts the samples that chose token i at position t, and A_t^i is the mean of their R_k - b. Collecting equal
    tokens in (1/K) sum_k - (R_k - b) sum_t log p(a_t^k) gives it. K counts the samples that have a reward.
    """
    log_p, draws, rewards = setting(seed)
    rewards[1, :left_out] = float("nan")
    given = advantages(rewards, **options)
    found = token_advantages(draws, ROWS, given)
    samples = given.counts[ROWS[found.positions]]
    parts = -(found.counts / samples) * found.values * log_p[found.positions, found.tokens]
    loss = reinforce_dense(log_p, draws, ROWS, given, "sequence")
    assert parts.sum().item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert parts.abs().max() > 0.01


def test_the_bracket_is_the_mean_reward_of_the_samples_that_chose_the_token_minus_b():
    """A_t^i = (1/C_t^i) sum over {k : a_t^k = i} of R_k - b, computed here one token at a time."""
    _, draws, rewards = setting(2)
    found = token_advantages(draws, ROWS, advantages(rewards))
    assert len(found.positions) == sum(len(set(row)) for row in draws.tolist())
    for position, token, count, value in zip(*(column.tolist() for column in found), strict=True):
        chose = draws[position] == token
        own = rewards[ROWS[position]]
        assert count == chose.sum()
        assert value == pytest.approx((own[chose].mean() - own.mean()).item(), abs=1e-5)


def test_at_each_position_the_counts_are_the_samples_and_the_advantages_balance():
    """sum_i C_t^i = K, and sum_i C_t^i A_t^i = sum_k (R_k - b) = 0."""
    _, draws, rewards = setting(3)
    found = token_advantages(draws, ROWS, advantages(rewards))
    counts = torch.zeros(len(ROWS)).index_add_(0, found.positions, found.counts.float())
    balance = torch.zeros(len(ROWS)).index_add_(0, found.positions, found.counts * found.values)
    assert counts.tolist() == [K] * len(ROWS)
    assert balance.abs().max() < 1e-4
