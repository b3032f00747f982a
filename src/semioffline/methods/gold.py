"""GOLD: off-policy policy gradient on the ground truth, towards what the initial checkpoint finds likely."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from semioffline.algorithm.losses import gold, reward_to_go, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term, send
from semioffline.config import FINITE, NOT_NEGATIVE, SHARE, MethodConfig, setting
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.methods.base import BaseMethod
from semioffline.methods.mle import target_row
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer

FILE = "gold_rewards.safetensors"


@dataclass
class GoldConfig(MethodConfig):
    """Settings of `gold`."""

    method: ClassVar[str] = "gold"
    gold_reward: Literal["s", "p"] = setting(
        "s", "A token's reward is its probability (s) or its log-probability (p) under the initial checkpoint.", "GOLD"
    )
    gold_floor: float = setting(0.1, "Least value of the policy's own token probability as a weight.", "GOLD", SHARE)
    gold_horizon: int = setting(5, "Tokens that the reward-to-go looks ahead.", "GOLD", NOT_NEGATIVE)
    gold_discount: float = setting(1.0, "Discount of a reward one token later.", "GOLD", SHARE)
    gold_baseline: float = setting(
        -10.0, "gold_reward=p: subtracted from the log-probability; what lies below counts 0.", "GOLD", FINITE
    )


class Method(BaseMethod[GoldConfig]):
    """L = -sum_t max(p_t, gold_floor) * Q_t * log p_t over the ground truth, a mean over tokens.

    Pang and He 2021. p_t is the policy's own probability of y_t, without gradient: it stands for the importance weight.
    Q_t is the discounted reward now and over the gold_horizon next tokens; a token's reward is its probability q_t
    under the frozen initial checkpoint (GOLD-s, "often better" by its authors) or max(0, log q_t - gold_baseline)
    (GOLD-p). After the end every token counts as certain (q = 1), as in the published code. Two departures: Q_t is a
    mean instead of a sum over the horizon, so that the loss stays on the scale of MLE; and p_t is the policy of this
    step instead of a copy some steps old. There is no MLE term and no label smoothing.
    """

    config_class = GoldConfig
    batch_on_host = True

    def __init__(self, config: GoldConfig):
        super().__init__(config)
        self.start_log_p: list[Tensor] = []
        """For each example, the (T,) log-probabilities of its target under the initial checkpoint."""

    @torch.no_grad()
    def prepare(self, policy: Policy, examples: Examples) -> None:
        self.start_log_p = []
        size, collate = self.config.per_device_eval_batch_size, Collator(policy.tokens.pad_id)
        training = policy.training
        policy.eval()
        try:
            with policy.meter.paused():
                starts = range(0, len(examples), size)
                for start in tqdm(starts, desc="gold rewards", disable=not self.config.shows_bars):
                    rows = [examples[n] for n in range(start, min(start + size, len(examples)))]
                    batch = collate(rows).to(policy.device)
                    target = batch.target
                    [logits] = policy.predict(batch.source, [Row(target.ids, target.keep_mask, target.keep_mask)])
                    log_p = token_log_p(logits, target.ids[target.keep_mask]).cpu()
                    self.start_log_p += log_p.split(target.lengths)
        finally:
            policy.train(training)

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
        """(B, T) the reward-to-go of each token of the ground truth."""
        config = self.config
        if not self.start_log_p:
            raise RuntimeError("gold has no rewards yet: call prepare(policy, examples) before training")
        log_q = torch.zeros(batch.target.ids.shape)  # log 1 after the end
        for b, example in enumerate(batch.index.tolist()):
            known = self.start_log_p[example]
            log_q[b, : len(known)] = known
        if config.gold_reward == "s":
            rewards, after_end = log_q.exp(), 1.0
        else:
            rewards, after_end = (log_q - config.gold_baseline).clamp(min=0.0), max(0.0, -config.gold_baseline)
        return reward_to_go(rewards, config.gold_horizon, config.gold_discount, after_end).to(batch.index.device)

    def save(self, folder: Path) -> None:
        if self.start_log_p:
            lengths = torch.tensor([len(t) for t in self.start_log_p])
            save_file({"log_p": torch.cat(self.start_log_p), "lengths": lengths}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Those of the initial checkpoint, not of the model that this process happened to load."""
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}, so it was not saved by gold: start without resuming")
        saved = load_file(folder / FILE)
        lengths = saved["lengths"].tolist()
        if self.start_log_p and lengths != [len(t) for t in self.start_log_p]:
            raise UserError(f"{folder}/{FILE} belongs to other training data: resume with the same data and lengths")
        self.start_log_p = list(saved["log_p"].split(lengths))
