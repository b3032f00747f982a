"""BRIO: the ranking loss against a loop, fillers and ties, and that the ranking is learnt."""

import math

import pytest
import torch

from semioffline.algorithm.losses import ranking
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row
from semioffline.data.examples import Collator
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

NAN = math.nan


def test_the_ranking_loss_by_hand():
    """Margin 0.1. Row 0: only the pair (0, 2) is wrong, by -1 + 2 + 0.2. Row 1: a tie and a filler leave (0, 2)."""
    scores = torch.tensor([[-2.0, -3.0, -1.0, -9.0], [-1.0, -0.5, -1.1, 0.0]])
    rewards = torch.tensor([[3.0, 2.0, 1.0, 0.0], [2.0, 2.0, 1.0, NAN]])
    row_0 = (-1 + 2 + 0.2) + (-1 + 3 + 0.1)
    row_1 = max(0, -1.1 + 1.0 + 0.2) + max(0, -1.1 + 0.5 + 0.1)
    assert ranking(scores, rewards, 0.1).item() == pytest.approx(row_0 + row_1)


def test_equal_rewards_give_no_gradient():
    scores = torch.randn(2, 3, requires_grad=True)
    ranking(scores, torch.tensor([[1.0, 1.0, 1.0], [2.0, NAN, NAN]]), 0.1).backward()
    assert not scores.grad.any()


def test_ties_make_no_pair_and_count_in_the_distance_of_others():
    """Rewards 3, 2, 2, 1 in this order. BRIO's code has the pair (1, 2) too: the order of a file decides it."""
    scores, margin = torch.tensor([[-1.0, -1.0, -1.0, -1.0]]), 0.1
    rewards = torch.tensor([[3.0, 2.0, 2.0, 1.0]])
    assert ranking(scores, rewards, margin).item() == pytest.approx(margin * (1 + 2 + 3 + 2 + 1))
    published = sum(margin * (j - i) for i in range(4) for j in range(i + 1, 4))
    assert published == pytest.approx(ranking(scores, rewards, margin).item() + margin)
    swapped = torch.tensor([[-1.0, -1.2, -0.7, -2.0]])
    assert ranking(swapped, rewards, 0.0).item() == pytest.approx(
        ranking(swapped[:, [0, 2, 1, 3]], rewards, 0.0).item()
    )


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_the_loss_is_what_a_loop_over_pairs_gives(ranked, tiny_policy, tiny_data, settings, kind):
    policy = tiny_policy(kind)
    examples = ranked(policy, tiny_data)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(3)])
    args = settings(method="brio", length_alpha=0.6, ranking_margin=0.05)
    output = load_method(args).step(policy, batch, Scorer(policy, RewardSet([])), Randomness(0, 0))
    expected = 0.0
    for b in range(3):
        example, f = examples[b], []
        source = batch.source.to("cpu")
        source.ids, source.keep_mask = source.ids[b : b + 1], source.keep_mask[b : b + 1]
        for candidate in example.candidates:
            ids = torch.from_numpy(candidate.ids)[None].long()
            keep = torch.ones_like(ids, dtype=torch.bool)
            [logits] = policy.predict(source, [Row(ids, keep, keep)])
            f.append(logits.log_softmax(1).gather(1, ids[0, :, None]).sum().item() / ids.shape[1] ** 0.6)
        for i in range(len(f)):
            for j in range(i + 1, len(f)):
                if example.candidate_rewards[i] > example.candidate_rewards[j]:
                    expected += max(0.0, f[j] - f[i] + (j - i) * 0.05)
    found = {term.name: term for term in output.terms}
    assert set(found) == {"mle", "ranking"}
    assert found["ranking"].total.item() == pytest.approx(expected, rel=1e-4)
    assert found["ranking"].weight == args.ranking_weight


def test_it_costs_a_row_for_each_candidate(ranked, tiny_policy, tiny_data, settings):
    policy = tiny_policy("bart")
    examples = ranked(policy, tiny_data)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])
    load_method(settings("brio")).step(policy, batch, Scorer(policy, RewardSet([])), Randomness(0, 0))
    policy.meter.add_inputs(len(batch))
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["encoder_rows"], cost["calls"]) == (4, 1, 1, 1 / 4)


def test_a_batch_without_candidates_is_refused(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    with pytest.raises(UserError, match="semioffline candidates"):
        load_method(settings("brio")).step(policy, tiny_batch(policy), Scorer(policy, RewardSet([])), Randomness(0, 0))


def test_it_learns_the_ranking(ranked, learnt, ads_rows, settings, short_training):
    examples = ranked(learnt, ads_rows.select(range(48)))
    outputs = short_training(learnt, load_method(settings("brio")), examples, steps=30, lr=1e-3)
    right = [output.metrics["pairs_right"] for output in outputs]
    assert sum(right[-5:]) / 5 > sum(right[:5]) / 5 + 0.1
