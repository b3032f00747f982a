"""GOLD: off-policy policy gradient on the ground truth, towards what the initial checkpoint finds likely."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semioffline.algorithm.losses import gold, reward_to_go, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term, send
from semioffline.config import MethodConfig
from semioffline.data.examples import Examples
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.frozen import InitialLogP, predict_only
from semioffline.methods.shared.mle import target_row
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import FINITE, NOT_NEGATIVE, SHARE, Range, setting

FILE = "gold_rewards.safetensors"


@dataclass
class GoldConfig(MethodConfig):
    """Settings of `gold`: off-policy policy gradient on the ground truth."""

    method: ClassVar[str] = "gold"
    gold_reward: Literal["s", "p", "delta"] = setting(
        "s",
        "A token's reward is its probability (s) or its log-probability (p) under the initial checkpoint; "
        "delta: every return is 1.",
        "GOLD",
    )
    gold_floor: float = setting(
        0.1, "Lower bound of the policy's token probability when it is used as a weight.", "GOLD", SHARE
    )
    gold_reward_floor: float = setting(
        0.0, "gold_reward=s or p: lower bound of a token's reward.", "GOLD", NOT_NEGATIVE
    )
    gold_horizon: int = setting(
        5, "Number of following tokens whose rewards count for a token.", "GOLD", Range(0, 10**6)
    )
    gold_discount: float = setting(1.0, "Discount of a reward one token later.", "GOLD", SHARE)
    gold_baseline: float = setting(
        -10.0, "gold_reward=p: subtracted from the log-probability; at least gold_reward_floor is left.", "GOLD", FINITE
    )


class Method(BaseMethod[GoldConfig]):
    """L = -sum_t max(p_t, gold_floor) * Q_t * log p_t over the ground truth, a mean over tokens.

    Pang and He 2021. p_t is the policy's own probability of y_t, without gradient: it stands for the importance weight.
    Q_t is the discounted reward now and over the gold_horizon next tokens; a token's reward is its probability q_t
    under the frozen initial checkpoint (GOLD-s, "often better" by its authors) or log q_t - gold_baseline (GOLD-p), and
    at least gold_reward_floor. After the end every token counts as certain (q = 1), as in the published code.
    GOLD-delta rewards the ground truth as a whole with 1: Q_t = 1 everywhere, without a checkpoint. Two departures: Q_t
    is a mean instead of a sum over the horizon, so that the loss stays on the scale of MLE; and p_t is the policy of
    this step instead of a copy some steps old. There is no MLE term and no label smoothing.

    In the paper's algorithm 1, gold_floor is u, gold_reward_floor c, gold_baseline b. Its scripts have u = 0.1, c = 0
    (GOLD-s on CNN/DM, our defaults), u = 0.15, c = 0.1 (GOLD-s on XSum), and u = 0, c = 1, b = -10 (GOLD-p on CNN/DM).
    """

    config_class = GoldConfig
    has_mle = False
    batch_on_host = True

    def __init__(self, config: GoldConfig):
        super().__init__(config)
        self.initial = InitialLogP(FILE, "gold")
        """For each example, the (T,) log-probabilities of its target under the initial checkpoint."""

    def prepare(self, policy: Policy, examples: Examples) -> None:
        if self.config.gold_reward == "delta":
            return

        def log_p(batch: Batch) -> list[Tensor]:
            target = batch.target
            [logits] = predict_only(policy, batch.source, [Row(target.ids, target.keep_mask, target.keep_mask)])
            return list(token_log_p(logits, target.ids[target.keep_mask]).split(target.lengths))

        self.initial.compute(policy, examples, self.config, log_p)

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        row = replace(target_row(batch), purpose="rl")  # the ground truth is the trajectory
        [logits] = policy.predict(batch.source, [row])
        wanted = batch.target.keep_mask
        log_p = token_log_p(logits, batch.target.ids[wanted])
        returns = send(self._returns(batch)[wanted], log_p.device)
        loss = gold(log_p, returns, self.config.gold_floor)
        metrics = {"gold/probability": log_p.detach().exp().mean(), "gold/return": returns.mean()}
        return StepOutput([Term("gold", loss, per="token")], metrics)

    def _returns(self, batch: Batch) -> Tensor:
        """Return (B, T) the reward-to-go of each token of the ground truth."""
        config = self.config
        if config.gold_reward == "delta":
            return torch.ones(batch.target.ids.shape, device=batch.index.device)
        log_q = torch.zeros(batch.target.ids.shape)  # log 1 after the end
        for b, known in enumerate(self.initial.of(batch.index)):
            log_q[b, : len(known)] = known
        rewards, after_end = log_q.exp(), 1.0
        if config.gold_reward == "p":
            rewards, after_end = log_q - config.gold_baseline, -config.gold_baseline
        floor = config.gold_reward_floor
        rewards, after_end = rewards.clamp(min=floor), max(floor, after_end)
        return reward_to_go(rewards, config.gold_horizon, config.gold_discount, after_end).to(batch.index.device)

    def save(self, folder: Path) -> None:
        self.initial.save(folder)

    def load(self, folder: Path) -> None:
        if self.config.gold_reward != "delta":
            self.initial.load(folder)
