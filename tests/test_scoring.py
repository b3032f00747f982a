"""Reward functions: how they are called, what they may return, and what is said when they return something else."""

import asyncio
import math
import re

import numpy as np
import pytest
import torch

from semioffline.errors import UserError
from semioffline.scoring import RewardError, RewardSet, Scorer, describe
from semioffline.types import Samples

NAN = float("nan")
COLUMNS = {"prompts": ["p", "q", "r"], "completions": ["a", "b b", "c c c"], "completion_ids": [[1], [2], [3]]}


def words(completions, **kwargs):
    return [float(len(text.split())) for text in completions]


async def later(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [10.0 * len(text.split()) for text in completions]


class Minus:
    """A callable object with a name of its own."""

    name = "minus"

    def __call__(self, completions, **kwargs):
        return [-float(len(text.split())) for text in completions]


class LaterObject:
    async def __call__(self, completions, **kwargs):
        return [0.5] * len(completions)


def returning(value):
    def odd(**kwargs):
        return value

    return odd


@pytest.mark.parametrize(
    ("reward", "name", "values"),
    [
        (words, "words", [1, 2, 3]),
        (later, "later", [10, 20, 30]),
        (Minus(), "minus", [-1, -2, -3]),
        (LaterObject(), "LaterObject", [0.5, 0.5, 0.5]),
        ("length", "length", [1, 2, 3]),
    ],
)
def test_a_reward_may_be_a_function_a_coroutine_an_object_or_a_name(reward, name, values):
    sums, parts = RewardSet(reward)(COLUMNS)
    assert sums == values
    assert parts == {name: values}


def test_a_reward_may_be_a_function_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def twice(completions, **kwargs):\n    return [2 * len(c) for c in completions]\n"
    )
    sums, parts = RewardSet(f"{tmp_path}/mine.py:twice")(COLUMNS)
    assert sums == [2, 6, 10]
    assert list(parts) == ["twice"]


def test_rewards_are_summed_with_their_weights_in_the_order_given():
    sums, parts = RewardSet([later, words, Minus()], weights=[0.1, 2, 1])(COLUMNS)
    assert sums == pytest.approx([1 + 2 - 1, 2 + 4 - 2, 3 + 6 - 3])
    assert list(parts) == ["later", "words", "minus"]


def test_weights_are_one_when_not_given():
    assert RewardSet([words, words])(COLUMNS)[0] == [2, 4, 6]


def test_two_functions_of_one_name_are_both_counted_and_both_shown():
    sums, parts = RewardSet([returning([1, 1, 1]), returning([5, 5, 5])])(COLUMNS)
    assert sums == [6, 6, 6]
    assert len(parts) == 2


def test_async_rewards_run_at_the_same_time():
    together = asyncio.Barrier(2)

    async def meet(completions, **kwargs):
        await asyncio.wait_for(together.wait(), timeout=5)
        return [1.0] * len(completions)

    assert RewardSet([meet, meet])(COLUMNS)[0] == [2, 2, 2]


def test_async_rewards_work_inside_a_running_event_loop():
    async def notebook():
        return RewardSet(later)(COLUMNS)[0]

    assert asyncio.run(notebook()) == [10, 20, 30]


def test_a_function_is_called_with_every_column_by_keyword():
    seen = {}

    def look(prompts, completions, completion_ids, brand, **kwargs):
        seen.update(prompts=prompts, ids=completion_ids, brand=brand, rest=kwargs)
        return [0.0] * 3

    RewardSet(look)(COLUMNS | {"brand": ["x", "y", "z"], "references": [["a"], ["b"], ["c"]]})
    assert seen["prompts"] == ["p", "q", "r"]
    assert seen["ids"] == [[1], [2], [3]]
    assert seen["brand"] == ["x", "y", "z"]
    assert seen["rest"] == {"references": [["a"], ["b"], ["c"]]}


@pytest.mark.parametrize(
    "out",
    [
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([1, 2, 3]),
        np.array([1, 2, 3]),
        (1, 2, 3),
        [np.float32(1), torch.tensor(2.0), 3],
    ],
)
def test_tensors_arrays_and_tuples_of_numbers_are_accepted(out):
    assert RewardSet(returning(out))(COLUMNS)[0] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("missing", [None, NAN, torch.tensor(NAN)])
