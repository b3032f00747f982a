"""K draws for every hidden position."""

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import WIDTH, complete, draw, draw_uniforms, sampling_logits
from semioffline.algorithm.tensors import Observation, Samples, Text

ALL = torch.ones(5, dtype=torch.bool)


def probabilities(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def grid(number: int, rows: int = 1) -> torch.Tensor:
    """(M, K) evenly spaced numbers in (0, 1)."""
    return ((torch.arange(number) + 0.5) / number).expand(rows, number)


def test_draws_have_the_frequencies_of_the_distribution():
    p = [0.1, 0.0, 0.35, 0.5, 0.05]
    draws = draw(sampling_logits(probabilities(p), ALL), grid(1000)).ids
    counts = torch.bincount(draws[0], minlength=5)
    assert counts[1] == 0
    assert (counts - torch.tensor(p) * 1000).abs().max() <= 1


def test_each_position_draws_from_its_own_distribution():
    draws = draw(sampling_logits(probabilities([1.0, 0, 0, 0, 0], [0, 0, 0, 0.5, 0.5]), ALL), grid(4, rows=2)).ids
    assert draws.tolist() == [[0, 0, 0, 0], [3, 3, 4, 4]]


def test_temperature_divides_the_logits():
    z = torch.tensor([[1.0, 2.0, 0.0, -1.0, 3.0]])
    assert torch.allclose(sampling_logits(z, ALL, temperature=0.5), 2 * z)


@pytest.mark.parametrize("number", [0.0, 2**-24, 0.5, 1 - 2**-24, 1.0])
def test_forbidden_tokens_are_never_drawn_even_at_the_ends_of_the_interval(number):
    """The likeliest ids are forbidden, at the start, in the middle and at the end of the vocabulary."""
    z = torch.tensor([[9.0, 0.0, 9.0, 0.0, 9.0]])
    allowed = torch.tensor([False, True, False, True, False])
    draws = draw(sampling_logits(z, allowed), torch.tensor([[number]])).ids
    assert draws.item() in (1, 3)


def test_forbidding_renormalises_the_rest():
    allowed = torch.tensor([True, True, True, False, True])
    z = sampling_logits(probabilities([0.1, 0.1, 0.2, 0.5, 0.1]), allowed)
    assert torch.allclose(z.softmax(1), torch.tensor([[0.2, 0.2, 0.4, 0.0, 0.2]]))


def test_top_k_keeps_the_k_likeliest_of_the_allowed():
    allowed = torch.tensor([True, True, True, False, True])
    z = sampling_logits(probabilities([0.1, 0.15, 0.2, 0.5, 0.05]), allowed, top_k=2)
    assert (z > -torch.inf).tolist() == [[False, True, True, False, False]]
    assert z.softmax(1)[0, 2].item() == pytest.approx(4 / 7)


def test_top_k_above_the_number_of_allowed_tokens_keeps_them_all():
    allowed = torch.tensor([True, False, True, False, False])
    z = sampling_logits(torch.zeros(1, 5), allowed, top_k=50)
    assert (z > -torch.inf).tolist() == [allowed.tolist()]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [3]), (0.45, [3]), (0.6, [2, 3]), (0.79, [2, 3]), (0.95, [0, 2, 3])]
)
def test_top_p_keeps_the_smallest_set_that_holds_the_mass(top_p, kept):
    z = sampling_logits(probabilities([0.19, 0.005, 0.3, 0.5, 0.005]), ALL, top_p=top_p)
    assert (z[0] > -torch.inf).nonzero().flatten().tolist() == kept


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999])
def test_top_p_of_a_large_vocabulary_is_what_sorting_gives(top_p):
    """Sharp rows, for which some hundred tokens are enough, and flat ones, for which they are not."""
    spread = torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0, 8.0]).repeat(3)[:, None]
    logits = spread * torch.randn(18, 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    p = logits.double().softmax(1)
    kept = sampling_logits(logits, torch.tensor(True), top_p=top_p) > -torch.inf
    least = p.masked_fill(~kept, 2.0).amin(1)
    assert (least >= p.masked_fill(kept, 0.0).amax(1) * (1 - 1e-5)).all()  # the likeliest ones
    mass = (p * kept).sum(1)
    assert (mass >= top_p - 1e-5).all()
    assert (mass - least < top_p + 1e-5).all()  # and no more of them than it takes
    number = kept.sum(1)
    assert len({bool(n <= WIDTH) for n in number}) == (2 if top_p > 0.4 else 1)


def test_low_precision_logits_are_drawn_from_in_float32():
    z = sampling_logits(torch.zeros(1, 5, dtype=torch.bfloat16), ALL, temperature=0.7)
    assert z.dtype == torch.float32


def test_entropy_is_that_of_the_distribution_drawn_from():
    allowed = torch.tensor([True, True, False, True, True])
    z = sampling_logits(torch.zeros(2, 5), allowed)
    z[1, 1:] = -torch.inf
    entropy = draw(z, grid(3, rows=2)).entropy
    assert entropy.tolist() == pytest.approx([torch.tensor(4.0).log().item(), 0.0])


def test_drawing_needs_no_gradient():
    z = torch.zeros(1, 5, requires_grad=True)
    assert not sampling_logits(z, ALL).requires_grad


def test_samples_are_the_static_text_with_the_draws_at_the_hidden_positions():
    ids = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 1]])
    keep = torch.tensor([[True] * 4, [True, True, True, False]])
    static = Text(ids, keep, torch.zeros_like(ids))
    hidden = torch.tensor([[False, True, False, True], [True, False, False, False]])
    observation = Observation(ids.masked_fill(hidden, 9), hidden)
    samples = complete(static, observation, torch.tensor([[100, 101], [200, 201], [300, 301]]))
    assert samples.ids.tolist() == [
        [[10, 100, 12, 200], [10, 101, 12, 201]],
        [[300, 21, 22, 1], [301, 21, 22, 1]],
    ]
    assert samples.places.tolist() == [[0, 0, 1], [1, 3, 0]]
    assert torch.equal(samples.keep_mask, keep)
    assert torch.equal(static.ids, ids)


