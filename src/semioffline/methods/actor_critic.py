"""Actor-critic: one sample from the policy; a learned critic of the text so far is the baseline, or the reward."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semioffline.algorithm.losses import text_scores
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, Row, StepOutput, send
from semioffline.methods.shared.completions import completion_rows
from semioffline.methods.shared.critic import CriticMethod, CriticSettings
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.on_policy import mean_length, rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import setting

CriticRole = Literal["baseline", "reward"]


@dataclass
class ActorCriticConfig(CriticSettings):
    """Settings of `actor_critic`: REINFORCE on one sample per input, with a learned critic."""

    method: ClassVar[str] = "actor_critic"
    critic_role: CriticRole = setting(
        "baseline",
        "Advantage: baseline (reward minus the critic's value) | reward (the critic's value with y_t minus without).",
        "Critic",
    )  # fmt: skip


class Method(CriticMethod[ActorCriticConfig]):
    """L = L_MLE + rl_weight * L_RL + critic_weight * L_critic, with A_t = R(y) - V(x, y_<t), no gradient through A_t:

    L_RL = -sum_t A_t log p(y_t | x, y_<t) / |y|**length_alpha, L_critic = mean over t of (V(x, y_<t) - R(y))**2.
    Section 4.1 of the paper. The critic is a linear head on the policy's detached decoder states, before it sees y_t:
    cheaper than the separate model of CodeRL, and it needs no data of its own. Rows are averaged; a sample without a
    reward counts nothing.

    critic_role=reward: the critic computes the reward, A_t = V(x, y_<=t) - V(x, y_<t), so that each token is judged by
    what it adds to the reward that the critic expects. R(y) then trains the critic alone, also at the whole text.
    """

    config_class = ActorCriticConfig

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        texts = sample_texts(policy, batch, config, randomness, 1)
        scores = score.score_ids(texts, batch, 1)

        target = masked_target_row(policy, batch, config, randomness)
        row = sampled_row(policy, batch, texts, config.max_completion_length)
        seen = row if config.critic_role == "baseline" else with_end(row, policy.tokens.pad_id, policy.max_positions())
        logits, values = policy.predict(batch.source, [target, seen], with_values=True)
        rewards = send(scores.rewards[rows_of(seen), 0], policy.device)
        error = (rewards - values[1]).nan_to_num(nan=0.0)  # (P,), 0 where there is no reward
        critic = text_scores(error.square(), rows_of(seen), len(batch)).sum()
        rows, advantage, chosen = rows_of(row), error.detach(), logits[1]
        if config.critic_role == "reward":
            acts = send(widened(row.wanted, seen.wanted.shape[1])[seen.wanted], policy.device)  # (P,)
            advantage = gains(values[1].detach(), send(rows_of(seen), policy.device))[acts]
            advantage, chosen = advantage * ~rewards[acts].isnan(), chosen[acts]
        weighted = advantage * sampled_log_p(policy, chosen, row, config)
        rl = -text_scores(weighted, rows, len(batch), config.length_alpha).sum()
        means = text_scores(advantage, rows, len(batch))[:, None]

        def log() -> list[CompletionRow]:
            return completion_rows(batch, scores.texts, scores.rewards, means)

        mle = mle_term(logits[0], batch, config.label_smoothing_factor)
        return StepOutput(
            terms=self.terms(mle, rl, critic, randomness),
            metrics={
                **scores.metrics,
                "value": values[1].detach().mean() if len(rows) else 0.0,
                "sample_length": mean_length(texts),
            },
            completions=log if config.log_completions else None,
        )


def with_end(row: Row, pad_id: int, most: int | None) -> Row:
    """Add one position behind each text of a row. Its prediction sees the whole text. A text of the maximum length gets
    none."""
    ids, keep, wanted = widened(row.ids, row.ids.shape[1] + 1, pad_id), widened(row.keep_mask), widened(row.wanted)
    lengths = row.keep_mask.sum(1)
    ends = torch.arange(ids.shape[1]) == lengths[:, None]
    if most is not None:
        ends &= lengths[:, None] < most
    width = int((keep | ends).sum(1).max())
    return replace(row, ids=ids[:, :width], keep_mask=(keep | ends)[:, :width], wanted=(wanted | ends)[:, :width])


def widened(tensor: Tensor, width: int | None = None, fill: int = 0) -> Tensor:
    """Widen a tensor (B, T) to (B, width); one column more if no width is given."""
    width = tensor.shape[1] + 1 if width is None else width
    return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill)


def gains(values: Tensor, rows: Tensor) -> Tensor:
    """Return (P,), the next value of the same row minus this one; 0 at the end of a row."""
    later = torch.roll(values, -1)
    ends = torch.roll(rows, -1) != rows
    if len(ends):
        ends[-1] = True
    return torch.where(ends, 0.0, later - values)