def test_none_and_nan_leave_a_sample_out(missing):
    sums, parts = RewardSet([returning([1.0, missing, 3.0]), words])(COLUMNS)
    assert [sums[0], sums[2]] == [2, 6]
    assert math.isnan(sums[1])
    assert math.isnan(parts["odd"][1])
    assert parts["words"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ([1.0, 2.0], "returned 2 values for 3 samples"),
        ([], "returned 0 values for 3 samples"),
        (1.0, "returned float, but must return a list of 3 numbers"),
        (None, "returned NoneType"),
        (torch.tensor(1.0), "returned float"),
        ([1.0, float("inf"), 2.0], "returned inf for sample 1"),
        (torch.tensor([1.0, 2.0, -math.inf]), "returned -inf for sample 2"),
        ([1.0, 2.0, "good"], "returned 'good' for sample 2"),
        (torch.zeros(3, 1), "for sample 0"),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, "returned dict"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_by_name(out, says):
    with pytest.raises(RewardError, match=f"'odd' {says}" if says.startswith("returned") else says) as caught:
        RewardSet([words, returning(out)])(COLUMNS)
    assert "'odd'" in str(caught.value)


def test_an_exception_is_reported_with_the_name_of_the_function():
    def broken(**kwargs):
        raise KeyError("category")

    with pytest.raises(RewardError, match="'broken' raised KeyError: 'category'") as caught:
        RewardSet([words, broken])(COLUMNS)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_in_a_coroutine_is_reported_with_the_name_of_the_function():
    async def unreachable(**kwargs):
        raise TimeoutError("no answer")

    with pytest.raises(RewardError, match="'unreachable' raised TimeoutError: no answer"):
        RewardSet([later, unreachable])(COLUMNS)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0], []])
def test_there_must_be_one_weight_for_each_reward(weights):
    with pytest.raises(UserError, match=f"2 rewards but {len(weights)} reward_weights"):
        RewardSet([words, later], weights)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"unknown reward 'lenght'\. Did you mean 'length'"):
        RewardSet("lenght")


def test_what_is_no_reward_at_all_is_refused():
    with pytest.raises(UserError, match="not int"):
        RewardSet(3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/none.py")):
        RewardSet(f"{tmp_path}/none.py:score")


@pytest.fixture
def policy(tiny_policy):
    return tiny_policy("bart")


def samples_of(batch, many):
    """K copies of the target, the first ordinary token of the k-th replaced by the token 20 + k."""
    ids = batch.target.ids[:, None].repeat(1, many, 1)
    ids[:, :, 1] = torch.arange(many) + 20
    return Samples(ids, batch.target.keep_mask, torch.zeros(0, many), torch.zeros(0))


def test_scorer_hands_over_texts_and_repeats_the_columns(policy, tiny_batch):
    batch, seen = tiny_batch(policy, 3), {}

    def look(**kwargs):
        seen.update(kwargs)
        return list(range(6))

    scores = Scorer(policy, RewardSet(look))(samples_of(batch, 2), batch)
    assert scores.rewards.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert seen["prompts"] == [p for p in batch.columns["prompt"] for _ in range(2)]
    assert seen["category"] == [c for c in batch.columns["category"] for _ in range(2)]
    assert seen["references"] == [r for r in batch.columns["references"] for _ in range(2)]
    assert "prompt" not in seen
    assert "completion" not in seen
    words_of = policy.tokenizer.convert_ids_to_tokens
    for number, text in enumerate(seen["completions"]):
        rest = batch.columns["completion"][number // 2].split()[1:]
        assert text == " ".join([words_of(20 + number % 2), *rest])
    assert scores.texts == [seen["completions"][n : n + 2] for n in (0, 2, 4)]


def test_scorer_gives_no_padding_to_the_reward(policy, tiny_batch):
    batch, seen = tiny_batch(policy, 3), {}

    def look(completion_ids, **kwargs):
        seen["lengths"] = [len(ids) for ids in completion_ids]
        return [0.0] * len(completion_ids)

    Scorer(policy, RewardSet(look))(samples_of(batch, 2), batch)
    lengths = batch.target.lengths
    assert len(set(lengths)) > 1
    assert seen["lengths"] == [n for n in lengths for _ in range(2)]


def test_scorer_reports_means_that_leave_out_what_has_no_reward(policy, tiny_batch):
    batch = tiny_batch(policy, 2)

    def some(**kwargs):
        return [1.0, 3.0, None, None]

    scores = Scorer(policy, RewardSet(some, weights=[2.0]))(samples_of(batch, 2), batch)
    assert scores.rewards[0].tolist() == [2, 6]
    assert scores.rewards[1].isnan().all()
    assert scores.metrics["reward"] == 4
    assert scores.metrics["rewards/some/mean"] == 2
    assert scores.metrics["rewards/some/std"] == pytest.approx(math.sqrt(2))
    assert scores.metrics["frac_reward_none"] == 0.5
    assert scores.metrics["rows_without_reward"] == 1


def test_describe_by_hand():
    rewards = torch.tensor([[1.0, 3.0, NAN], [2.0, 2.0, 2.0]])
    described = describe(rewards)
    assert described["reward"] == pytest.approx(2.0)
    assert described["reward_std"] == pytest.approx(math.sqrt(2) / 2)
    assert described["frac_reward_zero_std"] == 0.5
    assert described["frac_reward_none"] == pytest.approx(1 / 6)
    assert described["rows_without_reward"] == 0


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 33.3])
@pytest.mark.parametrize("many", [7, 64])
def test_rows_of_equal_rewards_are_counted_as_such_whatever_the_rounding(reward, many):
    assert describe(torch.full((4, many), reward))["frac_reward_zero_std"] == 1
