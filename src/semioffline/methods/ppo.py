"""PPO: one sample, a learned critic, several steps on each sample with clipped ratios."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.algorithm.losses import text_scores
from semioffline.algorithm.proximal import clipped_surrogate, clipped_value_loss, generalized_advantages, is_clipped
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, Rollout, StepOutput, send
from semioffline.methods.shared.completions import completion_rows
from semioffline.methods.shared.critic import CriticMethod, CriticSettings
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.on_policy import mean_length, rows_of, sampled_log_p
from semioffline.methods.shared.rollout import RolloutSettings, Stored, make_rollout
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import POSITIVE, SHARE, setting


@dataclass
class PPOConfig(CriticSettings, RolloutSettings):
    """Settings of `ppo`."""

    method: ClassVar[str] = "ppo"
    gamma: float = setting(1.0, "Discount of a reward one token later.", "PPO", SHARE)
    gae_lambda: float = setting(
        0.95, "Lambda of generalised advantage estimation; 1: reward minus value.", "PPO", SHARE
    )
    value_clip: float = setting(0.2, "Clipping range of the critic's value around its old value.", "PPO", POSITIVE)


class Method(CriticMethod[PPOConfig]):
    """L = L_MLE + rl_weight * L_RL + critic_weight * L_critic, with r_t = p(y_t | x, y_<t) / p_old(y_t | x, y_<t):

    L_RL = -sum_t min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t) / |y|**length_alpha,
    L_critic = mean over t of max((V_t - G_t)**2, (clip(V_t, V_old - value_clip, V_old + value_clip) - G_t)**2).
    Schulman et al. 2017; Ziegler et al. 2019. A_t are the generalised advantages of the old values, G_t = A_t + V_old.
    Samples, p_old and V_old are those of the first of num_iterations steps on a batch. The critic is the linear head of
    `actor_critic`. The KL divergence (kl_weight) is part of the loss, not of the reward. Advantages are not whitened:
    that would depend on the micro-batch.
    """

    config_class = PPOConfig

    @property
    def repeats(self) -> int:
        return self.config.num_iterations

    def roll_out(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> Rollout:
        made = make_rollout(policy, batch, score, self.config, randomness, 1, with_values=True)
        rewards, gamma, lam = made["rewards"][:, 0], self.config.gamma, self.config.gae_lambda
        return made | generalized_advantages(rewards, made["values"], made["actions"], gamma, lam)._asdict()

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        stored = Stored(policy, batch, batch.rollout or self.roll_out(policy, batch, score, randomness), config)
        [row], rows = stored.rows, send(rows_of(stored.rows[0]), policy.device)
        names = ("log_p", "values", "advantages", "returns")
        old_log_p, old_values, advantage, returns = (stored.at_rows(name)[0] for name in names)
        known = ~advantage.isnan()  # False where there is no reward
        advantage = advantage.nan_to_num(nan=0.0)

        target = masked_target_row(policy, batch, config, randomness)
        logits, values = policy.predict(batch.source, [target, row], with_values=True)
        log_p = sampled_log_p(policy, logits[1], row, config)
        gain = clipped_surrogate(log_p, old_log_p, advantage, config.epsilon)
        error = clipped_value_loss(values[1], old_values, returns.nan_to_num(nan=0.0), config.value_clip) * known
        rl = -text_scores(gain, rows, len(batch), config.length_alpha).sum()
        critic = text_scores(error, rows, len(batch)).sum()
        means = text_scores(advantage, rows, len(batch))[:, None]

        def log() -> list[CompletionRow]:
            return completion_rows(batch, stored.scores.texts, stored.rewards, means)

        mle = mle_term(logits[0], batch, config.label_smoothing_factor)
        return StepOutput(
            terms=self.terms(mle, rl, critic, randomness),
            metrics={
                **stored.scores.metrics,
                "value": values[1].detach().mean() if len(rows) else 0.0,
                "frac_clipped": is_clipped(log_p.detach(), old_log_p, advantage, config.epsilon).float().mean(),
                "sample_length": mean_length(stored.texts),
            },
            completions=log if config.log_completions else None,
        )
