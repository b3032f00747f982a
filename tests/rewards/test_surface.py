"""Length, repetition and distinct words."""

import pytest

from semioffline.rewards.surface import distinct, length, repetition


def test_length_counts_words():
    assert length(["one two  three", "", "one\ntwo"]) == [3, 0, 2]


def test_distinct_is_the_share_of_different_words_whatever_their_case():
    assert distinct(["a b c d", "Go go GO go", "", "a b a"]) == pytest.approx([1, 0.25, 0, 2 / 3])


def test_repetition_is_the_share_of_word_pairs_that_stood_there_before():
    texts = ["a b c d", "discover discover discover discover", "a b a b a b", "a", "", "The cat . the CAT"]
    # pairs: ab bc cd | 3 times dd | ab ba ab ba ab | none | none | the-cat cat-. .-the the-cat
    assert repetition(texts) == pytest.approx([0, 2 / 3, 3 / 5, 0, 0, 1 / 4])


@pytest.mark.parametrize("metric", [length, distinct, repetition])
def test_other_columns_are_accepted_and_ignored(metric):
    assert metric(completions=["a b"], prompts=["x"], references=[["y"]]) == metric(["a b"])
