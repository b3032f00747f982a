"""Identity 1: the RL loss without its normaliser is the RL loss."""

import pytest
import torch
from tests.reference import trained_loss

from semioffline.algorithm.losses import Advantages, advantages
from semioffline.algorithm.masking import hide, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import draw, draw_uniforms, sampling_logits
from semioffline.algorithm.tensors import Row
from semioffline.methods.semi_offline import Method
from semioffline.scoring.scorer import Scores

KINDS = ["bart", "t5", "t5_tied", "llama", "llama_tied", "gpt2"]
K, TEMPERATURE = 6, 0.7
RANDOMNESS = Randomness(seed=1, step=0)
ADVANTAGES = {"mean": {}, "leave-one-out": {"baseline": "leave_one_out"}, "scaled": {"scale": True}}


def bare_logits(policy, batch, observed):
    """`model(...).logits` of the Hugging Face model itself, example by example, without padding: a list of (T, V)."""
    out = []
    for b in range(len(batch)):
        source = batch.source.ids[b][batch.source.keep_mask[b]]
        shown = observed[b][batch.static.keep_mask[b]]
        if policy.is_encoder_decoder:
            start = torch.tensor([policy.model.config.decoder_start_token_id])
            inputs = torch.cat([start, shown[:-1]])
            out.append(policy.model(input_ids=source[None], decoder_input_ids=inputs[None]).logits[0])
        else:
            logits = policy.model(input_ids=torch.cat([source, shown])[None]).logits[0]
            out.append(logits[len(source) - 1 : -1])
    return out


def dense_loss(logits, hidden, draws, given, allowed, loss_scale):
    """sum over rows of w sum_k - A_k sum_{t hidden} log p(a_t^k), p = softmax(z / temperature) over allowed tokens.

    w is 1/K (sequence) or 1/|M| (token), K the samples that have a reward.
    """
    total, first = torch.zeros((), dtype=torch.float64), 0
    for b, z in enumerate(logits):
        positions = hidden[b].nonzero().flatten()
        if len(positions) == 0:
            continue
        log_p = (z[positions] / TEMPERATURE).masked_fill(~allowed, -torch.inf).log_softmax(1)  # (M_b, V)
        chosen = log_p.gather(1, draws[first : first + len(positions)])  # (M_b, K)
        first += len(positions)
        divisor = given.counts[b] if loss_scale == "sequence" else len(positions)
        total = total - (given.values[b] * chosen.sum(0)).sum() / divisor
    assert first == len(draws)
    return total


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


CASES = [(kind, True) for kind in KINDS] + [("llama", False), ("gpt2", False)]


@pytest.mark.parametrize(("kind", "share_prompt"), CASES)
def test_sparse_and_dense_losses_agree_in_value_and_in_every_gradient(tiny_policy, tiny_batch, kind, share_prompt):
    """All K samples of a row share the hidden positions and their logits z_t, and sum_k A_k = 0. So in

        sum_k A_k log p(a_t^k) = sum_k A_k z_t[a_t^k] / tau  -  (sum_k A_k) logsumexp(z_t / tau)

    the second term is 0, in value and gradient, also when p is restricted to allowed tokens (their logsumexp does not
    depend on k either). Hence L_RL = - sum_t sum_k w A_k z_t[a_t^k] / tau. The dense side here is the model's own
    `logits` and a full log-softmax; the sparse side goes through Policy, with the ground truth's row beside it. They
    agree for every parameter only if Policy applies the model's own output map (T5's d_model ** -0.5 with tied
    embeddings, BART's bias) and reads the right positions.
    """
    policy = tiny_policy(kind, dtype=torch.float64, share_prompt=share_prompt)
    batch = tiny_batch(policy)
    static = batch.static
    observation = hide(static, 0.5, policy.tokens.mask_id, mask_uniforms(static, batch.index, RANDOMNESS, "mask"))
    observation.hidden[2] = False  # a row in which nothing is hidden
    observation.ids[2] = static.ids[2]
    rewards = torch.randn(len(batch), K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rewards[1, 3] = float("nan")  # a sample that is left out

    rows = [
        Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask),
        Row(observation.ids, static.keep_mask, observation.hidden, "rl"),
    ]
    with torch.no_grad():
        z = sampling_logits(policy.predict(batch.source, rows)[1], policy.allowed, TEMPERATURE)
    draws = draw(z, draw_uniforms(observation, batch.index, K, RANDOMNESS, "draw")).ids
    assert policy.allowed[draws].all()
    assert not policy.allowed.all()

    for options in ADVANTAGES.values():
        given = advantages(rewards, **options)
        for loss_scale in ("token", "sequence"):
            logits = bare_logits(policy, batch, observation.ids)
            dense = dense_loss(logits, observation.hidden, draws, given, policy.allowed, loss_scale)
            expected = gradients(dense, policy.model)
            drawn = policy.predict(batch.source, rows)[1].gather(1, draws) / TEMPERATURE
            sparse = trained_loss(drawn, observation.hidden.nonzero()[:, 0], given, loss_scale)
            found = gradients(sparse, policy.model)

            assert sparse.item() == pytest.approx(dense.item(), rel=1e-5, abs=1e-6)
            assert found.keys() == expected.keys()
            largest = max(g.abs().max() for g in expected.values())
            assert largest > 0.01
            for name in expected:
                torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6 * largest.item(), msg=name)


