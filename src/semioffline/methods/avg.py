"""AVG: K samples from the policy itself, the mean of their rewards as baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from semioffline.algorithm.losses import advantages, text_scores
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, StepOutput, Term, send
from semioffline.methods.shared.base import RLMethod
from semioffline.methods.shared.completions import completion_rows
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.on_policy import mean_length, rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.shared.settings import GroupSettings, LengthSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


@dataclass
class AvgConfig(LengthSettings, GroupSettings):
    """Settings of `avg`: REINFORCE on K samples per input, with their mean reward as baseline."""

    method: ClassVar[str] = "avg"


class Method(RLMethod[AvgConfig]):
    """L = L_MLE + rl_weight * L_RL, with L_RL = sum_k -(R_k - b) log p(y_k | x) / |y_k|**length_alpha.

    Appendix D of the paper without its constant 2N; RLOO with baseline=leave_one_out, and GRPO without clipping with
    scale_rewards. loss_scale=token: the sum over samples, as written; with length_alpha=1 that is the scale of
    semi_offline (sum over K, mean over tokens), so that one rl_weight means the same for both. loss_scale=sequence:
    divided by K. Rows are averaged. K rows run with gradient: choose num_samples for your memory.
    The paper samples with the decoding parameters of evaluation (appendix B); we draw from the policy, with
    temperature, top_k and top_p, so that the samples are on-policy.
    """

    config_class = AvgConfig

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config, k = self.config, self.config.num_samples
        texts = sample_texts(policy, batch, config, randomness, k)
        scores = score.score_ids(texts, batch, k)
        advantage = advantages(scores.rewards, config.baseline, config.scale_rewards)

        target = masked_target_row(policy, batch, config, randomness)
        samples = [sampled_row(policy, batch, texts[n::k], config.max_completion_length) for n in range(k)]
        target_logits, *sample_logits = policy.predict(batch.source, [target, *samples])
        likelihoods = [
            text_scores(sampled_log_p(policy, z, row, config), rows_of(row), len(batch), config.length_alpha)
            for z, row in zip(sample_logits, samples, strict=True)
        ]
        weights = advantage.values
        if config.loss_scale == "sequence":
            weights = weights / advantage.counts.clamp(min=1)[:, None]
        rl = -(send(weights, policy.device) * torch.stack(likelihoods, dim=1)).sum()

        def log() -> list[CompletionRow]:
            return completion_rows(batch, scores.texts, scores.rewards, advantage.values)

        return StepOutput(
            terms=[
                mle_term(target_logits, batch, config.label_smoothing_factor),
                Term("rl", rl, per="row", weight=config.first_rl_weight),
            ],
            metrics=scores.metrics | {"sample_length": mean_length(texts)},
            completions=log if config.log_completions else None,
        )
