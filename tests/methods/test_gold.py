"""GOLD: weights by a loop, the frozen start model, and what is saved of it."""

import math

import pytest
import torch

from semioffline.algorithm.losses import gold
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer


def step(method, policy, batch):
    return method.step(policy, batch, Scorer(policy, RewardSet([])), Randomness(0, 0))


def prepared(policy, tiny_data, args):
    examples = Examples(tiny_data, policy, 40, 40, progress=False)
    method = load_method(args)
    method.prepare(policy, examples)
    return method, examples


def test_the_loss_by_hand_and_its_gradient():
    """-max(p, 0.2) Q log p with p = 0.5 and 0.1; the gradient with respect to log p is -max(p, 0.2) Q."""
    log_p = torch.tensor([0.5, 0.1]).log().requires_grad_()
    loss = gold(log_p, torch.tensor([2.0, 3.0]), floor=0.2)
    assert loss.item() == pytest.approx(-(0.5 * 2 * log_p[0] + 0.2 * 3 * log_p[1]).item())
    loss.backward()
    assert log_p.grad.tolist() == pytest.approx([-1.0, -0.6])


@pytest.mark.parametrize("reward", ["s", "p"])
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_the_loss_by_a_loop_over_tokens(tiny_policy, tiny_data, settings, kind, reward):
    """The policy has moved away from the start model since the rewards were taken."""
    args = settings(
        method="gold", gold_reward=reward, gold_horizon=2, gold_discount=0.5, gold_floor=0.05, gold_baseline=-4.0,
        per_device_eval_batch_size=3,
    )  # fmt: skip
    start, policy = tiny_policy(kind), tiny_policy(kind, seed=1)
    method, examples = prepared(start, tiny_data, args)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in (5, 2)])
    expected = 0.0
    for b, lengths in enumerate(batch.target.lengths):
        q, p = (
            m.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)])[0]
            .log_softmax(1)
            .gather(1, batch.target.ids[batch.target.keep_mask][:, None])[:, 0]
            .split(batch.target.lengths)[b]
            .tolist()
            for m in (start, policy)
        )
        q += [0.0, 0.0]  # certain after the end
        rewards = [torch.tensor(v).exp().item() if reward == "s" else max(0.0, v + 4.0) for v in q]
        for t in range(lengths):
            to_go = (rewards[t] + 0.5 * rewards[t + 1] + 0.25 * rewards[t + 2]) / 1.75
            expected -= max(0.05, torch.tensor(p[t]).exp().item()) * to_go * p[t]
    output = step(method, policy, batch)
    assert [term.name for term in output.terms] == ["gold"]
    assert output.terms[0].per == "token"
    assert output.terms[0].total.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("reward", "floor"), [("s", 0.3), ("p", 3.5)])
def test_rewards_have_a_lower_bound(tiny_policy, tiny_data, settings, reward, floor):
    """c in algorithm 1 of Pang and He: each reward of the horizon is at least that, before they are added up."""
    policy = tiny_policy("bart")
    args = settings("gold", gold_reward=reward, gold_reward_floor=floor, gold_horizon=1, gold_baseline=-4.0)
    method, examples = prepared(policy, tiny_data, args)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in (5, 2)])
    found = method._returns(batch)
    for b, example in enumerate((5, 2)):
        log_q = [*method.initial.values[example].tolist(), 0.0]
        rewards = [max(floor, math.exp(v) if reward == "s" else v + 4.0) for v in log_q]
        expected = [(now + then) / 2 for now, then in zip(rewards, rewards[1:])]
        assert found[b, : len(expected)].tolist() == pytest.approx(expected, rel=1e-5)
    assert floor in [pytest.approx(v) for v in found[batch.target.keep_mask].tolist()]


def test_the_delta_reward_is_one_and_needs_no_start_model(tiny_policy, tiny_data, settings, tmp_path):
    """GOLD-delta: -sum_t max(p_t, floor) log p_t. Nothing is computed before training, nor saved."""
    policy = tiny_policy("bart")
    args = settings("gold", gold_reward="delta", gold_horizon=3, gold_discount=0.5, gold_reward_floor=0.2)
    method, examples = prepared(policy, tiny_data, args)
    assert not method.initial.values
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])
    target = batch.target
    [logits] = policy.predict(batch.source, [Row(target.ids, target.keep_mask, target.keep_mask)])
    log_p = logits.log_softmax(1).gather(1, target.ids[target.keep_mask][:, None])[:, 0]
    output = step(method, policy, batch)
    expected = -(log_p.exp().clamp(min=0.1) * log_p).sum()
    assert output.terms[0].total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert output.metrics["gold/return"].item() == 1.0
    method.save(tmp_path)
    method.load(tmp_path)


def test_the_rewards_survive_a_resume(tiny_policy, tiny_data, settings, tmp_path):
    method, examples = prepared(tiny_policy("bart"), tiny_data, settings("gold"))
    method.save(tmp_path)
    policy = tiny_policy("bart", seed=3)
    resumed, _ = prepared(policy, tiny_data, settings("gold"))
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])
    expected = step(method, policy, batch).terms[0].total
    assert not torch.equal(step(resumed, policy, batch).terms[0].total, expected)
    resumed.load(tmp_path)
    assert torch.equal(step(resumed, policy, batch).terms[0].total, expected)
    other, _ = prepared(policy, tiny_data.select(range(3)), settings("gold"))
    with pytest.raises(UserError, match="other training data"):
        other.load(tmp_path)
    with pytest.raises(UserError, match=r"gold_rewards\.safetensors"):
        other.load(tmp_path / "elsewhere")


def test_it_costs_one_pass_and_preparing_is_not_counted(tiny_policy, tiny_data, settings):
    policy = tiny_policy("bart")
    method, examples = prepared(policy, tiny_data, settings("gold"))
    step(method, policy, Collator(policy.tokens.pad_id)([examples[n] for n in range(4)]))
    policy.meter.add_inputs(4)
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["calls"], cost["encoder_rows"]) == (1, 1 / 4, 1)


def test_it_raises_the_probability_of_what_the_start_model_likes(learnt, ads_examples, settings, short_training):
    """The gradient is that of sum_t Q_t p_t where p_t is above the floor: this mean must rise."""
    method = load_method(settings("gold"))
    batch = Collator(learnt.tokens.pad_id)([ads_examples[n] for n in range(64)])
    target = batch.target

    def objective():
        with torch.no_grad():
            [logits] = learnt.predict(batch.source, [Row(target.ids, target.keep_mask, target.keep_mask)])
            p = logits.softmax(1).gather(1, target.ids[target.keep_mask][:, None])[:, 0]
            return (method._returns(batch)[target.keep_mask] * p).mean().item()

    method.prepare(learnt, ads_examples)
    before = objective()
    kept = list(method.initial.values)
    method.prepare = lambda *args: None  # the rewards of the start model, for both measurements
    short_training(learnt, method, ads_examples, steps=25, lr=1e-3)
    assert method.initial.values == kept
    assert objective() > before + 0.01