@pytest.mark.parametrize("loss_scale", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["bart", "t5_tied", "llama"])
def test_the_methods_step_is_the_formula(tiny_policy, tiny_batch, settings, kind, loss_scale):
    """The RL term of one `semi_offline` step, with its own masks and draws, is the dense loss of the bare model:

    L_RL = w sum_k - (R_k - b) sum_{t hidden} log p(a_t^k | o_t), and so is its gradient in every parameter.
    """
    policy = tiny_policy(kind, dtype=torch.float64)
    batch = tiny_batch(policy)
    rewards = torch.rand(len(batch), K, generator=torch.Generator().manual_seed(3))
    seen = []

    def score(samples, batch):
        seen.append(samples)
        return Scores(rewards, [[""] * K] * len(batch), {})

    args = settings(
        num_samples=K, temperature=TEMPERATURE, loss_scale=loss_scale, baseline="leave_one_out", rl_weight=2.0
    )
    output = Method(args).step(policy, batch, score, RANDOMNESS)
    term = next(term for term in output.terms if term.name == "rl")
    found = gradients(term.total, policy.model)

    uniforms = mask_uniforms(batch.static, batch.index, RANDOMNESS, "mask")
    observation = hide(batch.static, args.mask_rate, policy.tokens.mask_id, uniforms)
    exact = rewards.double()
    given = Advantages(K / (K - 1) * (exact - exact.mean(1, keepdim=True)), torch.full((len(batch),), K))
    logits = bare_logits(policy, batch, observation.ids)
    dense = dense_loss(logits, observation.hidden, seen[0].draws, given, policy.allowed, loss_scale)
    expected = gradients(dense, policy.model)

    assert (term.per, term.weight) == ("row", 2.0)
    assert term.total.item() == pytest.approx(dense.item(), rel=1e-4, abs=1e-5)
    largest = max(g.abs().max() for g in expected.values()).item()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5 * largest, msg=name)


def test_the_gradient_on_the_logits_has_at_most_k_entries_a_position():
    """d L / d z_t is non-zero only at the tokens drawn at t: no softmax backward, K rows of the output embedding."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0), requires_grad=True)
    draws = torch.randint(50, (4, K), generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([0, 0, 1, 1])
    given = advantages(torch.randn(2, K, generator=torch.Generator().manual_seed(2)))
    trained_loss(logits.gather(1, draws), rows, given).backward()
    drawn = torch.zeros_like(logits, dtype=torch.bool).scatter(1, draws, True)
    assert (logits.grad[~drawn] == 0).all()
    assert (logits.grad[drawn] != 0).all()


def test_a_tied_t5_has_an_output_scale_to_get_wrong(tiny_policy):
    """A guard of the test above: the tied model's logits are d_model ** -0.5 times those of its embedding."""
    policy = tiny_policy("t5_tied")
    ids = torch.tensor([[5, 6, 7]])
    out = policy.model(input_ids=ids, decoder_input_ids=ids, output_hidden_states=True)
    unscaled = out.decoder_hidden_states[-1] @ policy.model.get_input_embeddings().weight.T
    torch.testing.assert_close(out.logits, unscaled * policy.model.config.d_model**-0.5)
