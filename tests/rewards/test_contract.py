"""What is asked of a reward, and said once, when it is given."""

import inspect

import pytest

from semioffline.errors import UserError
from semioffline.rewards.contract import BaseReward, CorpusMetric, as_reward
from semioffline.rewards.limits import Retry
from semioffline.rewards.registry import REWARDS, load_reward
from semioffline.rewards.rouge import Rouge
from semioffline.scoring.reward_set import RewardSet

NEEDED = ("name", "signature", "on_device", "single_process", "deterministic")


def score(completions, brand, **columns):
    return [float(len(text)) for text in completions]


class Plain:
    """As in docs/rewards.md."""

    name = "plain"

    def __init__(self):
        self.signature = "plain|v:1"

    def __call__(self, completions, **columns):
        return [1.0] * len(completions)


class Whole(Plain):
    def statistics(self, completions, references):
        return [[1.0, 2.0]] * len(completions)

    def corpus_score(self, sums):
        return sums[0] / sums[1]


def test_a_function_of_the_users_has_all_that_a_reward_needs():
    reward = as_reward(score)
    assert (reward.name, reward.signature, reward.on_device, reward.single_process) == ("score", None, False, False)
    assert reward(completions=["ab"], brand=["x"]) == [2.0]
    assert list(inspect.signature(reward).parameters) == ["completions", "brand", "columns"]


def test_an_object_keeps_what_it_says_about_itself():
    given = Plain()
    reward = as_reward(given)
    assert (reward.name, reward.signature) == ("plain", "plain|v:1")
    given.signature = "plain|v:2"  # as that of sacrebleu's, which changes with what was scored
    assert reward.signature == "plain|v:2"
    assert not isinstance(reward, CorpusMetric)


def test_a_metric_over_a_whole_set_stays_one():
    reward = as_reward(Whole())
    assert isinstance(reward, CorpusMetric)
    assert reward.corpus_score(reward.statistics(["a"], [["b"]])[0]) == 0.5


def test_a_reward_is_wrapped_once():
    rouge, again = Rouge(), Retry(score)
    assert as_reward(rouge) is rouge
    assert as_reward(again) is again
    wrapped = as_reward(score)
    assert as_reward(wrapped) is wrapped
    assert wrapped == as_reward(score) != as_reward(Plain())
    assert again != Retry(score)


@pytest.mark.parametrize("name", [name for name in REWARDS if "meteor" not in name])
def test_rewards_of_this_package_fulfil_the_contract(name):
    reward = load_reward(name)[1]
    assert isinstance(reward, BaseReward)
    assert all(hasattr(reward, attribute) for attribute in NEEDED)


def wrong(**attributes):
    return type("Wrong", (Plain,), {"__init__": lambda self: None, **attributes})()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "a reward must be a name, a function or a model, not int"),
        (wrong(name=5), "the reward Wrong has a name that is not a text: 5"),
        (wrong(signature=1.0), "the reward 'plain' has signature=1.0, but it must be a text"),
        (wrong(signature=lambda self: "v"), "but it must be a text"),
        (wrong(on_device="cuda"), "the reward 'plain' has on_device='cuda', but it must be True or False"),
        (wrong(corpus_score=len), "the reward 'plain' has corpus_score but no statistics"),
    ],
)
def test_what_is_wrong_with_a_reward_is_said_when_it_is_given(given, says):
    with pytest.raises(UserError) as error:
        RewardSet(given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_property_is_not_read_when_a_reward_is_given():
    class Slow(Plain):
        def __init__(self):
            pass

        @property
        def signature(self):
            raise AssertionError("read")

    assert as_reward(Slow()).name == "plain"
