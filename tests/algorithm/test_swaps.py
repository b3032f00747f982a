"""Samples that differ from a base sample in one token: which tokens are tried, and what missing rewards do."""

import pytest
import torch

from semioffline.algorithm.counterfactual import swap, swap_coefficients

NAN = float("nan")
P = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.1, 0.0, 0.5, 0.4]])
"""Two positions of one row."""


def swaps_of(base, many, p=P, counts=(2,)):
    return swap(p, torch.tensor(base), list(counts), many)


def test_the_likeliest_tokens_of_the_row_are_tried():
    """Besides the best token of each position, these are token 3 of the second (.4) and 1 of the first (.3)."""
    assert swaps_of([0, 2], 3).draws.tolist() == [[0, 1, 0], [2, 2, 3]]


def test_a_base_token_that_is_among_them_is_replaced_by_the_best_one():
    draws = swaps_of([1, 3], 3).draws
    assert draws[:, 0].tolist() == [1, 3]
    assert sorted(map(tuple, draws.T[1:].tolist())) == [(0, 3), (1, 2)]


def test_an_unlikely_base_token_is_compared_with_the_likely_ones():
    """Token 2 of the first position (.1) is not among the tokens tried. It replaces the last of them."""
    swaps = swaps_of([2, 2], 3)
    assert sorted(map(tuple, swaps.draws.T[1:].tolist())) == [(0, 2), (2, 3)]
    assert swaps.weights.sum(1).tolist() == pytest.approx([0.6 + 0.1, 0.5 + 0.4])


def test_more_positions_than_calls():
    """Ten positions, two calls: the two whose second token is the likeliest; the others get no gradient."""
    second = torch.tensor([0.05, 0.45, 0.1, 0.2, 0.0, 0.4, 0.1, 0.1, 0.3, 0.2])
    p = torch.stack([1 - second, second, torch.zeros(10)], 1)
    swaps = swaps_of([0] * 10, 3, p, (10,))
    changed = (swaps.draws != swaps.draws[:, :1]).nonzero()
    assert changed[:, 0].tolist() == [1, 5]
    found = swaps.gradient(torch.tensor([[0.0, 1.0, 2.0]]), torch.zeros(10, dtype=torch.long))
    assert found.abs().sum(1).nonzero()[:, 0].tolist() == [1, 5]


def test_more_calls_than_tokens_repeat_the_base():
    """No token without probability is tried."""
    swaps = swaps_of([0, 2], 9)
    assert (P[torch.arange(2)[:, None], swaps.draws] > 0).all()
    assert swaps.draws[:, 5:].tolist() == [[0] * 4, [2] * 4]


def test_rows_have_their_own_samples():
    """The calls of a row are spread over its own positions; a row that hides nothing has none."""
    swaps = swaps_of([0, 2], 3, counts=(1, 0, 1))
    assert swaps.draws.tolist() == [[0, 1, 2], [2, 3, 0]]
    rewards = torch.tensor([[0.0, 1.0, 0.0], [NAN, NAN, NAN], [0.0, 0.0, 0.0]])
    found = swap_coefficients(swaps, rewards, torch.tensor([0, 2]), torch.tensor([1, 0, 1]))
    assert found[0].abs().min() > 0
    assert not found[1].any()


def test_the_gradient_by_hand():
    """S = {0, 1}, p = .6, .3, so w = 2/3, 1/3; Q = 1, 4, so their mean is 2, and w (Q - 2) = -2/3, 2/3."""
    swaps = swaps_of([0, 2], 2, counts=(1, 1))
    rewards = torch.tensor([[1.0, 4.0], [2.0, 2.0]])
    found = swap_coefficients(swaps, rewards, torch.tensor([0, 1]), torch.tensor([1, 1]), "sequence")
    torch.testing.assert_close(found, torch.tensor([[-2 / 3, 2 / 3], [0.0, 0.0]]))
    token = swap_coefficients(swaps, rewards, torch.tensor([0, 1]), torch.tensor([1, 4]), "token")
    torch.testing.assert_close(token, torch.tensor([[-4 / 3, 4 / 3], [0.0, 0.0]]))


@pytest.mark.parametrize("rewards", [[NAN, NAN, NAN], [1.0, NAN, NAN], [NAN, 5.0, NAN], [0.1, 0.1, 0.1], [1e30] * 3])
def test_without_two_different_rewards_there_is_no_gradient(rewards):
    found = swaps_of([0, 2], 3).gradient(torch.tensor([rewards]), torch.zeros(2, dtype=torch.long))
    assert not found.any()


def test_samples_without_a_reward_are_left_out():
    """Of tokens 0, 1 and 2 of one position, the middle one is not known: w = .6, .1 over .7."""
    swaps = swaps_of([0], 3, P[:1], (1,))
    assert swaps.draws.tolist() == [[0, 1, 2]]
    found = swaps.gradient(torch.tensor([[0.0, NAN, 7.0]]), torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(found, torch.tensor([[-6 / 7, 0.0, 6 / 7]]))
