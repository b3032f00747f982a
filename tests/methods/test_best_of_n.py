"""Best of N: the best candidate, the loss by a loop, the cost."""

import pytest
import torch
from tests.reference import assert_same_gradient, token_log_p_alone

from semioffline.algorithm.masking import hide, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator
from semioffline.errors import UserError
from semioffline.methods.best_of_n import best_candidates
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.tasks import ads


def step(policy, batch, args):
    return load_method(args).step(policy, batch, Scorer(policy, RewardSet([])), Randomness(0, 3))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_loss_and_gradient_are_those_of_a_loop_over_inputs(tiny_policy, tiny_data, settings, ranked, kind, masked):
    policy = tiny_policy(kind)
    examples = ranked(policy, tiny_data)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])
    args = settings("best_of_n", mle_mask_share=1.0 if masked else 0.0, mle_mask_rate=0.5)
    best = best_candidates(batch)
    uniforms = mask_uniforms(best, batch.index, Randomness(0, 3), "mle mask")
    shown = hide(best, 0.5, policy.tokens.mask_id, uniforms).ids if masked else best.ids
    assert (shown != best.ids).any() == masked
    expected = torch.zeros(())
    for b in range(4):
        rewards = examples[b].candidate_rewards
        ids = examples[b].candidates[rewards.index(max(rewards))].ids.tolist()
        expected = expected - token_log_p_alone(policy, batch, b, ids, shown[b, : len(ids)].tolist()).mean()
    [term] = step(policy, batch, args).terms
    assert (term.name, term.per) == ("best_of_n", "row")
    assert_same_gradient(policy, term.total, expected)


def test_a_row_has_the_same_loss_in_every_batch(tiny_policy, tiny_data, settings, ranked):
    policy = tiny_policy("bart")
    examples, collate = ranked(policy, tiny_data), Collator(policy.tokens.pad_id)
    alone = [step(policy, collate([examples[n]]), settings("best_of_n")).terms[0].total.item() for n in range(4)]
    together = step(policy, collate([examples[n] for n in range(4)]), settings("best_of_n")).terms[0].total.item()
    assert together == pytest.approx(sum(alone), rel=1e-5)


def test_it_costs_one_pass_whatever_n_is(tiny_policy, tiny_data, settings, ranked):
    policy = tiny_policy("bart")
    examples = ranked(policy, tiny_data)
    step(policy, Collator(policy.tokens.pad_id)([examples[n] for n in range(4)]), settings("best_of_n"))
    policy.meter.add_inputs(4)
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["encoder_rows"], cost["calls"]) == (1, 0, 1, 1 / 4)


def test_a_batch_without_candidates_is_refused(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    with pytest.raises(UserError, match="best_of_n needs the columns candidates and candidate_rewards"):
        step(policy, tiny_batch(policy), settings("best_of_n"))


def test_the_reward_of_samples_rises_towards_that_of_the_best(
    learnt, ads_rows, ads_examples, settings, short_training, sampled_reward, ranked
):
    """The best of four random wordings of every record."""

    def clicks(completions, **kwargs):
        return ads.click_rate(completions, [kind for kind in ads_rows["category"][:64] for _ in range(4)])

    drawing = settings("avg", max_completion_length=24)
    before = sampled_reward(learnt, ads_examples, drawing, clicks)
    short_training(learnt, load_method(settings("best_of_n")), ranked(learnt, ads_rows), steps=40, lr=1e-3)
    assert sampled_reward(learnt, ads_examples, drawing, clicks) > before + 0.03
