"""Actor-critic: the value head, its loss, its file."""

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row
from semioffline.errors import UserError
from semioffline.methods.actor_critic import gains, with_end
from semioffline.methods.shared.on_policy import rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.training.trainer import SemiOfflineTrainer


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
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    plain = policy.predict(batch.source, rows)
    logits, values = policy.predict(batch.source, rows, with_values=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, logits, strict=True))
    assert [len(v) for v in values] == [len(z) for z in logits]
    assert torch.allclose(values[0][batch.target.ordinary[keep]], values[1], atol=1e-5)
    sum(v.sum() for v in values).backward()
    assert head.weight.grad is not None
    assert all(p.grad is None for p in policy.model.parameters()), "the critic must not move the policy"


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
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


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_a_critic_that_computes_the_reward_by_a_loop(tiny_policy, tiny_batch, settings, kind):
    """A_t = V(x, y_<=t) - V(x, y_<t), by the bare model's states; they sum to V(x, y) - V(x). The critic learns R at
    all of them."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    args = settings("actor_critic", max_completion_length=8, critic_role="reward")
    output = prepared(policy, args).step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))
    texts = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    rl, critic = 0.0, 0.0
    for b, (ids, reward) in enumerate(zip(texts, length(policy.tokens.decode(texts)), strict=True)):
        source = batch.source.ids[b][batch.source.keep_mask[b]]
        if policy.is_encoder_decoder:
            shown = torch.tensor([[policy.config.decoder_start_token_id, *ids]])
            out = policy.base(input_ids=source[None], decoder_input_ids=shown, output_hidden_states=True)
            states, logits = out.decoder_hidden_states[-1][0], out.logits[0]
        else:
            out = policy.base(torch.cat([source, torch.tensor(ids)])[None], output_hidden_states=True)
            states, logits = out.hidden_states[-1][0, len(source) - 1 :], out.logits[0, len(source) - 1 :]
        values = policy.value_head(states.detach()).squeeze(1)  # (T + 1,)
        logits[:, policy.tokens.mask_id] = -torch.inf
        for t, token in enumerate(ids):
            gain = (values[t + 1] - values[t]).detach()
            rl = rl - gain * logits[t].log_softmax(0)[token] / len(ids)
        critic = critic + (values - reward).square().mean()
    found = {term.name: term.total for term in output.terms}
    assert found["rl"].item() == pytest.approx(rl.item(), rel=1e-4)
    assert found["critic"].item() == pytest.approx(critic.item(), rel=1e-4)
    weights = list(policy.parameters())
    ours = torch.autograd.grad(found["rl"] + found["critic"], weights, materialize_grads=True, allow_unused=True)
    theirs = torch.autograd.grad(rl + critic, weights, materialize_grads=True, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_text_that_takes_all_positions_gets_no_end():
    keep = torch.tensor([[True, True, False], [True, True, True]])
    row = Row(torch.tensor([[5, 6, 1], [5, 6, 7]]), keep, keep, "grad")
    assert with_end(row, 1, None).wanted.tolist() == [[True, True, True, False], [True, True, True, True]]
    assert with_end(row, 1, 3).wanted.tolist() == [[True, True, True], [True, True, True]]


def test_gains_end_with_their_row():
    values, rows = torch.tensor([1.0, 3.0, 4.0, 7.0, 7.5]), torch.tensor([0, 0, 1, 1, 1])
    assert gains(values, rows).tolist() == [2.0, 0.0, 3.0, 0.5, 0.0]


@pytest.mark.parametrize("role", ["baseline", "reward"])
def test_in_the_warm_up_only_the_critic_learns(tiny_policy, tiny_batch, settings, role):
    policy = tiny_policy("bart")
    method = prepared(
        policy, settings("actor_critic", critic_warmup_steps=3, max_completion_length=8, critic_role=role)
    )
    for step, names in ((0, {"mle", "critic"}), (2, {"mle", "critic"}), (3, {"mle", "rl", "critic"})):
        output = method.step(policy, tiny_batch(policy), Scorer(policy, RewardSet(length)), Randomness(0, step))
        assert {term.name for term in output.terms} == names


def test_the_critic_has_its_own_learning_rate(tiny_policy, tiny_data, settings, tmp_path):
    """SGD, one step: the head moves by its rate, the model by its own; the schedule scales both."""
    moved = {}
    for rate in (None, 0.5):
        args = settings(
            "actor_critic", max_steps=1, per_device_train_batch_size=4, learning_rate=1e-3, optim="sgd",
            critic_learning_rate=rate, max_completion_length=8, max_grad_norm=0.0, save_strategy="no",
            disable_tqdm=True, eval_metrics=[], max_prompt_length=40,
        )  # fmt: skip
        args.output_dir = str(tmp_path / str(rate))
        trainer = SemiOfflineTrainer(tiny_policy("bart"), length, args, tiny_data)
        before = trainer.policy.model.model.shared.weight.detach().clone()
        trainer.train()
        head = trainer.policy.value_head.weight.detach().clone()
        moved[rate] = head, trainer.policy.model.model.shared.weight.detach() - before
    assert torch.allclose(moved[0.5][0], 500 * moved[None][0], rtol=1e-4)
    assert moved[None][0].abs().max() > 0
    assert torch.equal(moved[0.5][1], moved[None][1])


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


CRITICS = [(20, {}), (60, {"critic_role": "reward", "critic_warmup_steps": 30, "critic_learning_rate": 0.03})]
"""Steps and settings: before it can compute a reward, the critic must have learnt it."""


@pytest.mark.parametrize(("steps", "own"), CRITICS)
def test_it_finds_the_reward_and_the_critic_learns(
    learnt, ads_examples, settings, short_training, sampled_reward, steps, own
):
    args = settings("actor_critic", max_completion_length=24, rl_weight=10.0, **own)
    method = load_method(args)
    before = sampled_reward(learnt, ads_examples, args, discovers)
    outputs = short_training(learnt, method, ads_examples, steps=steps, lr=1e-3, reward=discovers)
    assert sampled_reward(learnt, ads_examples, args, discovers) > before + 0.2
    assert outputs[0].metrics["value"] == 0.0
    assert outputs[-1].metrics["value"] > 0.1
