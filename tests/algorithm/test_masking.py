"""Which tokens are hidden from the policy."""

import pytest
import torch

from semioffline.algorithm.masking import choose_hidden, hide, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Text
from semioffline.methods.ablations import add_noise, append_target
from semioffline.methods.shared.schedule import scheduled_rate

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


# ---- patterns ----

LONG = text([list(range(60))] * 400, lengths=[60] * 400)
PIECES = text([[n // 3 for n in range(60)]] * 400, lengths=[60] * 400)


def chosen(given: Text, rate: float, pattern: str, unit: str = "token", span: float = 3.0, step: int = 0):
    uniforms = mask_uniforms(given, torch.arange(len(given.ids)), Randomness(0, step), "mask")
    return choose_hidden(given, rate, uniforms, unit, pattern, span)


def runs(row: list[bool]) -> list[int]:
    """Lengths of the runs of hidden tokens that neither begin nor end the row (those may be cut off)."""
    parts = "".join("#" if hidden else "." for hidden in row).strip("#").split(".")
    return [len(part) for part in parts if part]


def test_the_random_pattern_is_hide():
    uniforms = mask_uniforms(LONG, torch.arange(400), Randomness(0, 0), "mask")
    hidden = choose_hidden(LONG, 0.4, uniforms)
    assert torch.equal(hidden, hide(LONG, 0.4, MASK, uniforms).hidden)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("pattern", ["random", "suffix", "span", "mixed"])
@pytest.mark.parametrize("rate", [0.0, 0.15, 0.4, 0.7, 0.9, 1.0])
def test_the_expected_share_is_the_rate_in_every_pattern(pattern, rate, unit):
    """20 words or 60 tokens in each of 400 rows. The error of the mean is that of the rows' shares / sqrt(400)."""
    given = PIECES if unit == "word" else LONG
    hidden = chosen(given, rate, pattern, unit)
    shares = hidden.float().mean(1)
    assert abs(shares.mean().item() - rate) <= 4 * shares.std().item() / 20
    if pattern == "span" and 0 < rate < 1:  # the chain starts in its stationary state: no end of the text is favoured
        for t in (0, 30, 59):
            assert hidden[:, t].float().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 400) ** 0.5)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_a_suffix_hides_the_end_and_nothing_before_it(rate, unit):
    given = PIECES if unit == "word" else LONG
    hidden = chosen(given, rate, "suffix", unit)
    assert (hidden[:, 1:] >= hidden[:, :-1]).all()
    if unit == "word":
        assert (hidden.sum(1) % 3 == 0).all()
    short = chosen(TWO_ROWS, rate, "suffix")
    for row, ordinary in zip(short.tolist(), TWO_ROWS.ordinary.tolist(), strict=True):
        flags = [h for h, o in zip(row, ordinary, strict=True) if o]
        assert flags == sorted(flags)
        assert sum(row) == sum(flags)


@pytest.mark.parametrize(
    ("rate", "span", "expected"), [(0.4, 3.0, 3.0), (0.2, 5.0, 5.0), (0.4, 1.0, 1.0), (0.8, 1.0, 4.0)]
)
def test_spans_have_the_mean_length_asked_for(rate, span, expected):
    """Geometric runs. Runs that touch an end of the text are left out, which takes a little off the mean of the rest.

    With rate 0.8 and runs of 1 there is no room: 0.8 / 0.2 = 4 is the shortest mean length with that share.
    """
    wide = text([list(range(1000))] * 20, lengths=[1000] * 20)
    hidden = chosen(wide, rate, "span", span=span)
    lengths = torch.tensor([float(n) for row in hidden.tolist() for n in runs(row)])
    assert lengths.mean().item() == pytest.approx(expected, abs=4 * lengths.std().item() / len(lengths) ** 0.5 + 0.03)


def test_spans_of_words_hide_whole_words():
    hidden = chosen(PIECES, 0.4, "span", "word", span=2.0)
    thirds = hidden.view(400, 20, 3)
    assert torch.equal(thirds.any(2), thirds.all(2))
    assert hidden.any()


def test_rows_of_the_mixed_pattern_have_rates_of_their_own():
    """Their shares spread over [0, 2 rate], while those of the random pattern stay near the rate."""
    mixed, random = (chosen(LONG, 0.4, pattern, "token") for pattern in ("mixed", "random"))
    shares = mixed.float().mean(1)
    assert shares.std() > 2 * random.float().mean(1).std()
    assert shares.min() < 0.1
    assert 0.7 < shares.max() < 0.95


@pytest.mark.parametrize("pattern", ["random", "suffix", "span", "mixed"])
def test_a_rows_mask_does_not_depend_on_the_padding_of_its_batch(pattern):
    randomness = Randomness(seed=3, step=5)
    alone = text([[-1, *range(20), -1]], lengths=[22])
    together = text([list(range(40)), [-1, *range(20), *[-1] * 19]], lengths=[40, 22])
    mine = choose_hidden(alone, 0.4, mask_uniforms(alone, torch.tensor([7]), randomness, "mask"), pattern=pattern)
    uniforms = mask_uniforms(together, torch.tensor([4, 7]), randomness, "mask")
    theirs = choose_hidden(together, 0.4, uniforms, pattern=pattern)
    assert torch.equal(mine[0], theirs[1, :22])
    assert not theirs[1, 22:].any()
    assert mine.any()


def test_the_rate_goes_in_a_straight_line_from_the_first_step_to_the_last():
    assert [scheduled_rate(0.8, 0.2, step, 4) for step in range(4)] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert scheduled_rate(0.8, 0.2, 99, 4) == pytest.approx(0.2)
    assert scheduled_rate(0.8, None, 3, 4) == 0.8
    assert scheduled_rate(0.8, 0.2, 0, 1) == 0.8


# ---- observations ----


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_noisy_observation_shows_its_share_of_the_hidden_tokens(rate):
    uniforms = mask_uniforms(LONG, torch.arange(400), Randomness(0, 0), "mask")
    noise = mask_uniforms(LONG, torch.arange(400), Randomness(0, 0), "noise")
    clean = hide(LONG, 0.4, MASK, uniforms)
    noisy = add_noise(clean, LONG, rate, noise)
    assert torch.equal(noisy.hidden, clean.hidden)
    assert torch.equal(noisy.ids[~clean.hidden], LONG.ids[~clean.hidden])
    lied = noisy.ids[clean.hidden] != MASK
    assert torch.equal(noisy.ids[clean.hidden][lied], LONG.ids[clean.hidden][lied])
    error = 4 * (rate * (1 - rate) / int(clean.hidden.sum())) ** 0.5
    assert lied.float().mean().item() == pytest.approx(rate, abs=error)


def test_the_target_is_appended_after_one_separator():
    source = Text(
        torch.tensor([[30, 31, 2], [32, PAD, PAD]]),
        torch.tensor([[True] * 3, [True, False, False]]),
        torch.tensor([[0, 1, -1], [0, -1, -1]]),
    )
    whole = append_target(source, TWO_ROWS, separator_id=2, pad_id=PAD)
    assert whole.ids.tolist() == [[30, 31, 2, 10, 11, 12, 13, 14], [32, 2, 10, 11, 12, 13, PAD, PAD]]
    assert whole.keep_mask.tolist() == [[True] * 8, [True] * 6 + [False] * 2]
