"""GRPO and PPO: losses and gradients by a loop, the first step on a rollout, what repeats and what it costs."""

import math
from dataclasses import replace

import pytest
import torch

from semioffline.algorithm.losses import advantages
from semioffline.algorithm.randomness import Randomness
from semioffline.methods.shared.on_policy import sample_texts
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

KINDS = ["bart", "t5", "llama"]
METHODS = ["grpo", "ppo"]
OWN = {"grpo": {"num_samples": 3}, "ppo": {}}


def vowels(completions, **kwargs):
    """Some number that differs from text to text."""
    return [float(sum(text.count(v) for v in "aeiou") % 7) for text in completions]


def discovers(completions, **kwargs):
    return [float("discover" in text.split()) for text in completions]


def prepared(policy, args):
    method = load_method(args)
    method.prepare(policy, [])
    if getattr(method, "value_head", None) is not None:
        torch.nn.init.normal_(method.value_head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    return method


def scorer(policy, reward=vowels):
    return Scorer(policy, RewardSet(reward))


def move(policy):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=generator)


def log_p_and_states(policy, source, ids, temperature):
    """(T,) of one text by the bare model, and the (T, D) decoder states before its tokens."""
    model = policy.base
    if policy.is_encoder_decoder:
        shown = torch.tensor([[policy.config.decoder_start_token_id, *ids[:-1]]])
        out = model(input_ids=source[None], decoder_input_ids=shown, output_hidden_states=True)
        logits, states = out.logits[0], out.decoder_hidden_states[-1][0]
    else:
        out = model(input_ids=torch.cat([source, torch.tensor(ids)])[None], output_hidden_states=True)
        logits, states = out.logits[0, len(source) - 1 : -1], out.hidden_states[-1][0, len(source) - 1 : -1]
    z = logits / temperature
    forbidden = torch.zeros(z.shape[1], dtype=torch.bool)
    forbidden[policy.tokens.mask_id] = True
    log_p = z.masked_fill(forbidden, -torch.inf).log_softmax(1)[range(len(ids)), ids]
    return log_p, states.detach()


def sources(batch):
    return [ids[keep] for ids, keep in zip(batch.source.ids, batch.source.keep_mask, strict=True)]


def surrogate(new, old, advantage, epsilon):
    ratio = (new - old).exp()
    return min(ratio * advantage, min(max(ratio, 1 - epsilon), 1 + epsilon) * advantage)