def test_numbers_of_an_example_do_not_depend_on_its_batch():
    hidden = torch.tensor([[True, False, True], [True, True, True]])
    both = draw_uniforms(Observation(hidden.long(), hidden), torch.tensor([3, 8]), 4, Randomness(0, 1), "draw")
    alone = draw_uniforms(Observation(hidden[1:].long(), hidden[1:]), torch.tensor([8]), 4, Randomness(0, 1), "draw")
    assert both.shape == (5, 4)
    assert torch.equal(both[2:], alone)
    assert not torch.equal(both[:1], both[2:3])


def test_a_batch_in_which_nothing_is_hidden_gives_the_static_text_back():
    ids = torch.tensor([[10, 11]])
    static = Text(ids, torch.ones(1, 2, dtype=torch.bool), torch.zeros_like(ids))
    observation = Observation(ids, torch.zeros(1, 2, dtype=torch.bool))
    uniforms = draw_uniforms(observation, torch.tensor([0]), 3, Randomness(0, 0), "draw")
    draws, entropy, _ = draw(sampling_logits(torch.zeros(0, 5), ALL, top_k=2, top_p=0.9), uniforms)
    assert complete(static, observation, draws).ids.tolist() == [[[10, 11]] * 3]
    assert len(entropy) == 0


def test_random_numbers_are_those_of_splitmix64():
    """Against the published algorithm in plain integers."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    step, randomness = 0x9E3779B97F4A7C15, Randomness(seed=5, step=11)
    for sizes in ([3, 0, 5], [4, 4, 4]):
        numbers = randomness.uniform("draw", torch.tensor([2, 0, 123456789]), sizes).tolist()
        expected = []
        for example, size in zip((2, 0, 123456789), sizes, strict=True):
            start = mix((example * step + randomness.key("draw")) % 2**64)
            expected += [(mix((start + n * step) % 2**64) >> 40) / 2**24 for n in range(1, size + 1)]
        assert numbers == expected


def test_random_numbers_are_uniform_and_independent():
    """Mean, variance, a chi-square over 64 bins, and no correlation between neighbours, examples, steps or purposes."""
    examples = torch.arange(400)
    tables = [
        Randomness(seed, step).uniform(purpose, examples, [500] * 400).view(400, 500)
        for seed, step, purpose in ((0, 0, "draw"), (0, 1, "draw"), (1, 0, "draw"), (0, 0, "mask"))
    ]
    for numbers in tables:
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert numbers.mean().item() == pytest.approx(0.5, abs=0.003)
        assert numbers.var().item() == pytest.approx(1 / 12, abs=0.001)
        counts = torch.histc(numbers, 64, 0, 1)
        chi_square = ((counts - counts.mean()).square() / counts.mean()).sum().item()
        assert chi_square < 117  # p = 0.0001 with 63 degrees of freedom is 116
    first = tables[0] - 0.5
    pairs = [(first[:, 1:], first[:, :-1]), (first[1:], first[:-1]), *((first, other - 0.5) for other in tables[1:])]
    for x, y in pairs:
        assert abs((x * y).mean().item()) * 12 < 0.01


def test_a_sample_ends_where_the_end_token_was_drawn_and_not_where_it_stood():
    """The text of the first row holds an end token."""
    ids = torch.tensor([[10, 2, 12, 13, 2], [20, 21, 22, 2, 1]])
    keep = ids != 1
    hidden = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 1, 0, 0]]).bool()
    draws = torch.tensor([[54, 55], [56, 2], [51, 52], [2, 53]])
    samples = Samples(Text(ids, keep, ids), hidden, draws, end_id=2)
    assert samples.token_lists() == [
        *([54, 2, 12, 56, 2], [55, 2, 12, 2]),
        *([51, 21, 2], [52, 21, 53, 2]),
    ]


def test_no_numbers_for_no_examples():
    assert len(Randomness(0, 0).uniform("draw", torch.zeros(0, dtype=torch.long), [])) == 0
