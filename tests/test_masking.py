"""Which tokens are hidden from the policy."""

import pytest
import torch

from semioffline.masking import hide, mask_uniforms
from semioffline.types import Randomness, Text

MASK, PAD = 9, 1


def text(words: list[list[int]], lengths: list[int]) -> Text:
    """Tokens 10, 11, ... in every row; padding after its length."""
    table = torch.tensor(words)
    keep = torch.arange(table.shape[1])[None] < torch.tensor(lengths)[:, None]
    ids = (torch.arange(table.shape[1]) + 10).expand_as(table).masked_fill(~keep, PAD)
    return Text(ids, keep, table)


# <s> and </s> around three tokens; the second row is one token shorter
TWO_ROWS = text([[-1, 0, 1, 2, -1], [-1, 0, 1, -1, -1]], lengths=[5, 4])


def test_a_token_is_hidden_where_its_number_is_below_the_rate():
    uniforms = torch.tensor([[0.0, 0.1, 0.5, 0.39, 0.0], [0.0, 0.4, 0.2, 0.0, 0.0]])
    observation = hide(TWO_ROWS, 0.4, MASK, uniforms)
    assert observation.ids.tolist() == [[10, MASK, 12, MASK, 14], [10, 11, MASK, 13, PAD]]
    assert observation.hidden.tolist() == [[False, True, False, True, False], [False, False, True, False, False]]


def test_rate_one_hides_every_ordinary_token_and_no_special_token_or_padding():
    observation = hide(TWO_ROWS, 1.0, MASK, torch.rand(2, 5))
    assert torch.equal(observation.hidden, TWO_ROWS.ordinary)
    assert observation.ids.tolist() == [[10, MASK, MASK, MASK, 14], [10, MASK, MASK, 13, PAD]]


def test_rate_zero_hides_nothing():
    observation = hide(TWO_ROWS, 0.0, MASK, torch.zeros(2, 5))
    assert not observation.hidden.any()
    assert torch.equal(observation.ids, TWO_ROWS.ids)


def test_the_static_text_itself_is_left_alone():
    before = TWO_ROWS.ids.clone()
    hide(TWO_ROWS, 1.0, MASK, torch.zeros(2, 5))
    assert torch.equal(TWO_ROWS.ids, before)


def test_each_row_may_have_its_own_rate():
    observation = hide(TWO_ROWS, torch.tensor([[0.0], [1.0]]), MASK, torch.rand(2, 5))
    assert not observation.hidden[0].any()
    assert torch.equal(observation.hidden[1], TWO_ROWS.ordinary[1])


def test_word_unit_hides_all_pieces_of_a_word_or_none():
    pieces = text([[-1, 0, 0, 1, 2, 2, 2, -1]], lengths=[8])
    for seed in range(20):
        uniforms = torch.rand(1, 8, generator=torch.Generator().manual_seed(seed))
        hidden = hide(pieces, 0.5, MASK, uniforms, unit="word").hidden[0].tolist()
        assert not hidden[0]
        assert not hidden[7]
        assert hidden[1] == hidden[2]
        assert hidden[4] == hidden[5] == hidden[6]


@pytest.mark.parametrize("unit", ["token", "word"])
def test_the_rate_is_the_share_of_hidden_tokens(unit):
    words = [n // 3 for n in range(60)] if unit == "word" else list(range(60))
    many = text([words] * 200, lengths=[60] * 200)
    uniforms = mask_uniforms(many, torch.arange(200), Randomness(0, 0), "mask")
    share = hide(many, 0.4, MASK, uniforms, unit).hidden.float().mean().item()
    assert share == pytest.approx(0.4, abs=0.03)


def test_word_numbers_may_exceed_the_number_of_tokens():
    """A tokenizer that drops unknown words still counts them: two tokens may belong to the words 0 and 7."""
    observation = hide(text([[0, 7]], lengths=[2]), 1.0, MASK, torch.zeros(1, 2), unit="word")
    assert observation.hidden.tolist() == [[True, True]]


def test_numbers_of_an_example_do_not_depend_on_its_batch():
    randomness = Randomness(seed=3, step=5)
    alone = text([[0, 1, 2]], lengths=[3])
    together = text([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]], lengths=[5, 3])
    by_itself = mask_uniforms(alone, torch.tensor([7]), randomness, "mask")
    in_batch = mask_uniforms(together, torch.tensor([4, 7]), randomness, "mask")
    assert torch.equal(by_itself[0], in_batch[1, :3])
    assert not torch.equal(in_batch[0, :3], in_batch[1, :3])


def test_numbers_change_with_seed_step_example_and_purpose():
    one = text([[0, 1, 2, 3]], lengths=[4])
    base = mask_uniforms(one, torch.tensor([0]), Randomness(0, 0), "mask")
    again = mask_uniforms(one, torch.tensor([0]), Randomness(0, 0), "mask")
    others = [
        mask_uniforms(one, torch.tensor([0]), Randomness(1, 0), "mask"),
        mask_uniforms(one, torch.tensor([0]), Randomness(0, 1), "mask"),
        mask_uniforms(one, torch.tensor([1]), Randomness(0, 0), "mask"),
        mask_uniforms(one, torch.tensor([0]), Randomness(0, 0), "mle mask"),
    ]
    assert torch.equal(base, again)
    assert not any(torch.equal(base, other) for other in others)


def test_numbers_fill_the_width_of_a_batch_wider_than_its_longest_row():
    wide = text([[0, 1, -1, -1]], lengths=[2])
    uniforms = mask_uniforms(wide, torch.tensor([0]), Randomness(0, 0), "mask")
    assert uniforms.shape == (1, 4)
    assert ((uniforms >= 0) & (uniforms <= 1)).all()
