"""What the gradient of counterfactual samples is on average, by enumeration of every possible draw."""

from itertools import product

import pytest
import torch
from tests.invariants.test_forward_passes import step

from semioffline.algorithm import counterfactual
from semioffline.algorithm.counterfactual import Uniforms, compared, swap, swap_coefficients
from semioffline.algorithm.losses import reinforce
from semioffline.algorithm.sampling import sampling_logits

POSITIONS, V = 2, 4
FORBIDDEN = 3


def setting():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(POSITIONS, V, generator=generator, dtype=torch.float64)
    rewards = torch.randn(V, V, generator=generator, dtype=torch.float64)
    return logits, rewards


def expected_gradient(monkeypatch, many, tail, temperature=1.0, top_k=0, allowed=None):
    """The exact d/dz of E[R], and the expectation of the estimate: over all bases, all tokens of the tails, and all
    pairs that may be compared. Every outcome is a row of its own with its probability, which `invert` would have."""
    logits, rewards = setting()
    allowed = torch.ones(V, dtype=torch.bool) if allowed is None else allowed
    z = logits.clone().requires_grad_()
    kept = sampling_logits(z, allowed, temperature, top_k) > -torch.inf
    p = (z / temperature).masked_fill(~kept, -torch.inf).softmax(1)
    exact = torch.autograd.grad((p[0][:, None] * p[1][None] * rewards).sum(), z)[0]
    p = p.detach()

    tokens, sampled = range(V), tail == "sample"
    outcomes = torch.tensor(
        list(product(tokens, tokens, *([tokens, tokens, range(POSITIONS), tokens] if sampled else [[0]] * 4)))
    )
    base, number = outcomes[:, :2].reshape(-1), len(outcomes)
    probability = p[torch.arange(POSITIONS).repeat(number), base].view(number, POSITIONS).prod(1)
    forced = iter([outcomes[:, 2:4].reshape(-1, 1), outcomes[:, 4:5], outcomes[:, 5:6]])
    asked = []

    def invert(weights, uniforms):
        chosen = next(forced)
        total = weights.sum(1, keepdim=True)
        own = torch.where(total > 0, weights.gather(1, chosen) / total, 1.0 / weights.shape[1])
        asked.append(own.view(number, -1).prod(1))
        return chosen

    monkeypatch.setattr(counterfactual, "invert", invert)
    extra = compared(many - 1, tail)
    assert extra == int(sampled)
    uniforms = Uniforms(torch.zeros(number * POSITIONS), torch.zeros(number, extra, 2))
    swaps = swap(p.repeat(number, 1), base, [POSITIONS] * number, many, tail, uniforms)
    for own in asked:
        probability = probability * own
    assert probability.sum().item() == pytest.approx(1)
    draws = swaps.draws.view(number, POSITIONS, many)
    values = rewards[draws[:, 0], draws[:, 1]]  # (O, K)
    rows = torch.arange(number).repeat_interleave(POSITIONS)
    found = swap_coefficients([swaps], values, rows, torch.full((number,), POSITIONS), "sequence")
    assert found.sum(1).abs().max() < 1e-6

    z = logits.clone().requires_grad_()
    drawn = z.repeat(number, 1).gather(1, swaps.draws) / temperature
    loss = reinforce(drawn, lambda: found * probability[rows][:, None], ready=True)
    return exact, -torch.autograd.grad(loss.total, z)[0]


@pytest.mark.parametrize("many", [2, 3, 4, 5, 6])
def test_with_the_tail_sampled_the_gradient_is_exact_on_average(monkeypatch, many):
    """With H = H_t, T its complement, m = p(T), Q = Q_t, and u ~ p(. | T), the estimate at a position is

        g(v) = p(v) (Q(v) - sum_H p Q - m Q(u)) for v in H,   g(u) = m (Q(u) - sum_H p Q - m Q(u)).

    u has this distribution in both cases: as the base token, if that is in T, or as a further draw. Given the other
    positions, Q does not depend on it, so

        E g(v) = p(v) (Q(v) - sum_H p Q - sum_T p Q) = p(v) (Q(v) - sum p Q)            for v in H, as it should be;
        E g(v) = p(v) (Q(v) - sum_H p Q - m Q(v))                                       for v in T.

    For v in T, p(v) (m Q(v) - sum_T p Q) = sum_{u in T} p(v) p(u) (Q(v) - Q(u)) is missing. As a vector, that is

        1/2 sum_{u, v in T} p(u) p(v) (Q(v) - Q(u)) (e_v - e_u) = 1/2 E_u [m sum_{v in T, v != u} p(v) (...)].

    A pair (t, v != u_t) is drawn with probability m_t p_t(v) / W, W the sum of m_t p_t(v) over the row. Weighted by
    W / 2, its (Q_t(v) - Q_t(u)) (e_v - e_u) has this expectation. Each E[. | other positions] is exact, and H_t does
    not depend on the draws; so the mean over the other positions is the gradient of E[R].
    """
    exact, found = expected_gradient(monkeypatch, many, "sample")
    assert exact.abs().max() > 0.05
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("temperature", "top_k"), [(0.7, 0), (1.0, 3), (1.5, 2)])
def test_it_stays_exact_with_a_temperature_top_k_and_forbidden_tokens(monkeypatch, temperature, top_k):
    allowed = torch.arange(V) != FORBIDDEN
    exact, found = expected_gradient(monkeypatch, 4, "sample", temperature, top_k, allowed)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)


def test_truncated_it_is_exact_only_where_every_token_is_evaluated(monkeypatch):
    """With S_t the whole vocabulary, g_t is the exact gradient given the other positions. With less of it, what is
    outside of S_t makes a bias."""
    exact, found = expected_gradient(monkeypatch, 1 + POSITIONS * (V - 1), "truncate")
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
    exact, found = expected_gradient(monkeypatch, 4, "truncate")
    assert (found - exact).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
@pytest.mark.parametrize("tail", ["sample", "truncate"])
def test_it_costs_one_forward_pass_whatever_the_number_of_samples(tiny_policy, tiny_batch, settings, kind, tail):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    shown = []
    for many in (2, 3, 200):
        args = settings(num_samples=many, estimator="counterfactual", swap_tail=tail)
        output, counts = step(policy, batch, args)
        assert 0 < counts.pop("reward_calls") <= many * len(batch)
        assert len(output.completions()) == many * len(batch)
        shown.append(counts)
    assert shown[0] == shown[1] == shown[2]
    assert shown[0]["calls"] == 1
    assert shown[0]["rl_rows"] == len(batch)
