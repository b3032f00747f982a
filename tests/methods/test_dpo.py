"""DPO: pairs, the loss by a loop and by another library, the frozen reference, the cost."""

import importlib.util
import math

import pytest
import torch
from tests.reference import assert_same_gradient, token_log_p_alone

from semioffline.algorithm.losses import preference
from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer


def step(method, policy, batch):
    return method.step(policy, batch, Scorer(policy, RewardSet([])), Randomness(0, 0))


def prepared(policy, examples, args):
    """A method whose reference is `policy`."""
    method = load_method(args)
    method.prepare(policy, examples)
    return method


def test_the_loss_by_hand():
    """Row 0 prefers 0 to 1 and 0 to 2: a mean over two pairs. Row 1 has no pair."""
    ratios = torch.tensor([[0.5, -0.5, 0.1], [1.0, 2.0, 3.0]], requires_grad=True)
    pairs = torch.zeros(2, 3, 3, dtype=torch.bool)
    pairs[0, 0, 1] = pairs[0, 0, 2] = True
    sigmoid = [-math.log(1 / (1 + math.exp(-0.2 * gap))) for gap in (1.0, 0.4)]
    assert preference(ratios, pairs, 0.2).item() == pytest.approx(sum(sigmoid) / 2)
    ipo = [(gap - 2.5) ** 2 for gap in (1.0, 0.4)]
    loss = preference(ratios, pairs, 0.2, "ipo")
    assert loss.item() == pytest.approx(sum(ipo) / 2)
    loss.backward()
    assert not ratios.grad[1].any()


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
@pytest.mark.parametrize("pairs", ["best_worst", "all"])
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_loss_and_gradient_are_those_of_a_loop_over_pairs(tiny_policy, tiny_data, settings, ranked, kind, pairs, loss):
    """The policy has moved away from the reference since."""
    args = settings("dpo", dpo_pairs=pairs, dpo_loss=loss, dpo_beta=0.3, dpo_margin=0.015, per_device_eval_batch_size=3)
    start, policy = tiny_policy(kind), tiny_policy(kind, seed=1)
    examples = ranked(start, tiny_data)
    method = prepared(start, examples, args)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in (5, 2, 3)])
    expected, number = torch.zeros(()), 0
    for b, n in enumerate((5, 2, 3)):
        example, h = examples[n], []
        for candidate in example.candidates:
            ids = candidate.ids.tolist()
            ratio = (
                token_log_p_alone(policy, batch, b, ids).sum() - token_log_p_alone(start, batch, b, ids).sum().detach()
            )
            h.append(ratio / len(ids) if loss == "ipo" else ratio)
        rewards, last = example.candidate_rewards, len(h) - 1
        found = []
        for i in range(len(h)):
            for j in range(len(h)):
                chosen = (i, j) == (0, last) if pairs == "best_worst" else True
                if chosen and rewards[i] - rewards[j] > 0.015:
                    gap = h[i] - h[j]
                    found.append((gap - 1 / 0.6) ** 2 if loss == "ipo" else -torch.sigmoid(0.3 * gap).log())
        number += len(found)
        expected = expected + (sum(found) / len(found) if found else 0.0)
    output = step(method, policy, batch)
    [term] = output.terms
    assert (term.name, term.per) == ("dpo", "row")
    assert output.metrics["pairs"].item() == pytest.approx(number / 3)
    assert_same_gradient(policy, term.total, expected)


def test_a_row_has_the_same_loss_in_every_batch(tiny_policy, tiny_data, settings, ranked):
    """Also beside rows with more candidates, and whatever batches the reference was computed in."""
    start, policy = tiny_policy("bart"), tiny_policy("bart", seed=1)
    examples = ranked(start, tiny_data)
    for pairs in ("best_worst", "all"):
        methods = [
            prepared(start, examples, settings("dpo", dpo_pairs=pairs, per_device_eval_batch_size=size))
            for size in (1, 8)
        ]
        assert [len(a) == len(b) for a, b in zip(*(m.initial.values for m in methods), strict=True)]
        collate = Collator(policy.tokens.pad_id)
        alone = [step(methods[0], policy, collate([examples[n]])).terms[0].total.item() for n in range(4)]
        together = step(methods[1], policy, collate([examples[n] for n in range(4)])).terms[0].total.item()
        assert together == pytest.approx(sum(alone), rel=1e-5)


