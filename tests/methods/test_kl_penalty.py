"""The KL penalty: its value and gradient by a loop, its reference, its cost."""

import copy

import pytest
import torch
from datasets import Dataset

from semioffline.algorithm.losses import kl_divergence
from semioffline.algorithm.randomness import Randomness
from semioffline.errors import UserError
from semioffline.methods.shared.frozen import Reference
from semioffline.methods.shared.kl_penalty import KLPenalty, adapted
from semioffline.methods.shared.on_policy import sample_texts
from semioffline.methods.shared.registry import load_method
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.training.trainer import SemiOfflineTrainer

KINDS = ["bart", "t5", "llama"]
RL_METHODS = ["semi_offline", "avg", "self_critic", "actor_critic"]


def vowels(completions, **kwargs):
    return [float(sum(text.count(v) for v in "aeiou") % 7) for text in completions]


def move(policy: Policy) -> None:
    """Weights away from where the policy started."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)


def prepared(policy, args):
    method = load_method(args)
    method.prepare(policy, [])
    return method


def run(policy, method, batch):
    return method.step(policy, batch, Scorer(policy, RewardSet(vowels)), Randomness(0, 3))


def kl_by_hand(model, before, source, shown, positions):
    """sum_v p log(p / p_0) at these positions of one text, by the bare models: (len(positions),)."""
    found = []
    for one in (model, before):
        if one.config.is_encoder_decoder:
            start = torch.tensor([one.config.decoder_start_token_id])
            logits = one(input_ids=source[None], decoder_input_ids=torch.cat([start, shown[:-1]])[None]).logits[0]
        else:
            logits = one(input_ids=torch.cat([source, shown])[None]).logits[0, len(source) - 1 : -1]
        found.append(logits[positions].float().log_softmax(1))
    log_p, log_q = found[0], found[1].detach()
    return torch.stack([sum(log_p[n].exp() * (log_p[n] - log_q[n])) for n in range(len(positions))])


def test_kl_of_two_distributions_by_hand():
    p, q = torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([[0.25, 0.75], [0.25, 0.75]])
    expected = 0.5 * torch.tensor(0.5 / 0.25).log() + 0.5 * torch.tensor(0.5 / 0.75).log()
    assert kl_divergence(p.log(), q.log()).tolist() == pytest.approx([expected.item(), 0.0], abs=1e-7)


@pytest.mark.parametrize("name", ["semi_offline", "avg"])
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_a_loop(tiny_policy, tiny_batch, settings, kind, name):
    """semi_offline: over the masked positions, given the masked text; avg: over the tokens of each sample."""
    policy = tiny_policy(kind)
    args = settings(name, num_samples=2, kl_weight=0.7, max_completion_length=9)
    method, before, batch = prepared(policy, args), copy.deepcopy(policy.base), tiny_batch(policy, 3)
    move(policy)
    output = run(policy, method, batch)
    [term] = [term for term in output.terms if term.name == "kl"]
    expected, every = 0.0, []
    texts = sample_texts(policy, batch, args, Randomness(0, 3), 2) if name == "avg" else []
    observation = method.method.observe(policy, batch, batch.static, Randomness(0, 3)) if name != "avg" else None
    for b in range(3):
        source = batch.source.ids[b][batch.source.keep_mask[b]]
        if observation is None:
            rows = [(torch.tensor(texts[2 * b + k]), range(len(texts[2 * b + k]))) for k in range(2)]
        else:
            rows = [(observation.ids[b][batch.static.keep_mask[b]], observation.hidden[b].nonzero()[:, 0].tolist())]
        for shown, positions in rows:
            kl = kl_by_hand(policy.base, before, source, shown, list(positions))
            expected = expected + kl.mean() / len(rows)
            every += kl.tolist()
    assert term.weight == 0.7
    assert term.total.item() == pytest.approx(expected.item(), rel=1e-4)
    assert output.metrics["kl"].item() == pytest.approx(sum(every) / len(every), rel=1e-4)
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(term.total, weights, retain_graph=True, allow_unused=True)
    theirs = torch.autograd.grad(expected, weights, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [*RL_METHODS, "ablations"])
def test_every_rl_method_has_it_and_it_starts_at_zero(tiny_policy, tiny_batch, settings, name):
    policy = tiny_policy("bart")
    own = {"num_samples": 2} if name in ("semi_offline", "avg", "ablations") else {}
    output = run(
        policy, prepared(policy, settings(name, kl_weight=1.0, max_completion_length=9, **own)), tiny_batch(policy)
    )
    [term] = [term for term in output.terms if term.name == "kl"]
    assert term.total.item() == pytest.approx(0.0, abs=1e-5)
    assert output.metrics["kl"].item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("name", RL_METHODS)
def test_without_a_weight_the_method_is_as_it_was(settings, name):
    """Nothing wraps it, so that it costs nothing and no number changes."""
    assert not isinstance(load_method(settings(name)), KLPenalty)
    assert isinstance(load_method(settings(name, kl_weight=0.1)), KLPenalty)


@pytest.mark.parametrize("name", ["semi_offline", "avg"])
def test_other_terms_stay_as_they_are(tiny_policy, tiny_batch, settings, name):
    policy = tiny_policy("bart")
    batch, given = tiny_batch(policy), {"num_samples": 2, "max_completion_length": 9}
    plain = {term.name: term.total for term in run(policy, prepared(policy, settings(name, **given)), batch).terms}
    braked = run(policy, prepared(policy, settings(name, kl_weight=2.0, **given)), batch)
    assert [term.name for term in braked.terms] == [*plain, "kl"]
    assert all(torch.equal(term.total, plain[term.name]) for term in braked.terms if term.name != "kl")


@pytest.mark.parametrize("kind", KINDS)
def test_it_costs_one_forward_pass(tiny_policy, tiny_batch, settings, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    run(policy, prepared(policy, settings(num_samples=2, kl_weight=1.0)), batch)
    policy.meter.add_inputs(len(batch))
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["grad_rows"]) == (2, 1, 0)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_of_an_adapter_only_its_own_weights_are_copied(tiny_policy, tiny_batch, settings, kind):
    """The reference is the model with the adapter as it was: a new one changes nothing, as if it were disabled."""
    peft = pytest.importorskip("peft")
    policy = tiny_policy(kind, peft_config=peft.LoraConfig(r=2, target_modules="all-linear"))
    batch, reference = tiny_batch(policy), Reference(policy)
    copied = sum(weight.numel() for weight in reference.weights.values())
    assert copied < 0.6 * sum(weight.numel() for weight in policy.model.parameters())
    assert all("lora" in name or "token_adapter" in name for name in reference.weights)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_" in name:
                weight += 0.3
    rows = [policy_row(batch)]
    with policy.model.disable_adapter():
        disabled = policy.predict(batch.source, rows)
    found = reference.predict(policy, batch.source, rows)
    assert torch.allclose(found[0], disabled[0], atol=1e-5)
    assert not torch.allclose(policy.predict(batch.source, rows)[0], disabled[0], atol=1e-2)


def policy_row(batch):
    from semioffline.algorithm.tensors import Row

    return Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask, "rl")


def test_the_reference_stays_where_the_policy_was(tiny_policy, tiny_batch):
    policy = tiny_policy("bart").train()
    batch, reference = tiny_batch(policy), Reference(policy)
    first = policy.eval().predict(batch.source, [policy_row(batch)])[0]
    policy.train()
    move(policy)
    found = reference.predict(policy, batch.source, [policy_row(batch)])[0]
    torch.testing.assert_close(found, first)
    assert not found.requires_grad
    assert policy.model.training


def test_the_weight_follows_the_target_once_a_step(tiny_policy, tiny_batch, settings, tmp_path):
    """Two micro-batches a step: up by 2 % at most while the policy is farther than the target, down while nearer."""
    policy = tiny_policy("bart")
    method = prepared(policy, settings(num_samples=2, kl_weight=0.5, kl_target=0.01))
    batch, scorer = tiny_batch(policy), Scorer(policy, RewardSet(vowels))

    def weight_of(step):
        first, second = (method.step(policy, batch, scorer, Randomness(0, step)).metrics for _ in range(2))
        assert first["kl_weight"] == second["kl_weight"]
        return first["kl_weight"]

    assert weight_of(0) == 0.5
    assert weight_of(1) == pytest.approx(0.5 * 0.98)  # still the initial model
    move(policy)
    assert weight_of(2) == pytest.approx(0.5 * 0.98**2)
    assert weight_of(3) == pytest.approx(0.5 * 0.98**2 * 1.02)
    method.save(tmp_path)  # after step 3, whose divergence counts once
    for loaded in (method, prepared(policy, settings(num_samples=2, kl_weight=0.5, kl_target=0.01))):
        if loaded is not method:
            loaded.reference = method.reference
        loaded.load(tmp_path)
        output = loaded.step(policy, batch, scorer, Randomness(0, 4))
        assert output.metrics["kl_weight"] == pytest.approx(0.5 * 0.98**2 * 1.02**2)
        [term] = [term for term in output.terms if term.name == "kl"]
        assert term.weight == output.metrics["kl_weight"]


def test_between_its_bounds_the_weight_changes_by_a_tenth_of_the_error():
    assert adapted(2.0, divergence=0.11, target=0.1) == pytest.approx(2.0 * (1 + 0.1 * 0.1))
    assert adapted(2.0, divergence=1.0, target=0.1) == pytest.approx(2.0 * 1.02)
    assert adapted(2.0, divergence=0.0, target=0.1) == pytest.approx(2.0 * 0.98)


def test_a_target_needs_a_weight(settings):
    with pytest.raises(UserError, match="kl_target needs a kl_weight above 0"):
        settings(kl_target=0.1)


@pytest.mark.parametrize("name", ["semi_offline", "brio+semi_offline"])
def test_a_resumed_run_has_the_same_reference(tiny_policy, tiny_data, settings, tmp_path, name):
    """Four steps, or two and two more: the same weights. Another initial model is refused."""
    rows = tiny_data.to_list()
    for n, row in enumerate(rows):
        row |= {"candidates": [rows[n - 1]["completion"], row["completion"]], "candidate_rewards": [0.1, 0.9]}

    def trainer(folder, seed=0):
        args = settings(
            name, max_steps=4, save_steps=2, save_total_limit=3, per_device_train_batch_size=4, learning_rate=1e-2,
            num_samples=2, kl_weight=0.5, kl_target=0.05,
            max_prompt_length=40, max_completion_length=8, disable_tqdm=True, logging_steps=1,
            eval_metrics=[],
        )  # fmt: skip
        args.output_dir = str(folder)
        return SemiOfflineTrainer(tiny_policy("bart", seed=seed), vowels, args, Dataset.from_list(rows))

    straight = trainer(tmp_path / "straight")
    straight.train()
    log = [entry for entry in straight.state.log_history if "loss" in entry]
    assert log[0]["kl"] < 1e-5 < log[-1]["kl"]
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))
    for key, value in straight.policy.state_dict().items():
        assert torch.equal(resumed.policy.state_dict()[key], value), key
    with pytest.raises(UserError, match="another initial model"):
        trainer(tmp_path / "other", seed=1).train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))


def test_more_weight_keeps_the_policy_closer(learnt, ads_examples, settings, short_training):
    moved = {}
    for weight in (0.01, 3.0):
        policy = Policy(copy.deepcopy(learnt.model), learnt.tokens.tokenizer)
        method = load_method(settings(num_samples=16, rl_weight=5.0, kl_weight=weight))
        moved[weight] = short_training(policy, method, ads_examples, steps=15, lr=1e-3)[-1].metrics["kl"].item()
    assert moved[3.0] < moved[0.01] / 2
