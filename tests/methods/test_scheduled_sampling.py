"""Scheduled sampling: the decays, the loss by a loop, the cost."""

import math

import pytest
import torch
from tests.reference import assert_same_gradient, log_p_alone, token_log_p_alone

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.methods.shared.schedule import decayed_rate
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

STEPS = 20


def step(policy, batch, args, step=STEPS - 1, seed=0):
    method = load_method(args)
    method.total_steps = STEPS
    return method.step(policy, batch, Scorer(policy, RewardSet([])), Randomness(seed, step))


@pytest.mark.parametrize("decay", ["linear", "exponential", "inverse_sigmoid"])
@pytest.mark.parametrize("end", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("steps", [2, 20, 5000])
def test_decays_fall_to_their_end(decay, end, steps):
    rates = [decayed_rate(decay, end, step, steps) for step in range(steps)]
    assert rates[-1] == pytest.approx(end, rel=1e-6)
    assert all(before > after for before, after in zip(rates, rates[1:]))
    assert decayed_rate(decay, end, steps + 5, steps) == rates[-1], "after the last step, as for a run that goes on"
    if decay != "inverse_sigmoid":
        assert rates[0] == 1.0
    if steps == 5000 and end == 0.5:
        assert rates[0] > 0.99


def test_the_forms_are_those_of_the_paper():
    """Of three points each tells the fourth: k**i, 1 - c i, and k / (k + exp(i / k))."""
    assert decayed_rate("exponential", 0.25, 1, 3) == pytest.approx(0.5)
    assert decayed_rate("linear", 0.2, 1, 5) == pytest.approx(0.8)
    assert decayed_rate("constant", 0.3, 0, 5) == 0.3
    first, last = (decayed_rate("inverse_sigmoid", 0.6, i, 50) for i in (0, 49))
    k = first / (1 - first)
    assert last == pytest.approx(k / (k + math.exp(49 / k)))
    assert decayed_rate("inverse_sigmoid", 0.6, 20, 50) == pytest.approx(k / (k + math.exp(20 / k)))


@pytest.mark.parametrize("end", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_loss_and_gradient_are_those_of_a_loop_over_tokens(tiny_policy, tiny_batch, settings, kind, end):
    """Greedy predictions: a first pass over the ground truth alone, then MLE on the mixture, text after text."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy, 4)
    args = settings("scheduled_sampling", teacher_forcing_end=end, top_k=1)
    numbers = Randomness(0, STEPS - 1).uniform("scheduled", batch.index, [batch.target.ids.shape[1]] * 4).view(4, -1)
    expected, replaced, right = torch.zeros(()), 0, 0
    for b in range(4):
        ids = batch.target.ids[b][batch.target.keep_mask[b]].tolist()
        predictions = log_p_alone(policy, batch, b, ids).masked_fill(~policy.allowed, -torch.inf).argmax(1).tolist()
        shown = list(ids)
        for t in range(len(ids)):
            if batch.target.ordinary[b, t] and numbers[b, t] < 1 - end:
                shown[t] = predictions[t]
                replaced, right = replaced + 1, right + (predictions[t] == ids[t])
        expected = expected - token_log_p_alone(policy, batch, b, ids, shown).sum()
    output = step(policy, batch, args)
    [term] = output.terms
    assert (term.name, term.per) == ("mle", "token")
    assert output.metrics["teacher_forcing"] == end
    assert (replaced > 0) == (end < 1)
    if replaced:
        assert output.metrics["predicted_right"].item() == pytest.approx(right / replaced)
    assert_same_gradient(policy, term.total, expected)


def test_an_example_has_the_same_inputs_in_every_batch(tiny_policy, tiny_data, settings):
    policy, args = tiny_policy("bart"), settings("scheduled_sampling", teacher_forcing_end=0.3)
    examples, collate = Examples(tiny_data, policy, 40, 40, progress=False), Collator(policy.tokens.pad_id)
    together = collate([examples[n] for n in range(4)])
    whole = step(policy, together, args).terms[0].total.item()
    alone = [step(policy, collate([examples[n]]), args).terms[0].total.item() for n in range(4)]
    assert whole == pytest.approx(sum(alone), rel=1e-5)
    assert step(policy, together, args, seed=1).terms[0].total.item() != pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize(("end", "passes"), [(0.5, 1), (1.0, 0)])
def test_it_costs_two_passes_while_it_samples(tiny_policy, tiny_batch, settings, end, passes):
    """FP counts the pass that predicts; the trained row is the MLE row. With nothing to replace it is ft."""
    policy = tiny_policy("bart")
    step(policy, tiny_batch(policy, 4), settings("scheduled_sampling", teacher_forcing_end=end))
    policy.meter.add_inputs(4)
    assert policy.meter.counts["rl_rows"] == 4 * passes
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["calls"]) == (1, 1, (1 + passes) / 4)


@pytest.mark.parametrize(("decay", "end"), [("exponential", 0.0), ("inverse_sigmoid", 1.0)])
def test_an_end_that_a_decay_cannot_reach_is_told(settings, decay, end):
    with pytest.raises(UserError, match="needs a teacher_forcing_end between 0 and 1"):
        settings("scheduled_sampling", teacher_forcing_decay=decay, teacher_forcing_end=end)


def test_it_learns_to_go_on_after_its_own_words(learnt, ads_examples, settings, short_training):
    """Its objective: the likelihood of the ground truth after inputs that the model predicted itself."""
    args = settings("scheduled_sampling", teacher_forcing_decay="constant", teacher_forcing_end=0.3)
    method = load_method(args)
    outputs = short_training(learnt, method, ads_examples, steps=30, lr=1e-3)
    losses = [output.terms[0].total.item() for output in outputs]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