@pytest.mark.parametrize("rewards", [[0.5, 0.5], [0.5], [0.5, 0.45]])
def test_candidates_that_are_as_good_make_no_pair(tiny_policy, tiny_data, settings, rewards):
    policy = tiny_policy("bart")
    rows = tiny_data.to_list()
    for row in rows:
        row |= {"candidates": [row["completion"], "today"][: len(rewards)], "candidate_rewards": rewards}
    examples = Examples(type(tiny_data).from_list(rows), policy, 40, 40, progress=False, with_candidates=True)
    method = prepared(policy, examples, settings("dpo", dpo_margin=0.1))
    output = step(method, policy, Collator(policy.tokens.pad_id)([examples[n] for n in range(2)]))
    assert output.terms[0].total.item() == 0
    assert output.metrics["pairs"].item() == 0


@pytest.mark.parametrize(("pairs", "passes"), [("best_worst", 2), ("all", 4)])
def test_it_costs_a_row_for_each_compared_candidate(tiny_policy, tiny_data, settings, ranked, pairs, passes):
    """The reference is computed once, and not counted."""
    policy = tiny_policy("bart")
    examples = ranked(policy, tiny_data)
    method = prepared(policy, examples, settings("dpo", dpo_pairs=pairs))
    step(method, policy, Collator(policy.tokens.pad_id)([examples[n] for n in range(4)]))
    policy.meter.add_inputs(4)
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["encoder_rows"], cost["calls"]) == (passes, 0, 1, 1 / 4)


def test_the_reference_survives_a_resume(tiny_policy, tiny_data, settings, ranked, tmp_path):
    start, policy = tiny_policy("bart"), tiny_policy("bart", seed=3)
    examples = ranked(start, tiny_data)
    method, resumed = prepared(start, examples, settings("dpo")), prepared(policy, examples, settings("dpo"))
    method.save(tmp_path)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])
    expected = step(method, policy, batch).terms[0].total
    assert not torch.equal(step(resumed, policy, batch).terms[0].total, expected)
    resumed.load(tmp_path)
    assert torch.equal(step(resumed, policy, batch).terms[0].total, expected)
    other = prepared(policy, ranked(policy, tiny_data.select(range(3))), settings("dpo"))
    with pytest.raises(UserError, match="other training data"):
        other.load(tmp_path)


def test_a_batch_without_candidates_is_refused(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    with pytest.raises(UserError, match="dpo needs the columns candidates and candidate_rewards"):
        step(load_method(settings("dpo")), policy, tiny_batch(policy))


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_it_learns_what_is_preferred(learnt, ads_rows, settings, short_training, ranked, loss):
    """The margin of h between the better and the worse candidate grows from 0, and the loss falls."""
    examples = ranked(learnt, ads_rows.select(range(48)))
    outputs = short_training(learnt, load_method(settings("dpo", dpo_loss=loss)), examples, steps=30, lr=5e-4)
    assert outputs[0].metrics["dpo/margin"].item() == pytest.approx(0, abs=1e-4)
    assert outputs[-1].metrics["dpo/margin"].item() > 0.1
    losses = [output.terms[0].total.item() for output in outputs]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    right = [output.metrics["pairs_right"].item() for output in outputs[-5:]]
    assert sum(right) / 5 > 0.8


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed")
@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_it_equals_the_trainer_of_trl(tiny_policy, tiny_data, settings, ranked, tmp_path, loss):
    """Same model, same reference, same tokens: the same loss, and the same gradient."""
    import trl
    from datasets import Dataset

    start, policy = tiny_policy("llama"), tiny_policy("llama", seed=1)
    examples = ranked(start, tiny_data)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])
    args = settings("dpo", dpo_loss=loss, dpo_beta=0.3)
    ours = step(prepared(start, examples, args), policy, batch).terms[0].total / 4
    ours.backward()
    gradients = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    rows = [
        {
            "prompt_ids": examples[n].source.ids.tolist(),
            "chosen_ids": examples[n].candidates[0].ids.tolist(),
            "rejected_ids": examples[n].candidates[-1].ids.tolist(),
        }
        for n in range(4)
    ]
    texts = Dataset.from_list([{"prompt": "for", "chosen": " today", "rejected": " call"}] * 4)
    config = trl.DPOConfig(
        output_dir=str(tmp_path), beta=0.3, loss_type=[loss], use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=4, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    tokenizer = policy.tokens.tokenizer
    trainer = trl.DPOTrainer(policy.model, start.model, args=config, train_dataset=texts, processing_class=tokenizer)
    theirs = trainer.compute_loss(trainer.model.train(), trainer.data_collator(rows))
    assert theirs.item() == pytest.approx(ours.item(), abs=1e-5)
    theirs.backward()
    for name, p in policy.model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], rtol=1e-4, atol=1e-5)
