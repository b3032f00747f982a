"""Identical samples of an input are scored once."""

import asyncio

import pytest

from semioffline.algorithm.randomness import Randomness
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

ROWS = [0, 0, 0, 1, 1]
COLUMNS = {
    "prompts": ["p", "p", "p", "q", "q"],
    "completions": ["a", "b", "a", "a", "a"],
    "completion_ids": [[1], [2], [3], [1], [1]],
}


class Counting:
    """The length of prompt and text, and what it was called with."""

    name = "counting"

    def __init__(self):
        self.seen = []

    def __call__(self, prompts, completions, **columns):
        self.seen += zip(prompts, completions, strict=True)
        return [ord(prompt) + ord(text) for prompt, text in zip(prompts, completions, strict=True)]


VALUES = [float(ord(p) + ord(c)) for p, c in zip(COLUMNS["prompts"], COLUMNS["completions"], strict=True)]


def test_a_text_of_an_input_is_scored_once_and_all_its_samples_get_the_value():
    reward = Counting()
    rewards = RewardSet(reward)
    assert rewards.call(COLUMNS, ROWS)["counting"] == VALUES
    assert reward.seen == [("p", "a"), ("p", "b"), ("q", "a")]
    assert rewards.calls == 3


def test_a_reward_that_is_not_deterministic_scores_every_sample():
    reward = Counting()
    reward.deterministic = False
    rewards = RewardSet(reward)
    assert rewards.call(COLUMNS, ROWS)["counting"] == VALUES
    assert len(reward.seen) == rewards.calls == len(ROWS)


def test_a_function_that_names_the_token_ids_scores_each_sequence_of_them():
    seen = []

    def last(completion_ids, **columns):
        seen.extend(completion_ids)
        return [ids[-1] for ids in completion_ids]

    assert RewardSet(last).call(COLUMNS, ROWS)["last"] == [1, 2, 3, 1, 1]
    assert seen == [[1], [2], [3], [1]]


def test_a_coroutine_and_missing_values_are_spread_too():
    async def later(completions, **columns):
        await asyncio.sleep(0)
        return [None if text == "a" else 1 for text in completions]

    values = RewardSet(later).call(COLUMNS, ROWS)["later"]
    assert [value != value for value in values] == [True, False, True, True, True]


def test_extra_columns_of_the_log_have_a_value_for_every_sample():
    def noting(completions, log_extra, **columns):
        log_extra("text", completions)
        return [0.0] * len(completions)

    rewards = RewardSet(noting)
    rewards.context.follow(lambda: None)
    rewards.call(COLUMNS, ROWS)
    assert rewards.context.extra == {"text": COLUMNS["completions"]}


def test_the_number_of_values_is_checked_against_what_was_given():
    with pytest.raises(Exception, match="returned 5 values for 3 samples"):
        RewardSet(lambda completions, **columns: [0.0] * 5).call(COLUMNS, ROWS)


@pytest.mark.parametrize("method", ["semi_offline", "avg", "self_critic"])
def test_the_meter_counts_the_distinct_texts(tiny_policy, tiny_batch, settings, method):
    policy = tiny_policy("bart")
    batch, seen = tiny_batch(policy), []

    def short(prompts, completions, **columns):
        seen.append(list(zip(prompts, completions, strict=True)))
        return [-float(len(text)) for text in completions]

    args = settings(method, max_completion_length=3, **({"top_k": 2} if method != "self_critic" else {}))
    load_method(args).step(policy, batch, Scorer(policy, RewardSet(short)), Randomness(0, 0))
    assert all(len(set(call)) == len(call) for call in seen)
    assert policy.meter.counts["reward_calls"] == sum(map(len, seen)) > 0