def check_gradients(policy, ours, theirs):
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    found = torch.autograd.grad(ours, weights, retain_graph=True, materialize_grads=True, allow_unused=True)
    expected = torch.autograd.grad(theirs, weights, materialize_grads=True, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert any(bool(one.abs().max() > 0) for one in found)


@pytest.mark.parametrize("scale", ["token", "sequence"])
@pytest.mark.parametrize("kind", KINDS)
def test_grpo_is_what_a_loop_over_samples_gives(tiny_policy, tiny_batch, settings, kind, scale):
    """-sum_k sum_t min(r_t A_k, clip(r_t) A_k) / |y_k|**alpha, the policy having moved since the samples were drawn."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy, 3)
    args = settings("grpo", num_samples=3, length_alpha=0.7, temperature=1.3, loss_scale=scale, max_completion_length=9)
    method = prepared(policy, args)
    texts = sample_texts(policy, batch, args, Randomness(0, 4), 3)
    with torch.no_grad():
        old = [log_p_and_states(policy, sources(batch)[n // 3], ids, 1.3)[0] for n, ids in enumerate(texts)]
    batch = replace(batch, rollout=method.roll_out(policy, batch, scorer(policy), Randomness(0, 4)))
    move(policy)
    output = method.step(policy, batch, scorer(policy), Randomness(0, 5))
    values = advantages(torch.tensor(vowels(policy.tokens.decode(texts))).view(3, 3), scale=True).values
    expected, clipped, number = 0.0, 0, 0
    for n, ids in enumerate(texts):
        new, _ = log_p_and_states(policy, sources(batch)[n // 3], ids, 1.3)
        a = values[n // 3, n % 3].item()
        total = sum(surrogate(new[t], old[n][t], a, 0.2) for t in range(len(ids)))
        expected = expected - total / len(ids) ** 0.7 / (3 if scale == "sequence" else 1)
        ratios = (new - old[n]).exp().tolist()
        clipped += sum((r > 1.2 and a > 0) or (r < 0.8 and a < 0) for r in ratios)
        number += len(ids)
    found = {term.name: term for term in output.terms}
    assert set(found) == {"mle", "rl"}
    assert found["rl"].total.item() == pytest.approx(expected.item(), rel=1e-3)
    assert output.metrics["frac_clipped"].item() == pytest.approx(clipped / number)
    assert clipped > 0
    assert len(output.completions()) == 9
    check_gradients(policy, found["rl"].total, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_ppo_is_what_a_loop_over_tokens_gives(tiny_policy, tiny_batch, settings, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy, 3)
    args = settings("ppo", gamma=0.9, gae_lambda=0.8, length_alpha=0.7, value_clip=0.05, max_completion_length=9)
    method = prepared(policy, args)
    texts = sample_texts(policy, batch, args, Randomness(0, 4), 1)
    rewards = vowels(policy.tokens.decode(texts))

    def value(states):
        return policy.value_head(states).squeeze(1)

    with torch.no_grad():
        before = [log_p_and_states(policy, source, ids, 1.0) for source, ids in zip(sources(batch), texts, strict=True)]
        old_values = [value(states).tolist() for _, states in before]
    batch = replace(batch, rollout=method.roll_out(policy, batch, scorer(policy), Randomness(0, 4)))
    move(policy)
    output = method.step(policy, batch, scorer(policy), Randomness(0, 5))
    rl, critic = 0.0, 0.0
    for b, ids in enumerate(texts):
        new, states = log_p_and_states(policy, sources(batch)[b], ids, 1.0)
        v, v_new, last = [*old_values[b], 0.0], value(states), len(ids) - 1
        delta = [(rewards[b] if t == last else 0.0) + 0.9 * v[t + 1] - v[t] for t in range(len(ids))]
        for t in range(len(ids)):
            advantage = sum(0.72 ** (s - t) * delta[s] for s in range(t, len(ids)))
            rl = rl - surrogate(new[t], before[b][0][t], advantage, 0.2) / len(ids) ** 0.7
            kept = v[t] + (v_new[t] - v[t]).clamp(-0.05, 0.05)
            target = advantage + v[t]
            critic = critic + torch.maximum((v_new[t] - target) ** 2, (kept - target) ** 2) / len(ids)
    found = {term.name: term for term in output.terms}
    assert set(found) == {"mle", "rl", "critic"}
    assert found["rl"].total.item() == pytest.approx(rl.item(), rel=1e-3)
    assert found["critic"].total.item() == pytest.approx(critic.item(), rel=1e-3)
    check_gradients(policy, found["rl"].total + found["critic"].total, rl + critic)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_the_first_step_on_a_rollout_is_reinforce(tiny_policy, tiny_batch, settings, kind, name):
    """Dropout off, all ratios are 1, and the gradient of the policy term is that of -sum A log p / |y| with the same
    advantages, samples and all."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    args = settings(name, max_completion_length=9, **OWN[name])
    method = prepared(policy, args)
    rollout = method.roll_out(policy, batch, scorer(policy), Randomness(0, 4))
    output = method.step(policy, replace(batch, rollout=rollout), scorer(policy), Randomness(0, 4))
    many = OWN[name].get("num_samples", 1)
    expected = 0.0
    for n, (ids, keep) in enumerate(zip(rollout["ids"], rollout["keep"], strict=True)):
        tokens = ids[keep].tolist()
        log_p, _ = log_p_and_states(policy, sources(batch)[n // many], tokens, 1.0)
        torch.testing.assert_close(log_p.exp() / rollout["log_p"][n][: len(tokens)].exp(), torch.ones(len(tokens)))
        if name == "grpo":
            weight = advantages(rollout["rewards"], scale=True).values[n // many, n % many]
        else:
            weight = rollout["advantages"][n, : len(tokens)]
        expected = expected - (weight * log_p).sum() / len(tokens)
    assert output.metrics["frac_clipped"].item() == 0
    [term] = [term for term in output.terms if term.name == "rl"]
    check_gradients(policy, term.total, expected)


@pytest.mark.parametrize("name", METHODS)
def test_an_example_has_the_same_rollout_in_every_batch(tiny_policy, tiny_batch, settings, name):
    policy = tiny_policy("bart")
    method = prepared(policy, settings(name, max_completion_length=9, **OWN[name]))
    two, four = (method.roll_out(policy, tiny_batch(policy, n), scorer(policy), Randomness(0, 4)) for n in (2, 4))
    assert {"ids", "log_p", "rewards"} <= two.keys() == four.keys()
    for part, value in two.items():
        if value.dim() == 2:
            same = four[part][: len(value), : value.shape[1]]
            assert torch.equal(same, value) if value.dtype == torch.long else torch.allclose(same * 1.0, value * 1.0)


@pytest.mark.parametrize("name", METHODS)
def test_samples_without_reward_count_nothing(tiny_policy, tiny_batch, settings, name):
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    method = prepared(policy, settings(name, max_completion_length=6, **OWN[name]))
    nothing = scorer(policy, lambda completions, **kwargs: [None] * len(completions))
    output = method.step(policy, batch, nothing, Randomness(0, 0))
    assert [term.total.item() for term in output.terms if term.name != "mle"] == [0.0] * (len(output.terms) - 1)
    assert math.isnan(output.metrics["reward"])


@pytest.mark.parametrize("kind", ["bart", "llama"])
@pytest.mark.parametrize(("name", "many"), [("grpo", 3), ("ppo", 1)])
def test_what_a_rollout_and_its_repetition_cost(tiny_policy, tiny_batch, settings, kind, name, many):
    """K * T passes to sample and K to score once; each step on it has one MLE row and K rows with gradient."""
    policy = tiny_policy(kind)
    policy.base.generation_config.suppress_tokens = [2]
    batch = tiny_batch(policy)
    method = prepared(policy, settings(name, max_completion_length=6, **OWN[name]))
    batch = replace(batch, rollout=method.roll_out(policy, batch, scorer(policy), Randomness(0, 0)))
    for step in range(2):
        method.step(policy, batch, scorer(policy), Randomness(0, step))
    policy.meter.add_inputs(len(batch))
    cost = policy.meter.per_input()
    assert cost["forward_passes"] == many * 6 + many
    assert (cost["grad_rows"], cost["mle_rows"]) == (2 * many, 2)


@pytest.mark.parametrize(
    ("name", "own"), [("grpo", {"num_samples": 4, "rl_weight": 2.0}), ("ppo", {"rl_weight": 10.0})]
)
def test_it_finds_the_reward(learnt, ads_examples, settings, short_training, sampled_reward, name, own):
    args = settings(name, max_completion_length=24, **own)
    method = load_method(args)
    before = sampled_reward(learnt, ads_examples, args, discovers)
    short_training(learnt, method, ads_examples, steps=20, lr=1e-3, reward=discovers)
    assert sampled_reward(learnt, ads_examples, args, discovers) > before + 0.2
