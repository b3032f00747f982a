"""Settings that several methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semioffline.algorithm.losses import Baseline, LossScale
from semioffline.algorithm.masking import MaskPattern, MaskUnit
from semioffline.config import MethodConfig, StaticTarget
from semioffline.data.spans import load_where, names_function
from semioffline.validation import NOT_NEGATIVE, POSITIVE, SAMPLES, SHARE, STEPS, TEMPERATURE, Range, setting

DEFAULT_RATIO = 1.0
"""Default of rl_ratio. The right rl_weight depends on the scale of the reward, on K and on the data; this ratio does
not."""
DEFAULT_WEIGHT = 5.0
"""Default of rl_weight in combinations, which have no default ratio."""


@dataclass
class MaskedMLESettings(MethodConfig):
    """Settings of an MLE term with masked decoder inputs, as in M-FT."""

    mle_mask_rate: float = setting(0.4, "Share of decoder inputs masked in the masked examples.", "MLE term", SHARE)
    mle_mask_share: float = setting(0.5, "Share of the examples whose decoder inputs are masked.", "MLE term", SHARE)


@dataclass
class DrawingSettings(MethodConfig):
    """Settings of drawing tokens from the policy."""

    temperature: float = setting(1.0, "Temperature of the draws.", "Sampling", TEMPERATURE)
    top_k: int = setting(0, "Draw among the k most likely tokens; 0: among all.", "Sampling", NOT_NEGATIVE)
    top_p: float = setting(
        1.0, "Draw among the likeliest tokens that together have this probability.", "Sampling", Range(0, 1, True)
    )


@dataclass
class RLSettings(DrawingSettings, MaskedMLESettings):
    """Settings of an RL term, and of drawing its samples."""

    default_rl_ratio: ClassVar[float | None] = DEFAULT_RATIO
    rl_weight: float | None = setting(
        None,
        "Lambda, the weight of the RL loss relative to the MLE loss. Default: rl_ratio sets it; in combinations, 5.",
        "RL term",
        NOT_NEGATIVE,
    )
    rl_ratio: float | None = setting(
        None,
        "Target ratio of RL to MLE gradient norm; sets rl_weight during the first 10 steps. Default: 1.",
        "RL term",
        POSITIVE,
    )
    kl_weight: float = setting(
        0.0, "Weight of the KL divergence from the initial model (mean over positions).", "RL term", NOT_NEGATIVE
    )
    kl_target: float | None = setting(
        None, "Adapts kl_weight after every step: up while the KL divergence is above this, down while below.",
        "Advanced", POSITIVE,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.rl_weight is None and self.rl_ratio is None:
            self.rl_ratio = self.default_rl_ratio
            self.rl_weight = DEFAULT_WEIGHT if self.default_rl_ratio is None else None
        super().__post_init__()

    @property
    def first_rl_weight(self) -> float:
        """The weight of the RL term; 1 if rl_ratio finds it during training."""
        return 1.0 if self.rl_weight is None else self.rl_weight

    def problems(self) -> list[str]:
        found = super().problems()
        if self.kl_weight and (self.fsdp or self.deepspeed):
            found.append(
                "kl_weight needs all weights in each process: remove fsdp and deepspeed, or set kl_weight to 0"
            )
        if self.kl_target is not None and not self.kl_weight:
            found.append("kl_target needs a kl_weight above 0: the weight of the first step")
        return found


@dataclass
class GroupSettings(RLSettings):
    """Settings of methods that compare K samples of one input."""

    num_samples: int = setting(64, "K, samples per input.", "Sampling", SAMPLES)
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
    """Settings of methods that use log-likelihoods of whole texts."""

    length_alpha: float = setting(
        1.0, "Log-likelihoods of texts are divided by length ** length_alpha.", "RL term", Range(0, 10)
    )


@dataclass
class WeightedSettings(MethodConfig):
    """Settings of methods that weight the likelihoods of K texts by their rewards."""

    num_samples: int = setting(8, "K, texts per input.", "Sampling", SAMPLES)


@dataclass
class EditSettings(WeightedSettings):
    """Settings of texts that are random edits of the ground truth."""

    edit_rate: float = setting(
        0.1, "Average share of the ground truth's tokens that an edit replaces.", "Sampling",
        Range(0, 1, open_low=True, open_high=True),
    )  # fmt: skip


@dataclass
class MaskingSettings(MethodConfig):
    """Settings of masking: which text, and which of its tokens."""

    static_target: StaticTarget = setting(
        "ground_truth", "Text to mask: ground_truth, or the worst | best | random candidate.", "Masking"
    )
    mask_rate: float = setting(0.4, "p_m, the share of the static target's tokens to mask.", "Masking", SHARE)
    mask_rate_end: float | None = setting(
        None, "mask_rate changes linearly to this value during training.", "Masking", SHARE
    )
    mask_unit: MaskUnit = setting("token", "Mask single tokens or whole words: token | word.", "Masking")
    mask_pattern: MaskPattern = setting("random", "Positions to mask: random | suffix | span | mixed.", "Masking")
    mask_span: float = setting(3.0, "mask_pattern=span: mean length of a masked span.", "Advanced", Range(1, 10**6))
    eos_after: int | None = setting(
        None, "Allow EOS to be drawn after this many tokens, so that samples can be shorter.", "Masking", STEPS
    )
    draw_end: bool = setting(False, "With eos_after: also mask EOS, so that samples can be longer.", "Advanced")
    mask_where: str | None = setting(
        None,
        "Mask only words inside the matches of this regular expression (inside its groups, if it has groups), or in "
        "the spans that file.py:function returns for a text.",
        "Masking",
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if self.draw_end and self.eos_after is None:
            found.append("draw_end needs eos_after, which allows EOS to be drawn")
        if self.mask_where is not None and self.eos_after is not None:
            found.append(
                "eos_after cannot be combined with mask_where: an earlier end would remove text that must stay"
            )
        if self.mask_where is not None and not names_function(self.mask_where):
            load_where(self.mask_where)
        return found
