"""GRPO: K samples compared with each other, several steps on each of them with clipped ratios."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from semioffline.algorithm.losses import advantages, text_scores
from semioffline.algorithm.proximal import clipped_surrogate, is_clipped
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, Rollout, StepOutput, Term, send
from semioffline.methods.shared.base import RLMethod
from semioffline.methods.shared.completions import completion_rows
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.on_policy import mean_length, rows_of, sampled_log_p
from semioffline.methods.shared.rollout import RolloutSettings, Stored, make_rollout
from semioffline.methods.shared.settings import GroupSettings, LengthSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import setting


@dataclass
class GRPOConfig(LengthSettings, RolloutSettings, GroupSettings):
    """Settings of `grpo`."""

    method: ClassVar[str] = "grpo"
    scale_rewards: bool = setting(
        True, "Divide advantages by the standard deviation of the input's rewards.", "RL term"
    )


class Method(RLMethod[GRPOConfig]):
    """L = L_MLE + rl_weight * L_RL, with r_t = p(y_t | x, y_<t) / p_old(y_t | x, y_<t) and A_k = (R_k - b) / std(R):

    L_RL = -sum_k sum_t min(r_t A_k, clip(r_t, 1 - epsilon, 1 + epsilon) A_k) / |y_k|**length_alpha. Shao et al. 2024.
    The samples and p_old are those of the first of num_iterations steps on a batch. In that step L_RL has the gradient
    of `avg` with the same settings. loss_scale means what it means there. The paper has no MLE term, and estimates the
    KL divergence from the sampled token; ours (kl_weight) is the exact sum over the vocabulary.
    """

    config_class = GRPOConfig

    @property
    def repeats(self) -> int:
        return self.config.num_iterations

    def roll_out(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> Rollout:
        return make_rollout(policy, batch, score, self.config, randomness, self.config.num_samples)

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        stored = Stored(policy, batch, batch.rollout or self.roll_out(policy, batch, score, randomness), config)
        advantage = advantages(stored.rewards, config.baseline, config.scale_rewards)
        weights = advantage.values
        if config.loss_scale == "sequence":
            weights = weights / advantage.counts.clamp(min=1)[:, None]
        weights = send(weights, policy.device)

        target = masked_target_row(policy, batch, config, randomness)
        target_logits, *sample_logits = policy.predict(batch.source, [target, *stored.rows])
        gains, clipped = [], []
        for k, (z, row, old) in enumerate(zip(sample_logits, stored.rows, stored.at_rows("log_p"), strict=True)):
            log_p, rows = sampled_log_p(policy, z, row, config), send(rows_of(row), policy.device)
            gain = clipped_surrogate(log_p, old, weights[rows, k], config.epsilon)
            gains.append(text_scores(gain, rows, len(batch), config.length_alpha).sum())
            clipped.append(is_clipped(log_p.detach(), old, weights[rows, k], config.epsilon))

        def log() -> list[CompletionRow]:
            return completion_rows(batch, stored.scores.texts, stored.rewards, advantage.values)

        return StepOutput(
            terms=[
                mle_term(target_logits, batch, config.label_smoothing_factor),
                Term("rl", -torch.stack(gains).sum(), per="row", weight=config.first_rl_weight),
            ],
            metrics={
                **stored.scores.metrics,
                "frac_clipped": torch.cat(clipped).float().mean(),
                "sample_length": mean_length(stored.texts),
            },
            completions=log if config.log_completions else None,
        )
