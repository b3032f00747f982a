"""The log of the tokens that were drawn at masked positions."""

import math

import pytest
import torch

from semioffline.algorithm.losses import token_advantages
from semioffline.algorithm.randomness import Randomness
from semioffline.methods.shared.completions import INPUTS, TOKENS
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

K = 16


def vowels(completions, **columns):
    return [float(sum(text.count(v) for v in "aeiou") % 7) for text in completions]


def step(policy, tiny_batch, settings, size=6, reward=vowels, **changes):
    """One step; gives its output and the draws with the rewards as the method has them."""
    method = load_method(settings(num_samples=K, **changes))
    seen = {}
    scorer = Scorer(policy, RewardSet([reward]))

    def score(samples, batch):
        seen.update(samples=samples, scores=scorer(samples, batch))
        return seen["scores"]

    output = method.step(policy, tiny_batch(policy, size), score, Randomness(0, 0))
    return output, seen["samples"], seen["scores"].rewards, method


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_tokens_of_the_first_inputs_are_logged_with_their_estimated_advantage(kind, tiny_policy, tiny_batch, settings):
    policy = tiny_policy(kind)
    output, samples, rewards, _ = step(policy, tiny_batch, settings)
    rows = output.tokens()
    assert len(rows) == INPUTS
    hidden = samples.hidden.nonzero()
    for b, row in enumerate(rows):
        assert row["rewards"] == pytest.approx(rewards[b].tolist())
        own = samples.text.ids[b][samples.keep_mask[b]]
        assert "".join(row["target"]).strip() == policy.tokens.show(own.tolist())
        assert len(row["target"]) == len(own)
        assert set(row["position"]) == set(samples.hidden[b].nonzero()[:, 0].tolist())
        for position, text, count, value in zip(*(row[n] for n in ("position", "token", "count", "advantage"))):
            at = ((hidden[:, 0] == b) & (hidden[:, 1] == position)).nonzero().item()
            chose = torch.tensor([policy.tokens.show([token]) == text.strip() for token in samples.draws[at].tolist()])
            assert count == chose.sum()
            assert value == pytest.approx((rewards[b][chose].mean() - rewards[b].mean()).item(), abs=1e-4)


def test_probabilities_are_those_of_the_distribution_that_was_drawn_from(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    output, *_ = step(policy, tiny_batch, settings, top_k=3)
    row = output.tokens()[0]
    for position in set(row["position"]):
        kept = [p for at, p in zip(row["position"], row["probability"]) if at == position]
        assert all(0 < p <= 1 for p in kept)
        assert sum(kept) <= 1 + 1e-5


def test_the_best_and_the_worst_token_of_a_position_are_kept(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    output, samples, rewards, method = step(policy, tiny_batch, settings, size=2, temperature=3.0)
    rows = output.tokens()
    every = token_advantages(samples.draws, samples.places[0], method._advantages(rewards))
    for at, (b, position) in enumerate(samples.hidden.nonzero().tolist()):
        values = every.values[every.positions == at]
        kept = [v for p, v in zip(rows[b]["position"], rows[b]["advantage"]) if p == position]
        assert len(kept) == min(TOKENS, len(values))
        assert max(kept) == pytest.approx(values.max().item())
        assert min(kept) == pytest.approx(values.min().item())


def test_samples_without_a_reward_are_not_counted(tiny_policy, tiny_batch, settings):
    def half(completions, **columns):
        return [None if n % 2 else float(n) for n in range(len(completions))]

    output, *_ = step(tiny_policy("bart"), tiny_batch, settings, reward=half)
    row = output.tokens()[0]
    assert sum(math.isnan(value) for value in row["rewards"]) == K // 2
    totals = dict.fromkeys(row["position"], 0)
    for position, count in zip(row["position"], row["count"]):
        totals[position] += count
    assert all(total <= K // 2 for total in totals.values())


def test_nothing_masked_and_nothing_scored_leave_empty_lists(tiny_policy, tiny_batch, settings):
    output, *_ = step(tiny_policy("bart"), tiny_batch, settings, mask_rate=0.0)
    assert all(row["position"] == [] and row["target"] for row in output.tokens())

    def none(completions, **columns):
        return [None] * len(completions)

    output, *_ = step(tiny_policy("bart"), tiny_batch, settings, reward=none)
    assert all(row["position"] == [] for row in output.tokens())


@pytest.mark.parametrize("observation", ["full", "no_mask", "noisy", "all", "pre"])
def test_the_variants_log_their_draws_too(observation, tiny_policy, tiny_batch, settings):
    output, *_ = step(tiny_policy("bart"), tiny_batch, settings, observation=observation, size=3)
    rows = output.tokens()
    assert len(rows) == 3
    assert all(row["position"] for row in rows)
    assert all(0 < p <= 1 for row in rows for p in row["probability"])
