"""Losses and advantages against values computed by hand."""

from math import log, sqrt

import pytest
import torch
from tests.reference import reinforce_dense, trained_loss

from semioffline.algorithm.deferred import DeferredSum as Late
from semioffline.algorithm.losses import (
    Advantages,
    advantages,
    mle,
    reinforce,
    sample_weights,
    token_advantages,
)
from semioffline.errors import UserError

NAN = float("nan")


def row(*rewards: float, **options) -> list[float]:
    return advantages(torch.tensor([rewards]), **options).values[0].tolist()


def test_mle_is_the_summed_negative_log_likelihood():
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]).log()
    assert mle(logits, torch.tensor([0, 1])).item() == pytest.approx(-log(0.5) - log(0.2))


def test_label_smoothing_mixes_in_the_mean_over_the_vocabulary():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    uniform = -(log(0.5) + 2 * log(0.25)) / 3
    assert mle(logits, torch.tensor([0]), 0.15).item() == pytest.approx(0.85 * -log(0.5) + 0.15 * uniform)


def test_low_precision_logits_give_a_float32_loss():
    logits = torch.randn(4, 7)
    exact = mle(logits.bfloat16().float(), torch.tensor([0, 1, 2, 3]))
    assert mle(logits.bfloat16(), torch.tensor([0, 1, 2, 3])).item() == pytest.approx(exact.item(), rel=1e-6)


def test_mean_baseline():
    assert row(1.0, 2.0, 6.0) == pytest.approx([-2.0, -1.0, 3.0])


def test_leave_one_out_subtracts_the_mean_of_the_others():
    assert row(1.0, 2.0, 6.0, baseline="leave_one_out") == pytest.approx([1 - 4.0, 2 - 3.5, 6 - 1.5])


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_scaling_divides_by_the_standard_deviation_of_the_rewards(baseline):
    """A_k / std(R): the divisor is that of the rewards, so leave-one-out keeps its factor K / (K - 1)."""
    plain = torch.tensor(row(1.0, 2.0, 6.0, baseline=baseline))
    deviation = sqrt((4 + 1 + 9) / 2)
    assert row(1.0, 2.0, 6.0, baseline=baseline, scale=True) == pytest.approx((plain / deviation).tolist(), rel=1e-4)


def test_a_row_of_equal_rewards_has_no_advantage():
    assert row(0.3, 0.3, 0.3) == pytest.approx([0, 0, 0], abs=1e-7)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 33.3, 1e4 / 3])
@pytest.mark.parametrize("many", [3, 7, 64])
def test_equal_rewards_stay_without_advantage_when_scaled(reward, many):
    """The rounding error of the mean must not be blown up to the size of a real advantage, with one sign for all."""
    values = advantages(torch.full((1, many), reward), scale=True).values
    assert values.abs().max().item() < 1e-3


@pytest.mark.parametrize("options", [{}, {"baseline": "leave_one_out"}, {"scale": True}])
def test_samples_without_a_reward_are_left_out(options):
    with_nan = advantages(torch.tensor([[1.0, NAN, 2.0, 6.0]]), **options)
    without = advantages(torch.tensor([[1.0, 2.0, 6.0]]), **options)
    assert with_nan.counts.tolist() == [3]
    assert with_nan.values[0, 1] == 0
    assert torch.allclose(with_nan.values[0, [0, 2, 3]], without.values[0])


@pytest.mark.parametrize("options", [{}, {"baseline": "leave_one_out"}, {"scale": True}])
def test_rows_with_one_or_no_reward_have_no_advantage(options):
    given = advantages(torch.tensor([[NAN, NAN, NAN], [NAN, 5.0, NAN]]), **options)
    assert given.values.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert given.counts.tolist() == [0, 1]


@pytest.mark.parametrize("options", [{}, {"baseline": "leave_one_out"}, {"scale": True}])
def test_advantages_sum_to_zero(options):
    """What the sparse loss rests on."""
    rewards = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)) * 10 + 30
    rewards[::3, ::5] = NAN
    assert advantages(rewards, **options).values.sum(1).abs().max() < 1e-3


