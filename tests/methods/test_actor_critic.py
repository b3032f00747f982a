"""Actor-critic: the value head, its loss, its file."""

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row
from semioffline.errors import UserError
from semioffline.methods.on_policy import rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer


def length(completions, **kwargs):
    return [float(len(text)) / 10 for text in completions]


def discovers(completions, **kwargs):
    return [float("discover" in text.split()) for text in completions]


def prepared(policy, args):
    method = load_method(args)
    method.prepare(policy, [])
    torch.nn.init.normal_(policy.value_head.weight, generator=torch.Generator().manual_seed(0))
    return method


@pytest.mark.parametrize("kind", ["bart", "t5", "llama", "gpt2"])
def test_values_are_a_linear_map_of_the_states_behind_the_logits(tiny_policy, tiny_batch, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    head = policy.add_value_head()
    assert policy.add_value_head() is head
    keep = batch.target.keep_mask
    rows = [Row(batch.target.ids, keep, keep), Row(batch.target.ids, keep, batch.target.ordinary, "grad")]
    torch.nn.init.normal_(head.weight)
    plain = policy.predict(batch.source, rows)
    logits, values = policy.predict(batch.source, rows, with_values=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, logits, strict=True))
    assert [len(v) for v in values] == [len(z) for z in logits]
    assert torch.allclose(values[0][batch.target.ordinary[keep]], values[1], atol=1e-5)
    sum(v.sum() for v in values).backward()
    assert head.weight.grad is not None
    assert all(p.grad is None for p in policy.model.parameters()), "the critic must not move the policy"


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_the_losses_by_a_loop(tiny_policy, tiny_batch, settings, kind):
    """A_t = R - V_t; L_RL = -sum_t A_t log p_t / |y|; L_critic = mean_t A_t**2; summed over rows."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    args = settings("actor_critic", max_completion_length=8)
    method = prepared(policy, args)
    output = method.step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))
    texts = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    row = sampled_row(policy, batch, texts, args.max_completion_length)
    [logits], [values] = policy.predict(batch.source, [row], with_values=True)
    log_p = sampled_log_p(policy, logits, row, args)
    rl, critic = 0.0, 0.0
    for b, reward in enumerate(length(policy.tokens.decode(texts))):
        own = rows_of(row) == b
        advantage = reward - values[own].detach()
        rl -= (advantage * log_p[own]).mean().item()
        critic += advantage.square().mean().item()
    found = {term.name: term for term in output.terms}
    assert found["rl"].total.item() == pytest.approx(rl, rel=1e-4)
    assert found["critic"].total.item() == pytest.approx(critic, rel=1e-4)
    found["rl"].total.backward(retain_graph=True)
    assert policy.value_head.weight.grad is None, "the RL loss must not move the critic"


def test_the_head_is_saved_and_loaded(tiny_policy, settings, tmp_path):
    saved = prepared(tiny_policy("bart"), settings("actor_critic"))
    saved.save(tmp_path)
    other = load_method(settings("actor_critic"))
    other.prepare(tiny_policy("bart"), [])
    other.load(tmp_path)
    assert torch.equal(other.value_head.weight, saved.value_head.weight)
    with pytest.raises(UserError, match=r"value_head\.safetensors"):
        other.load(tmp_path / "elsewhere")


def test_without_a_head_there_are_no_values(tiny_policy, tiny_batch):
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    row = Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)
    with pytest.raises(RuntimeError, match="add_value_head"):
        policy.predict(batch.source, [row], with_values=True)


def test_it_finds_the_reward_and_the_critic_learns(learnt, ads_examples, settings, short_training, sampled_reward):
    args = settings("actor_critic", max_completion_length=24, rl_weight=10.0)
    method = load_method(args)
    before = sampled_reward(learnt, ads_examples, args, discovers)
    outputs = short_training(learnt, method, ads_examples, steps=20, lr=1e-3, reward=discovers)
    assert sampled_reward(learnt, ads_examples, args, discovers) > before + 0.2
    assert outputs[0].metrics["value"] == 0.0
    assert outputs[-1].metrics["value"] > 0.1
