"""Settings that several methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semioffline.algorithm.losses import Baseline, LossScale
from semioffline.config import MethodConfig
from semioffline.validation import NOT_NEGATIVE, POSITIVE, SAMPLES, SHARE, TEMPERATURE, Range, setting

DEFAULT_RATIO = 1.0
"""The right rl_weight depends on the scale of the reward, on K and on the data; this ratio does not."""
DEFAULT_WEIGHT = 5.0
"""For combinations whose RL terms no ratio balances."""


@dataclass
class MaskedMLESettings(MethodConfig):
    """An MLE term whose decoder inputs are masked in part, as in M-FT."""

    mle_mask_rate: float = setting(0.4, "Share of decoder inputs masked in the masked examples.", "MLE term", SHARE)
    mle_mask_share: float = setting(0.5, "Share of the examples whose decoder inputs are masked.", "MLE term", SHARE)


@dataclass
class RLSettings(MaskedMLESettings):
    """An RL term next to the MLE term, and how its samples are drawn."""

    default_ratio: ClassVar[float | None] = DEFAULT_RATIO
    rl_weight: float | None = setting(
        None, "Lambda, the weight of the RL loss next to the MLE loss; rl_ratio sets it when not given.", "RL term",
        NOT_NEGATIVE,
    )  # fmt: skip
    rl_ratio: float | None = setting(
        None,
        "Target ratio of RL to MLE gradient norm; sets rl_weight during the first 10 steps. "
        f"{DEFAULT_RATIO:g} when neither is given.",
        "RL term",
        POSITIVE,
    )
    temperature: float = setting(1.0, "Temperature of the draws.", "Sampling", TEMPERATURE)
    top_k: int = setting(0, "Draw among the k most likely tokens only; 0: all.", "Sampling", NOT_NEGATIVE)
    top_p: float = setting(
        1.0, "Draw among the most likely tokens that hold this much probability.", "Sampling", Range(0, 1, True)
    )

    def __post_init__(self) -> None:
        if self.rl_weight is None and self.rl_ratio is None:
            self.rl_ratio = self.default_ratio
            self.rl_weight = DEFAULT_WEIGHT if self.default_ratio is None else None
        super().__post_init__()

    @property
    def first_rl_weight(self) -> float:
        """The weight of the RL term; 1 where rl_ratio finds it during training."""
        return 1.0 if self.rl_weight is None else self.rl_weight


@dataclass
class GroupSettings(RLSettings):
    """K samples of an input, compared with each other."""

    num_samples: int = setting(64, "K, samples drawn for each input.", "Sampling", SAMPLES)
    loss_scale: LossScale = setting(
        "token", "token: sum over samples, mean over masked positions (the published lambda) | sequence: as printed.",
        "RL term",
    )  # fmt: skip
    baseline: Baseline = setting("mean", "Subtracted from a sample's reward: mean | leave_one_out.", "RL term")
    scale_rewards: bool = setting(
        False, "Divide advantages by the standard deviation of the input's rewards.", "RL term"
    )


@dataclass
class LengthSettings(MethodConfig):
    """Log-likelihoods of whole texts."""

    length_alpha: float = setting(
        1.0, "Log-likelihoods of texts are divided by length ** this.", "RL term", Range(0, 10)
    )
