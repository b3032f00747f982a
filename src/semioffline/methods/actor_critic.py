"""Actor-critic: one sample from the policy; a learned critic of the text so far is the baseline."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from semioffline.algorithm.losses import text_scores
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, StepOutput, Term, send
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.methods.base import RLMethod
from semioffline.methods.completions import completion_rows
from semioffline.methods.mle import masked_target_row, mle_term
from semioffline.methods.on_policy import mean_length, rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.settings import LengthSettings, RLSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import NOT_NEGATIVE, setting

FILE = "value_head.safetensors"


@dataclass
class ActorCriticConfig(LengthSettings, RLSettings):
    """Settings of `actor_critic`."""

    method: ClassVar[str] = "actor_critic"
    critic_weight: float = setting(1.0, "Weight of the critic's squared error.", "Actor-critic", NOT_NEGATIVE)


class Method(RLMethod[ActorCriticConfig]):
    """L = L_MLE + rl_weight * L_RL + critic_weight * L_critic, with A_t = R(y) - V(x, y_<t), no gradient through A_t:

    L_RL = -sum_t A_t log p(y_t | x, y_<t) / |y|**length_alpha, L_critic = mean over t of (V(x, y_<t) - R(y))**2.
    Section 4.1 of the paper. The critic is a linear head on the policy's detached decoder states, before it sees y_t:
    cheaper than the separate model of CodeRL, and it needs no data of its own. Rows are averaged; a sample without a
    reward counts nothing.
    """

    config_class = ActorCriticConfig

    def __init__(self, config: ActorCriticConfig):
        super().__init__(config)
        self.value_head: nn.Linear | None = None

    def prepare(self, policy: Policy, examples: Examples) -> None:
        self.value_head = policy.add_value_head()

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        texts = sample_texts(policy, batch, config, randomness, 1)
        scores = score.score_ids(texts, batch, 1)

        target = masked_target_row(policy, batch, config, randomness)
        row = sampled_row(policy, batch, texts, config.max_completion_length)
        logits, values = policy.predict(batch.source, [target, row], with_values=True)
        rows = rows_of(row)
        rewards = send(scores.rewards[rows, 0], policy.device)
        advantage = (rewards - values[1]).nan_to_num(nan=0.0)  # (P,), 0 where there is no reward
        critic = text_scores(advantage.square(), rows, len(batch)).sum()
        weighted = advantage.detach() * sampled_log_p(policy, logits[1], row, config)
        rl = -text_scores(weighted, rows, len(batch), config.length_alpha).sum()
        means = text_scores(advantage.detach(), rows, len(batch))[:, None]

        def log() -> list[CompletionRow]:
            return completion_rows(batch, scores.texts, scores.rewards, means)

        return StepOutput(
            terms=[
                mle_term(logits[0], batch, config.label_smoothing_factor),
                Term("rl", rl, per="row", weight=config.first_rl_weight),
                Term("critic", critic, per="row", weight=config.critic_weight),
            ],
            metrics={
                **scores.metrics,
                "value": values[1].detach().mean() if len(rows) else 0.0,
                "sample_length": mean_length(texts),
            },
            completions=log if config.log_completions else None,
        )

    def save(self, folder: Path) -> None:
        if self.value_head is not None:
            save_file({name: t.cpu().contiguous() for name, t in self.value_head.state_dict().items()}, folder / FILE)

    def load(self, folder: Path) -> None:
        if self.value_head is None:
            return
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}, so it was not saved by actor_critic: start without resuming")
        with torch.no_grad():
            self.value_head.load_state_dict(load_file(folder / FILE))
