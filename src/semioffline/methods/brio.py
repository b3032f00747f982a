"""BRIO: rank pre-generated candidates by their likelihood, in the order of their rewards."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from semioffline.algorithm.losses import ranking, text_scores, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term, send
from semioffline.errors import UserError
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.settings import LengthSettings, MaskedMLESettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import NOT_NEGATIVE, POSITIVE, setting


@dataclass
class BrioConfig(LengthSettings, MaskedMLESettings):
    """Settings of `brio`: ranking of candidates by likelihood."""

    method: ClassVar[str] = "brio"
    ranking_weight: float = setting(
        0.3, "Weight of the ranking loss, summed over pairs, next to the MLE loss.", "BRIO", NOT_NEGATIVE
    )
    ranking_margin: float = setting(
        0.001, "Difference in log-likelihood that neighbours in the ranking should have.", "BRIO", NOT_NEGATIVE
    )
    rl_ratio: float | None = setting(
        None, "Target ratio of ranking to MLE gradient norm; sets ranking_weight during the first 10 steps.", "BRIO",
        POSITIVE,
    )  # fmt: skip


class Method(BaseMethod[BrioConfig]):
    """L = L_MLE + ranking_weight * sum_{i<j} max(0, f_j - f_i + (j - i) * ranking_margin), best candidate first,

    f(y) = log p(y | x) / |y|**length_alpha. Liu et al. 2022; appendix D of the paper. Summed over pairs, as printed;
    a mean over rows. Published for CNN/DM: margin 0.001, alpha 2.0, weight 100; for XSum: 0.1, 0.6, 100. Those weights
    belong to BRIO's code, which averages over the pairs of each rank distance: with 16 candidates the printed sum is
    120 / 15 = 8 times as large. With alpha 1 instead of 2 it is again |y| times as large: 100 becomes 12, and for
    texts of 40 tokens 0.3, our default.
    """

    config_class = BrioConfig
    needs_candidates = True
    batch_on_host = True

    @property
    def rl_ratio(self) -> float | None:
        return self.config.rl_ratio

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        candidates, rewards = batch.candidates, batch.candidate_rewards
        if candidates is None or rewards is None:
            raise UserError("brio needs the columns candidates and candidate_rewards: see `semioffline candidates`")
        number = rewards.shape[1]
        rows = [
            Row(candidates.ids[n::number], keep, wanted=keep, purpose="rl", term="ranking")
            for n, keep in enumerate(candidates.keep_mask[n::number] for n in range(number))
        ]
        target_row = masked_target_row(policy, batch, config, randomness)
        target_logits, *candidate_logits = policy.predict(batch.source, [target_row, *rows])
        scores = torch.stack(
            [
                text_scores(
                    token_log_p(z, row.ids[row.wanted]), row.wanted.nonzero()[:, 0], len(batch), config.length_alpha
                )
                for z, row in zip(candidate_logits, rows, strict=True)
            ],
            dim=1,
        )  # (B, N)
        rewards = send(rewards, scores.device)
        loss = ranking(scores, rewards, config.ranking_margin)
        ordered = rewards[:, :, None] > rewards[:, None, :]
        right = ordered & (scores[:, :, None] > scores[:, None, :])
        return StepOutput(
            terms=[
                mle_term(target_logits, batch, config.label_smoothing_factor),
                Term("ranking", loss, per="row", weight=config.ranking_weight),
            ],
            metrics={"pairs_right": right.sum() / ordered.sum()},  # NaN, left out of the log, when there is no pair
        )
