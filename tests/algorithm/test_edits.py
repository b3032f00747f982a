"""Edits of a text: their distribution, by enumeration of all texts over a tiny vocabulary."""

import itertools
import math

import pytest
import torch

from semioffline.algorithm.edits import draw_edits, edit_uniforms, log_q_edit
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Text

ALLOWED = torch.tensor([False, False, True, True, True])
"""Of five ids 0 is padding, 1 the end; V = 3."""
V = 3


def text(*rows: list[int]) -> Text:
    """Ordinary tokens from 2 on."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return Text(ids, ids > 0, torch.where(ids > 1, 1, -1))


def enumerated(target: list[int], rate: float) -> dict[tuple[int, ...], float]:
    """exp(-e / tau) / Z over all texts of the length, with the Hamming distance e."""
    temperature = 1.0 / math.log((1 - rate) * (V - 1) / rate)
    length = sum(token > 1 for token in target)
    weights = {}
    for tokens in itertools.product((2, 3, 4), repeat=length):
        whole = (*tokens, *target[length:])
        weights[whole] = math.exp(-sum(a != b for a, b in zip(whole, target)) / temperature)
    total = sum(weights.values())
    return {ids: weight / total for ids, weight in weights.items()}


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6])
def test_the_probability_of_an_edit_is_that_of_the_enumeration(rate):
    target = [2, 3, 3, 1]
    expected = enumerated(target, rate)
    assert len(expected) == 27
    every = text(*map(list, expected))
    found = log_q_edit(every, text(target), ALLOWED, rate).exp()
    assert found.sum().item() == pytest.approx(1.0)
    assert found.tolist() == pytest.approx(list(expected.values()), rel=1e-5)


@pytest.mark.parametrize("other", [[2, 3, 1], [2, 3, 3, 3, 1], [2, 3, 3, 3], [2, 1, 3, 1], [2, 3, 0, 1]])
def test_texts_of_another_length_or_with_other_special_tokens_are_no_edits(other):
    assert log_q_edit(text(other), text([2, 3, 3, 1]), ALLOWED, 0.3).item() == -math.inf


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_draws_have_these_probabilities(rate, number):
    """Beside a longer text, whose edits are others."""
    target, many = [2, 3, 3, 1], 20_000
    both = text(*[target, [4, 4, 4, 4, 2, 1]] * many)
    index = torch.arange(2 * many)
    edits = draw_edits(both, ALLOWED, rate, number, edit_uniforms(both, index, number, Randomness(0, 0)))
    assert edits.shape == (2 * many, number, 6)
    counts: dict[tuple[int, ...], int] = {}
    for ids in edits[::2].flatten(0, 1)[:, :4].tolist():
        counts[tuple(ids)] = counts.get(tuple(ids), 0) + 1
    expected = enumerated(target, rate)
    assert set(counts) <= set(expected)
    total = many * number
    for ids, probability in expected.items():
        assert counts.get(ids, 0) / total == pytest.approx(
            probability, abs=4 * (probability / total) ** 0.5 + 4 / total
        )
    assert (edits[1::2, :, 5] == 1).all()
    assert (edits[::2, :, 4:] == 0).all()


def test_the_distances_of_a_text_are_stratified():
    """Of 1,000 edits as many have each distance as it has probability, up to one at each end of its part."""
    target = text([2, 2, 3, 4, 1])
    edits = draw_edits(target, ALLOWED, 0.3, 1000, edit_uniforms(target, torch.tensor([7]), 1000, Randomness(0, 0)))
    distances = (edits[0] != target.ids).sum(1)
    for e in range(5):
        expected = 1000 * math.comb(4, e) * 0.3**e * 0.7 ** (4 - e)
        assert abs(int((distances == e).sum()) - expected) <= 1.001
    places = (edits[0] != target.ids).float().mean(0)
    assert places[:4].tolist() == pytest.approx([0.3] * 4, abs=0.05)


def test_an_example_has_the_same_edits_in_every_batch():
    rows = [[2, 3, 4, 1], [4, 4, 3, 2, 2, 3, 1], [3, 1]]
    together = text(*rows)
    numbers = edit_uniforms(together, torch.arange(3), 5, Randomness(0, 3))
    whole = draw_edits(together, ALLOWED, 0.4, 5, numbers)
    for n, row in enumerate(rows):
        alone = text(row)
        own = edit_uniforms(alone, torch.tensor([n]), 5, Randomness(0, 3))
        assert torch.equal(draw_edits(alone, ALLOWED, 0.4, 5, own)[0], whole[n, :, : len(row)])
    other = edit_uniforms(together, torch.arange(3), 5, Randomness(0, 4))
    assert not torch.equal(draw_edits(together, ALLOWED, 0.4, 5, other), whole)
