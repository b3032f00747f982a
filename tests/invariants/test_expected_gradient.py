"""What the policy gradient is on average, by enumeration of every possible draw."""

from itertools import product

import pytest
import torch
from tests.reference import reinforce_dense, trained_loss

from semioffline.algorithm.losses import Advantages, advantages
from semioffline.algorithm.sampling import sampling_logits

POSITIONS, V, FORBIDDEN = 2, 4, 3
DRAWABLE = [token for token in range(V) if token != FORBIDDEN]


def setting() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (2, V) of the two hidden positions, and the reward of every text (a_1, a_2)."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(POSITIONS, V, generator=generator, dtype=torch.float64)
    rewards = torch.randn(V, V, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), rewards


def policy(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """p_t(a) = softmax(z_t / temperature), renormalised without the forbidden token."""
    allowed = torch.arange(V) != FORBIDDEN
    return (logits / temperature).masked_fill(~allowed, -torch.inf).softmax(1)


def exact_gradient(temperature: float) -> torch.Tensor:
    """d/dz of -E[R] = - sum over a_1, a_2 of p_1(a_1) p_2(a_2) R(a_1, a_2)."""
    logits, rewards = setting()
    p = policy(logits, temperature)
    loss = -(p[0][:, None] * p[1][None, :] * rewards).sum()
    return torch.autograd.grad(loss, logits)[0]


def expected_gradient(form: str, many: int, baseline: str, loss_scale: str, temperature: float) -> torch.Tensor:
    """Sum over all drawable ** (2 K) outcomes of their probability times the gradient of the loss.

    Every outcome is a row of its own with two hidden positions; its probability multiplies its advantages, which are
    constants in the gradient.
    """
    logits, rewards = setting()
    outcomes = torch.tensor(list(product(DRAWABLE, repeat=POSITIONS * many))).view(-1, POSITIONS, many)  # (O, 2, K)
    p = policy(logits, temperature).detach()
    probability = torch.stack([p[t][outcomes[:, t]] for t in range(POSITIONS)]).prod(0).prod(1)  # (O,)
    assert probability.sum().item() == pytest.approx(1)
    given = advantages(rewards[outcomes[:, 0], outcomes[:, 1]], baseline)
    given = Advantages(given.values * probability[:, None], given.counts)
    rows = torch.arange(len(outcomes)).repeat_interleave(POSITIONS)
    draws = outcomes.reshape(-1, many)
    z = logits.repeat(len(outcomes), 1)
    if form == "sparse":
        loss = trained_loss(z.gather(1, draws) / temperature, rows, given, loss_scale)
    else:
        kept = sampling_logits(z, torch.arange(V) != FORBIDDEN, temperature) > -torch.inf
        loss = reinforce_dense((z / temperature).masked_fill(~kept, -torch.inf), draws, rows, given, loss_scale)
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_the_mean_baseline_gives_k_minus_one_kths_of_the_exact_gradient(form, many, temperature):
    """With b = mean of R_1 ... R_K, the baseline holds (1/K) R_k, which is not independent of sample k:

        E[(R_k - b) grad log p(a^k)] = E[R_k grad log p(a^k)] - (1/K) E[R_k grad log p(a^k)] - 0
                                     = (K - 1)/K * grad E[R],

    since E[R_j grad log p(a^k)] = E[R_j] * 0 for j != k. The loss averages K such terms.
    """
    found = expected_gradient(form, many, "mean", "sequence", temperature)
    exact = exact_gradient(temperature)
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(found, (many - 1) / many * exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_leave_one_out_gives_all_of_the_exact_gradient(form, many, temperature):
    """With b_k = mean of the other rewards, b_k is independent of sample k and E[b_k grad log p(a^k)] = 0."""
    found = expected_gradient(form, many, "leave_one_out", "sequence", temperature)
    torch.testing.assert_close(found, exact_gradient(temperature), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("many", [2, 3])
def test_the_token_scale_grows_with_k(many):
    """L_token = K / |M| * L_sequence, so the expected gradient is (K - 1)/|M| of the exact one."""
    found = expected_gradient("sparse", many, "mean", "token", 1.0)
    torch.testing.assert_close(found, (many - 1) / POSITIONS * exact_gradient(1.0), rtol=1e-5, atol=1e-6)


def test_a_forbidden_token_gets_no_gradient_from_either_form():
    """p(forbidden) = 0 whatever its logit, so the exact gradient there is 0; neither form may invent one."""
    for form in ("dense", "sparse"):
        found = expected_gradient(form, 2, "leave_one_out", "sequence", 1.0)
        assert torch.equal(found[:, FORBIDDEN], torch.zeros(POSITIONS, dtype=torch.float64))
