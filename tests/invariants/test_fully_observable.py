"""Fully observable semi-offline RL: sampled tokens are fed back, at the cost that Proposition 1 says."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from semioffline.algorithm.masking import choose_hidden, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import draw_uniforms
from semioffline.algorithm.tensors import Observation
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.scorer import Scores

K = 4
RANDOMNESS = Randomness(seed=0, step=3)


def bare_logits(policy, source, shown):
    """`model(...).logits` for one example without padding: (T, V), row t predicts token t from those before it."""
    if policy.is_encoder_decoder:
        start = torch.tensor([policy.model.config.decoder_start_token_id])
        inputs = torch.cat([start, shown[:-1]])
        return policy.model(input_ids=source[None], decoder_input_ids=inputs[None]).logits[0]
    return policy.model(input_ids=torch.cat([source, shown])[None]).logits[0][len(source) - 1 : -1]


def run(policy, batch, args, rewards=None):
    """One step: its output, the samples it had scored, and what the meter booked."""
    seen = []
    generator = torch.Generator().manual_seed(5)
    rewards = torch.rand(len(batch), args.num_samples, generator=generator) if rewards is None else rewards

    def score(samples, batch):
        seen.append(samples)
        return Scores(rewards, [[""] * args.num_samples] * len(batch), {})

    before = policy.meter.counts.copy()
    output = load_method(args).step(policy, batch, score, RANDOMNESS)
    return output, seen[0], policy.meter.counts - before


def hidden_in(batch, args):
    uniforms = mask_uniforms(batch.static, batch.index, RANDOMNESS, "mask")
    return choose_hidden(batch.static, args.mask_rate, uniforms)


def only(batch, number):
    """The same batch with only the first `number` ordinary tokens of each row left ordinary."""
    words = batch.static.words.masked_fill(batch.static.ordinary.cumsum(1) > number, -1)
    return replace(batch, static=replace(batch.static, words=words))


@pytest.mark.parametrize("mask_rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("kind", "share_prompt"), [("bart", True), ("t5", True), ("llama", True), ("llama", False)])
def test_the_cost_is_one_pass_for_every_hidden_token_of_every_sample(
    tiny_policy, tiny_batch, settings, kind, share_prompt, mask_rate
):
    """Proposition 1: C_T = sum_t M_t passes for a sample, K times as many for K. p_m = 0 is offline: none is needed;
    p_m = 1 is online: K * T. Computing the gradient is one more pass for each sample, booked apart."""
    policy = tiny_policy(kind, share_prompt=share_prompt)
    batch = tiny_batch(policy)
    args = settings(num_samples=K, mask_rate=mask_rate, observation="full")
    output, samples, counts = run(policy, batch, args)
    hidden = hidden_in(batch, args)
    assert counts["rl_rows"] == K * int(hidden.sum())
    assert counts["grad_rows"] == K * len(batch)
    assert counts["mle_rows"] == len(batch)
    assert counts["calls"] == 1 + int(hidden.sum(1).max())
    static = batch.static.ids[:, None].expand_as(samples.ids)
    shown = ~hidden[:, None].expand_as(samples.ids)
    assert torch.equal(samples.ids[shown], static[shown])
    assert policy.allowed[samples.draws].all()
    assert output.metrics["mask_rate"] == pytest.approx(mask_rate, abs=0.25)
    if mask_rate == 0:
        assert output.terms[1].total.item() == 0


@pytest.mark.parametrize("kind", ["bart", "t5_tied", "llama"])
def test_every_draw_is_from_the_distribution_after_the_samples_own_prefix(tiny_policy, tiny_batch, settings, kind):
    """a_t^k is the number u_t^k put through the distribution function of p(. | x, y^s_<t), y^s the k-th sample itself.

    And the loss is w sum_k - A_k sum_t log p(a_t^k | x, y^s_<t) of the bare model, with all its normalisers.
    """
    policy = tiny_policy(kind, dtype=torch.float64)
    batch = tiny_batch(policy)
    args = settings(num_samples=K, mask_rate=0.4, observation="full", temperature=0.8, top_k=20)
    rewards = torch.rand(len(batch), K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    output, samples, _ = run(policy, batch, args, rewards)
    hidden = hidden_in(batch, args)
    numbers = draw_uniforms(Observation(batch.static.ids, hidden), batch.index, K, RANDOMNESS, "draw").double()
    advantage = rewards - rewards.mean(1, keepdim=True)
    loss, m = torch.zeros((), dtype=torch.float64), 0
    for b in range(len(batch)):
        source = batch.source.ids[b][batch.source.keep_mask[b]]
        positions = hidden[b].nonzero().flatten().tolist()
        for k in range(K):
            logits = bare_logits(policy, source, samples.ids[b, k][batch.static.keep_mask[b]])
            z = (logits / 0.8).masked_fill(~policy.allowed, -torch.inf)
            z = z.masked_fill(z < z.topk(20).values[:, -1:], -torch.inf)
            for n, t in enumerate(positions):
                token = samples.ids[b, k, t]
                cumulative = torch.cat([torch.zeros(1).double(), z[t].softmax(0).cumsum(0)])
                assert cumulative[token] - 1e-5 <= numbers[m + n, k] <= cumulative[token + 1] + 1e-5
                loss = loss - advantage[b, k] * z[t].log_softmax(0)[token] / len(positions)
        m += len(positions)
    assert output.terms[1].total.item() == pytest.approx(loss.item(), rel=1e-4)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    found = torch.autograd.grad(output.terms[1].total, parameters, allow_unused=True)
    expected = torch.autograd.grad(loss, parameters, allow_unused=True)
    largest = max(g.abs().max() for g in expected if g is not None).item()
    assert largest > 0.01
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * largest)


def test_two_hidden_tokens_have_the_joint_distribution_of_the_autoregressive_model(tiny_policy, tiny_batch, settings):
    """p(a_1, a_2) = p(a_1 | x) p(a_2 | x, a_1), by enumeration; drawn at once from masks it would be a product."""
    policy = tiny_policy("bart")
    batch = only(tiny_batch(policy, size=1), 2)
    choices, temperature = [20, 30, 40], 0.5
    policy.allowed[:] = False
    policy.allowed[choices] = True
    many = 4000
    args = settings(num_samples=many, mask_rate=1.0, observation="full", temperature=temperature)
    with torch.no_grad():
        _, samples, counts = run(policy, batch, args)
        positions = batch.static.ordinary[0].nonzero().flatten()
        assert counts["rl_rows"] == 2 * many
        expected = torch.zeros(3, 3)
        for i, j in product(range(3), range(3)):
            shown = batch.static.ids[0].clone()
            shown[positions] = torch.tensor([choices[i], choices[j]])
            logits = bare_logits(policy, batch.source.ids[0], shown)[positions][:, choices]
            p = (logits / temperature).softmax(1)
            expected[i, j] = p[0, i] * p[1, j]
    assert expected.sum().item() == pytest.approx(1, abs=1e-5)
    found = torch.tensor(
        [[((samples.draws[0] == a) & (samples.draws[1] == b)).sum() for b in choices] for a in choices]
    )
    deviation = (found / many - expected).abs() / (expected * (1 - expected) / many).sqrt()
    assert deviation.max() < 4
    independent = expected.sum(1, keepdim=True) * expected.sum(0, keepdim=True)
    distance = (independent - expected).abs() / (expected * (1 - expected) / many).sqrt()
    assert distance.max() > 8, "the toy must be able to tell a joint distribution from a product"


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_with_one_hidden_token_a_row_there_is_nothing_to_feed_back(tiny_policy, tiny_batch, settings, kind):
    """The samples, the loss and its gradient are then those of the partially observable method."""
    policy = tiny_policy(kind, dtype=torch.float64)
    batch = only(tiny_batch(policy), 1)
    results = []
    for observation in ("masked", "full"):
        output, samples, _ = run(policy, batch, settings(num_samples=K, mask_rate=1.0, observation=observation))
        policy.zero_grad()
        output.terms[1].total.backward()
        results.append((samples.ids, output.terms[1].total.item(), policy.base.get_output_embeddings().weight.grad))
    (ids, loss, gradient), (other_ids, other_loss, other_gradient) = results
    assert torch.equal(ids, other_ids)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-4, atol=1e-6)
