"""The cost of a step does not depend on the number of samples."""

import pytest

from semioffline.algorithm.randomness import Randomness
from semioffline.methods.semi_offline import Method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer


def constant(completions, **kwargs):
    return [1.0] * len(completions)


def step(policy, batch, args):
    """One step's output, and what the meter booked for it."""
    before = policy.meter.counts.copy()
    output = Method(args).step(policy, batch, Scorer(policy, RewardSet(constant)), Randomness(0, 0))
    policy.meter.add_inputs(len(batch))
    return output, policy.meter.counts - before


@pytest.mark.parametrize("share_prompt", [True, False])
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_a_thousand_samples_cost_what_two_cost(tiny_policy, tiny_batch, settings, kind, share_prompt):
    """FP = decoder row-passes per input that sample or score RL trajectories.

    o_t holds no sampled token, so p(. | o_t) serves all K samples: one decoder row for each input, whatever K is.
    (On-policy sampling of K texts of length T costs K * T, the fully observable variant K * |M|.)
    """
    policy = tiny_policy(kind, share_prompt=share_prompt)
    batch = tiny_batch(policy)
    shown = []
    for many in (2, 1000):
        output, counts = step(policy, batch, settings(num_samples=many))
        assert 0 < counts.pop("reward_calls") <= many * len(batch)
        assert len(output.completions()) == many * len(batch)
        shown.append(counts)
    two, thousand = shown
    assert thousand == two
    assert two["calls"] == 1
    assert two["rl_rows"] == len(batch)
    assert two["mle_rows"] == len(batch)
    assert two["encoder_rows"] == (len(batch) if policy.is_encoder_decoder else 0)
    assert policy.meter.per_input()["forward_passes"] == 1


@pytest.mark.parametrize("mask_rate", [0.0, 0.4, 1.0])
def test_the_mask_rate_costs_nothing_either(tiny_policy, tiny_batch, settings, mask_rate):
    """One row a step, whether it hides nothing or everything (then it is non-autoregressive)."""
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    output, counts = step(policy, batch, settings(num_samples=4, mask_rate=mask_rate))
    assert output.metrics["mask_rate"] == pytest.approx(mask_rate, abs=0.25)
    assert counts["rl_rows"] == len(batch)
    assert counts["calls"] == 1