# Two rows; the first has two hidden positions, the second one. K = 2, V = 2.
P = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.1, 0.9]])
DRAWS = torch.tensor([[0, 1], [1, 0], [0, 1]])
ROWS = torch.tensor([0, 0, 1])
GIVEN = advantages(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))  # 0.5, -0.5 and -2, 2
FIRST = -(0.5 * (log(0.5) + log(0.8)) - 0.5 * (log(0.5) + log(0.2)))  # - sum_k A_k sum_t log p
SECOND = -(-2 * log(0.1) + 2 * log(0.9))


def test_sequence_scale_is_the_printed_formula():
    """(1/K) sum_k - A_k sum_t log p(a_t^k), summed over rows."""
    loss = reinforce_dense(P.log(), DRAWS, ROWS, GIVEN, "sequence")
    assert loss.item() == pytest.approx(FIRST / 2 + SECOND / 2, rel=1e-5)


def test_token_scale_sums_over_samples_and_averages_over_hidden_positions():
    loss = reinforce_dense(P.log(), DRAWS, ROWS, GIVEN, "token")
    assert loss.item() == pytest.approx(FIRST / 2 + SECOND / 1, rel=1e-5)


@pytest.mark.parametrize("scale", ["token", "sequence"])
def test_sparse_and_dense_agree_although_sparse_sees_no_normaliser(scale):
    logits = P.log() + torch.tensor([[3.0], [-2.0], [7.0]])
    dense = reinforce_dense(logits, DRAWS, ROWS, GIVEN, scale)
    sparse = trained_loss(logits.gather(1, DRAWS), ROWS, GIVEN, scale)
    assert sparse.item() == pytest.approx(dense.item(), rel=1e-4)


def test_a_sample_that_is_left_out_does_not_count_as_a_sample():
    rewards = torch.tensor([[1.0, NAN, 0.0], [0.0, NAN, 4.0]])
    draws = torch.stack([DRAWS[:, 0], torch.tensor([1, 1, 1]), DRAWS[:, 1]], 1)
    loss = reinforce_dense(P.log(), draws, ROWS, advantages(rewards), "sequence")
    assert loss.item() == pytest.approx(FIRST / 2 + SECOND / 2, rel=1e-5)


@pytest.mark.parametrize("scale", ["token", "sequence"])
def test_a_row_without_hidden_positions_adds_nothing(scale):
    three = Advantages(torch.cat([GIVEN.values, torch.tensor([[9.0, -9.0]])]), torch.tensor([2, 2, 2]))
    assert torch.equal(
        reinforce_dense(P.log(), DRAWS, ROWS, three, scale), reinforce_dense(P.log(), DRAWS, ROWS, GIVEN, scale)
    )


@pytest.mark.parametrize("scale", ["token", "sequence"])
def test_a_batch_without_hidden_positions_has_loss_zero_and_can_be_differentiated(scale):
    logits = torch.zeros(0, 2, requires_grad=True)
    loss = trained_loss(logits, torch.zeros(0, dtype=torch.long), GIVEN, scale)
    loss.backward()
    assert loss.item() == 0


def test_the_loss_raises_the_probability_of_what_was_rewarded():
    logits = P.log().requires_grad_()
    reinforce_dense(logits, DRAWS, ROWS, GIVEN, "token").backward()
    assert logits.grad[2, 0] > 0  # descent lowers the token of the sample with reward 0 ...
    assert logits.grad[2, 1] < 0  # ... and raises that of the sample with reward 4


def test_token_advantage_is_the_mean_reward_of_the_samples_that_chose_it_minus_the_baseline():
    draws = torch.tensor([[7, 7, 5, 7], [5, 6, 6, 5]])
    found = token_advantages(draws, torch.tensor([0, 0]), advantages(torch.tensor([[1.0, 2.0, 3.0, 6.0]])))
    table = {(p, t): (c, v) for p, t, c, v in zip(*(column.tolist() for column in found), strict=True)}
    assert table == {
        (0, 7): (3, pytest.approx(0.0)),
        (0, 5): (1, pytest.approx(0.0)),
        (1, 5): (2, pytest.approx(0.5)),
        (1, 6): (2, pytest.approx(-0.5)),
    }


