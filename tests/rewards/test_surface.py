"""Length, repetition, distinct words and the penalties made of them."""

import pytest

from semioffline.errors import UserError
from semioffline.rewards.registry import load_reward
from semioffline.rewards.surface import distinct, distinct1, distinct2, length, repetition, repetition_penalty


def test_length_counts_words():
    assert length(["one two  three", "", "one\ntwo"]) == [3, 0, 2]


@pytest.mark.parametrize("metric", [distinct, distinct1])
def test_distinct_is_the_share_of_different_words_whatever_their_case(metric):
    assert metric(["a b c d", "Go go GO go", "", "a b a"]) == pytest.approx([1, 0.25, 0, 2 / 3])


def test_distinct2_is_the_share_of_different_word_pairs():
    # pairs: ab bc | gg gg gg | none | none | ab ba ab
    assert distinct2(["a b c", "Go go GO go", "", "a", "a b a b"]) == pytest.approx([1, 1 / 3, 0, 0, 2 / 3])


def test_repetition_is_the_share_of_word_pairs_that_stood_there_before():
    texts = ["a b c d", "discover discover discover discover", "a b a b a b", "a", "", "The cat . the CAT"]
    # pairs: ab bc cd | 3 times dd | ab ba ab ba ab | none | none | the-cat cat-. .-the the-cat
    shares = [0, 2 / 3, 3 / 5, 0, 0, 1 / 4]
    assert repetition(texts) == pytest.approx(shares)
    assert repetition_penalty(texts) == pytest.approx([-share for share in shares])


@pytest.mark.parametrize("metric", [length, distinct, distinct1, distinct2, repetition, repetition_penalty])
def test_other_columns_are_accepted_and_ignored(metric):
    assert metric(completions=["a b"], prompts=["x"], references=[["y"]]) == metric(["a b"])
    assert "|v:" in metric.signature


def test_a_length_penalty_is_relative_to_the_bound_that_is_missed():
    name, penalty = load_reward("length_penalty:2-4")
    texts = ["", "a", "a b", "a b c d", "a b c d e", "a " * 8]
    assert name == "length_penalty"
    assert penalty(completions=texts) == pytest.approx([-1, -1 / 2, 0, 0, -1 / 4, -1])
    assert "words:2-4" in penalty.signature


def test_without_bounds_it_is_relative_to_the_nearest_reference():
    _, penalty = load_reward("length_penalty")
    values = penalty(completions=["a b c", "a", "a b"], references=[["x"], ["x y", "x y z w"], [""]])
    assert values == pytest.approx([-2, -1 / 2, -1])
    with pytest.raises(UserError, match="references"):
        penalty(completions=["a"])


@pytest.mark.parametrize("given", ["8", "8-", "20-8", "0-3", "a-b", ""])
def test_bounds_that_make_no_sense_are_refused(given):
    with pytest.raises(UserError, match="LOW-HIGH"):
        load_reward(f"length_penalty:{given}")
