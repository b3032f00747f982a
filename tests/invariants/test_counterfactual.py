"""The gradient of counterfactual samples: what it is on average, by enumeration of every possible base sample."""

from itertools import product

import pytest
import torch
from tests.invariants.test_forward_passes import step

from semioffline.algorithm.counterfactual import swap, swap_coefficients
from semioffline.algorithm.losses import reinforce
from semioffline.algorithm.sampling import sampling_logits

POSITIONS, V = 2, 4
FORBIDDEN = 3
EVERY = 1 + POSITIONS * (V - 1)
"""Samples with which every token of every position is evaluated."""


def setting():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(POSITIONS, V, generator=generator, dtype=torch.float64)
    rewards = torch.randn(V, V, generator=generator, dtype=torch.float64)
    return logits, rewards


def gradients(many, temperature=1.0, top_k=0, top_p=1.0, allowed=None):
    """The exact d/dz of E[R], the expectation of its estimate, and (POSITIONS,) the expected mass outside S_t.

    Every base sample is a row of its own, weighted with its probability."""
    logits, rewards = setting()
    allowed = torch.ones(V, dtype=torch.bool) if allowed is None else allowed
    z = logits.clone().requires_grad_()
    kept = sampling_logits(z, allowed, temperature, top_k, top_p) > -torch.inf
    p = (z / temperature).masked_fill(~kept, -torch.inf).softmax(1)
    exact = torch.autograd.grad((p[0][:, None] * p[1][None] * rewards).sum(), z)[0]
    p = p.detach()

    bases = torch.tensor(list(product(range(V), repeat=POSITIONS)))
    number = len(bases)
    probability = p[torch.arange(POSITIONS), bases].prod(1)  # (O,)
    swaps = swap(p.repeat(number, 1), bases.reshape(-1), [POSITIONS] * number, many)
    draws = swaps.draws.view(number, POSITIONS, many)
    possible = probability > 0
    assert p[torch.arange(POSITIONS)[:, None], draws[possible]].all()  # no token that cannot be drawn
    values = rewards[draws[:, 0], draws[:, 1]]  # (O, K)
    rows = torch.arange(number).repeat_interleave(POSITIONS)
    found = swap_coefficients(swaps, values, rows, torch.full((number,), POSITIONS), "sequence")
    assert found.sum(1).abs().max() < 1e-6

    z = logits.clone().requires_grad_()
    drawn = z.repeat(number, 1).gather(1, swaps.draws) / temperature
    weighted = torch.where(possible, probability, 0.0)[rows][:, None] * found
    loss = reinforce(drawn, lambda: weighted, ready=True)
    outside = 1 - swaps.weights.sum(1).view(number, POSITIONS)
    return exact, -torch.autograd.grad(loss.total, z)[0], (probability[:, None] * outside).sum(0)


@pytest.mark.parametrize(
    ("many", "settings"),
    [
        (EVERY, {}),
        (EVERY, {"temperature": 0.7}),
        (1 + POSITIONS * 2, {"top_k": 3}),
        (1 + POSITIONS, {"top_k": 2, "temperature": 1.5}),
        (EVERY, {"top_p": 0.8}),
        (1 + POSITIONS * 2, {"allowed": torch.arange(V) != FORBIDDEN, "temperature": 0.7}),
    ],
)
def test_the_gradient_is_exact_on_average_if_every_possible_token_is_evaluated(many, settings):
    """With S_t all tokens that can be drawn, w_t = p_t, and given the other positions

        g_t(v) = p_t(v) (Q_t(v) - sum_u p_t(u) Q_t(u))

    does not depend on the base token at t. The mean over the other positions is dE[R]/dz_t[v].
    """
    exact, found, outside = gradients(many, **settings)
    assert exact.abs().max() > 0.03
    assert outside.abs().max() < 1e-9
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)


def test_with_fewer_tokens_the_bias_is_at_most_three_times_the_mass_outside():
    """Let D be the range of the rewards and e = 1 - p(S), given the other positions and S. w and p differ by 2 e in L1.
    With f = Q - sum p Q, |f| <= D, and d = sum w Q - sum p Q, |d| <= D e,

        |g - dE[R]/dz|_1 = sum_v |w (f - d) - p f| <= sum |w - p| |f| + sum w |d| <= 2 D e + D e.

    The mean over base samples keeps the bound. It decides how many calls are needed: those that make e small.
    """
    span = setting()[1].max() - setting()[1].min()
    biases = []
    for many in range(2, EVERY + 1):
        exact, found, outside = gradients(many)
        bias = (found - exact).abs().sum(1)
        assert (bias <= 3 * span * outside + 1e-6).all()
        biases.append(bias.sum().item())
    assert biases[0] > biases[-3] > 1e-3
    assert biases[-1] < 1e-5


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_it_costs_one_forward_pass_whatever_the_number_of_samples(tiny_policy, tiny_batch, settings, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    shown = []
    for many in (2, 3, 200):
        args = settings(num_samples=many, estimator="counterfactual")
        output, counts = step(policy, batch, args)
        assert 0 < counts.pop("reward_calls") <= many * len(batch)
        assert len(output.completions()) == many * len(batch)
        shown.append(counts)
    assert shown[0] == shown[1] == shown[2]
    assert shown[0]["calls"] == 1
    assert shown[0]["rl_rows"] == len(batch)
