"""Choose the text to mask, the ground truth or the worst candidate, by a probe on a few inputs.

The paper masks the worst candidate if the reward is text overlap, and else the ground truth: samples of a text that has
the highest reward already cannot be better. The probe measures this for any reward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch
from semioffline.data.examples import Collator, Examples
from semioffline.methods.semi_offline import Method, SemiOfflineConfig
from semioffline.policy.policy import Policy
from semioffline.scoring.calls import reward_columns
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.storage.records import Record

BATCH_SIZE = 16
ENOUGH = 0.5
"""Minimum share of inputs whose samples must differ in reward."""


@dataclass(frozen=True)
class TargetProbe(Record):
    """Results of the probe for one kind of static target."""

    differ: float
    """The share of inputs whose samples differ in reward."""
    gain: float
    """Mean over inputs: the reward of the best sample minus that of the static text."""

    def __str__(self) -> str:
        return (
            f"the samples of {self.differ:.0%} of the inputs differ in reward, and the best one is {self.gain:+.3g} "
            "from the text itself"
        )


@dataclass(frozen=True)
class StaticChoice(Record):
    """The content of static_target.json: the chosen text and the reason."""

    target: str
    reason: str
    ground_truth: TargetProbe | None = None
    worst: TargetProbe | None = None


def choose_target(ground_truth: TargetProbe, worst: TargetProbe) -> StaticChoice:
    """Choose the static target: the ground truth, which costs nothing, if the samples of enough inputs differ and the
    mean gain is above 0; else the worst candidate, if the product of both numbers is larger there."""
    if ground_truth.differ >= ENOUGH and ground_truth.gain > 0:
        return StaticChoice("ground_truth", f"around the ground truth {ground_truth}", ground_truth, worst)
    if worst.differ * worst.gain > ground_truth.differ * max(ground_truth.gain, 0.0):
        reason = f"around the ground truth {ground_truth}; around the worst candidate {worst}"
        return StaticChoice("worst", reason, ground_truth, worst)
    reason = f"neither text helps much: around the ground truth {ground_truth}; around the worst candidate {worst}"
    return StaticChoice("ground_truth", reason, ground_truth, worst)


@torch.no_grad()
def probe_target(policy: Policy, examples: Examples, rewards: RewardSet, config: SemiOfflineConfig) -> TargetProbe:
    """Mask the static texts of these examples, draw samples, and compare their rewards with those of the texts."""
    was_training = policy.training
    policy.eval()
    method, scorer = Method(config), Scorer(policy, rewards)
    collate, randomness = Collator(policy.tokens.pad_id), Randomness(config.seed, 0)
    differ: list[bool] = []
    gains: list[float] = []
    with policy.meter.paused():
        for start in range(0, len(examples), BATCH_SIZE):
            batch = collate(examples.examples[start : start + BATCH_SIZE])
            observation = method.observe(policy, batch, batch.static, randomness)
            drawn = method.predict_and_draw(policy, batch, batch.static, observation, randomness)[1]
            sampled = scorer(drawn.samples, batch).rewards.cpu()
            for own, values in zip(_own_rewards(policy, batch, rewards), sampled, strict=True):
                kept = values[~values.isnan()]
                if len(kept) and own == own:
                    differ.append(bool((kept.max() - kept.min()) > 1e-6))
                    gains.append(float(kept.max()) - own)
    policy.train(was_training)
    if not gains:
        return TargetProbe(0.0, 0.0)
    return TargetProbe(sum(differ) / len(differ), sum(gains) / len(gains))


def _own_rewards(policy: Policy, batch: Batch, rewards: RewardSet) -> list[float]:
    """Return the rewards of the static targets themselves; NaN for those without a reward."""
    ids = [row[keep].tolist() for row, keep in zip(batch.static.ids, batch.static.keep_mask, strict=True)]
    return rewards(reward_columns(batch.columns, policy.tokens.decode(ids), ids))[0]
