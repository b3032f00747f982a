"""Self-critic: the greedy output is the baseline."""

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.methods.shared.on_policy import greedy_texts, rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def discovers(completions, **kwargs):
    return [float("discover" in text.split()) for text in completions]


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_the_loss_is_the_likelihood_times_the_gain_over_greedy(tiny_policy, tiny_batch, settings, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    args = settings("self_critic", length_alpha=1.0, max_completion_length=10)
    output = load_method(args).step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))
    texts = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    gains = torch.tensor(length(policy.tokens.decode(texts))) - torch.tensor(
        length(policy.tokens.decode(greedy_texts(policy, batch, args.max_completion_length)))
    )
    row = sampled_row(policy, batch, texts, args.max_completion_length)
    log_p = sampled_log_p(policy, policy.predict(batch.source, [row])[0], row, args)
    means = [log_p[rows_of(row) == b].mean() for b in range(len(batch))]
    expected = -sum(gain * mean for gain, mean in zip(gains, means, strict=True))
    found = {term.name: term.total for term in output.terms}
    assert found["rl"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert [row["advantage"] for row in output.completions()] == gains.tolist()


def test_a_sample_that_is_the_greedy_text_teaches_nothing(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    args = settings("self_critic", top_k=1, max_completion_length=8)
    batch = tiny_batch(policy)
    output = load_method(args).step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))
    assert output.terms[1].total.item() == 0.0
    assert output.metrics["reward"] == output.metrics["reward_greedy"]


def test_it_finds_the_reward(learnt, ads_examples, settings, short_training, sampled_reward):
    args = settings("self_critic", max_completion_length=24, rl_weight=10.0)
    method = load_method(args)
    before = sampled_reward(learnt, ads_examples, args, discovers)
    short_training(learnt, method, ads_examples, steps=20, lr=1e-3, reward=discovers)
    assert sampled_reward(learnt, ads_examples, args, discovers) > before + 0.2
