"""Self-critic: one sample from the policy; the reward of its own greedy output is the baseline."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.algorithm.losses import text_scores
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, StepOutput, Term, send
from semioffline.methods.shared.base import RLMethod
from semioffline.methods.shared.completions import completion_rows
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.on_policy import (
    greedy_texts,
    mean_length,
    rows_of,
    sample_texts,
    sampled_log_p,
    sampled_row,
)
from semioffline.methods.shared.settings import LengthSettings, RLSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


@dataclass
class SelfCriticConfig(LengthSettings, RLSettings):
    """Settings of `self_critic`: REINFORCE on one sample per input, with the greedy output as baseline."""

    method: ClassVar[str] = "self_critic"


class Method(RLMethod[SelfCriticConfig]):
    """L = L_MLE + rl_weight * L_RL, with L_RL = -(R(y) - R(greedy)) log p(y | x) / |y|**length_alpha.

    Rennie et al. 2017; section 4.1 of the paper. One sample, a sum over its tokens, a mean over rows. A sample is left
    out if it or the greedy output has no reward.
    """

    config_class = SelfCriticConfig

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        texts = sample_texts(policy, batch, config, randomness, 1)
        scores = score.score_ids(texts, batch, 1)
        baseline = score.score_ids(greedy_texts(policy, batch, config.max_completion_length), batch, 1)
        advantage = (scores.rewards - baseline.rewards).nan_to_num(nan=0.0)  # (B, 1)

        target = masked_target_row(policy, batch, config, randomness)
        row = sampled_row(policy, batch, texts, config.max_completion_length)
        target_logits, logits = policy.predict(batch.source, [target, row])
        log_p = sampled_log_p(policy, logits, row, config)
        likelihoods = text_scores(log_p, rows_of(row), len(batch), config.length_alpha)
        rl = -(send(advantage[:, 0], policy.device) * likelihoods).sum()
        metrics = scores.metrics | {
            "reward_greedy": baseline.metrics["reward"],
            "time/reward": scores.metrics["time/reward"] + baseline.metrics["time/reward"],
            "sample_length": mean_length(texts),
        }

        def log() -> list[CompletionRow]:
            return completion_rows(batch, scores.texts, scores.rewards, advantage)

        return StepOutput(
            terms=[
                mle_term(target_logits, batch, config.label_smoothing_factor),
                Term("rl", rl, per="row", weight=config.first_rl_weight),
            ],
            metrics=metrics,
            completions=log if config.log_completions else None,
        )