def test_token_advantage_does_not_count_samples_that_are_left_out():
    """The two samples with a reward: R = 2 and 4, b = 3. Token 7 was drawn by the first and by the one without."""
    draws = torch.tensor([[7, 7, 5]])
    found = token_advantages(draws, torch.tensor([0]), advantages(torch.tensor([[2.0, NAN, 4.0]])))
    assert dict(zip(found.tokens.tolist(), found.values.tolist(), strict=True)) == pytest.approx({5: 1.0, 7: -1.0})


# ---- losses that wait ----


FACTORS = [torch.arange(1.0, 7).view(2, 3), torch.tensor([0.5, -2.0, 0.0, 4.0])]


def weighted(*inputs: torch.Tensor) -> torch.Tensor:
    return torch.stack([(factor * x).sum() for factor, x in zip(FACTORS, inputs, strict=True)]).sum()


@pytest.mark.parametrize("ready", [False, True])
def test_a_late_loss_has_the_value_and_the_gradient_of_the_loss(ready):
    plain = [torch.randn(2, 3, requires_grad=True), torch.randn(4, requires_grad=True)]
    waiting = [x.detach().clone().requires_grad_() for x in plain]
    (3.0 * weighted(*plain)).backward()
    late = Late(lambda: FACTORS, *(x * 1 for x in waiting), ready=ready)
    assert late.total.item() == (pytest.approx(weighted(*plain).item()) if ready else 0.0)
    (3.0 * late.total).backward()
    assert late.value().item() == pytest.approx(weighted(*plain).item())
    for x, y in zip(plain, waiting, strict=True):
        assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("loss_scale", ["token", "sequence"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", [False, True])
def test_a_loss_whose_rewards_come_late_is_the_printed_one(scale, baseline, loss_scale):
    """Before backward it is 0; then it has the value and the gradient of the dense form, NaN rewards left out."""
    rewards = torch.rand(3, 8)
    rewards[0, 1] = rewards[2, 6] = torch.nan
    rows = torch.arange(3).repeat_interleave(torch.tensor([3, 1, 4]))
    given = advantages(rewards, baseline, scale)
    logits, draws = torch.randn(len(rows), 5), torch.randint(5, (len(rows), 8))
    dense, late = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = reinforce_dense(dense, draws, rows, given, loss_scale)
    expected.backward()
    counts = torch.tensor([3, 1, 4])
    loss = reinforce(late.gather(1, draws), lambda: sample_weights(given, counts, loss_scale)[rows])
    assert loss.total.item() == 0.0
    loss.total.backward()
    assert loss.value().item() == pytest.approx(expected.item(), abs=1e-5)
    torch.testing.assert_close(late.grad, dense.grad, rtol=1e-4, atol=1e-6)


def test_a_late_loss_is_computed_once_and_when_backward_comes_to_it():
    """Autograd goes to what was made later first: there the device has something to do while the rewards come."""
    happened = []

    def factors():
        happened.append("late loss")
        return [torch.ones(3)]

    x = torch.ones(3, requires_grad=True)
    late = Late(factors, x * 2)
    other = (x * 5).exp()
    other.register_hook(lambda gradient: happened.append("what was made later"))
    total = late.total + other.sum()
    assert happened == []
    total.backward()
    late.value()
    assert happened == ["what was made later", "late loss"]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_late_loss_shows_before_it_is_known_that_it_will_not_be_finite(wrong):
    x = torch.tensor([1.0, wrong, 2.0], requires_grad=True)
    assert Late(lambda: [torch.ones(3)], x).total.isnan()


def test_a_late_loss_of_large_half_precision_inputs_is_no_false_alarm():
    x = torch.full((100,), 6e4, dtype=torch.float16, requires_grad=True)
    assert Late(lambda: [torch.ones(100)], x).total.item() == 0.0


def test_a_late_loss_is_rounded_to_the_precision_of_its_inputs_once():
    """The scale of the loss (rows of the step, a gradient scaler) is applied in float32."""
    weights, scale = torch.tensor([1.003, 2.007, 3.001]), 0.3337
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    (scale * Late(lambda: [weights], x).total).backward()
    assert torch.equal(x.grad, (scale * weights).to(torch.bfloat16))


def test_an_error_in_a_late_loss_comes_out_of_backward():
    def factors():
        raise UserError("the reward function 'mine' raised KeyError")

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UserError, match="'mine' raised KeyError"):
        Late(factors, x).total.backward()
