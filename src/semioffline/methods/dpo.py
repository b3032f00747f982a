"""DPO: learn from pairs of candidates which one the reward prefers."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from semioffline.algorithm.losses import PreferenceLoss, preference, text_scores, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term, send
from semioffline.config import MethodConfig
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.frozen import InitialLogP, predict_only
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import NOT_NEGATIVE, POSITIVE, setting

FILE = "dpo_reference.safetensors"


@dataclass
class DPOConfig(MethodConfig):
    """Settings of `dpo`."""

    method: ClassVar[str] = "dpo"
    dpo_beta: float = setting(
        0.1, "beta: the larger, the closer the policy stays to the initial checkpoint.", "DPO", POSITIVE
    )
    dpo_loss: PreferenceLoss = setting("sigmoid", "Loss of a pair: sigmoid | ipo.", "DPO")
    dpo_pairs: Literal["best_worst", "all"] = setting(
        "best_worst", "Pairs of an input: its best and its worst candidate, or all: best_worst | all.", "DPO"
    )
    dpo_margin: float = setting(
        0.0, "Candidates form a pair if their rewards differ by more than this.", "DPO", NOT_NEGATIVE
    )
    dpo_weight: float = setting(1.0, "Weight of the loss next to that of another method.", "DPO", NOT_NEGATIVE)
    disable_dropout: bool = setting(True, "Set every dropout probability to 0.", "Speed and memory")


class Method(BaseMethod[DPOConfig]):
    """L = mean over the pairs of an input, and over inputs, of -log sigmoid(dpo_beta * (h(y_w) - h(y_l))),

    h(y) = log p(y | x) - log p_0(y | x), with y_w the candidate of the higher reward and p_0 the initial checkpoint.
    Rafailov et al. 2023, equation 7. The pairs are those of the data, so the log p_0 are computed once, before
    training. dpo_loss=ipo: (h(y_w)/|y_w| - h(y_l)/|y_l| - 1/(2 dpo_beta))**2, equation 17 of Azar et al. 2023 with
    log-likelihoods per token, as TRL has it. An input without a pair counts as one with zero loss, and those with many
    pairs count as much as those with one. There is no MLE term: `dpo+mft` has one.
    """

    config_class = DPOConfig
    needs_candidates = True
    has_mle = False
    batch_on_host = True

    def __init__(self, config: DPOConfig):
        super().__init__(config)
        self.initial = InitialLogP(FILE, "dpo")
        """For each example, log p_0 of each of its compared candidates."""

    def prepare(self, policy: Policy, examples: Examples) -> None:
        def log_p(batch: Batch) -> list[Tensor]:
            rows, rewards = self.compared(batch)
            found = self.likelihoods(rows, predict_only(policy, batch.source, rows))
            return [own[~left_out] for own, left_out in zip(found, rewards.isnan(), strict=True)]

        self.initial.compute(policy, examples, self.config, log_p)

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        rows, rewards = self.compared(batch)
        scores = self.likelihoods(rows, policy.predict(batch.source, rows))  # (B, n)
        known = [pad(own, (0, len(rows) - len(own))) for own in self.initial.of(batch.index)]
        ratios = scores - send(torch.stack(known), scores.device)
        rewards = send(rewards, scores.device)
        pairs = rewards[:, :, None] - rewards[:, None, :] > config.dpo_margin  # False where a reward is NaN
        loss = preference(ratios, pairs, config.dpo_beta, config.dpo_loss)
        gaps = config.dpo_beta * (ratios[:, :, None] - ratios[:, None, :]).detach()[pairs]
        better, worse = pairs.any(2), pairs.any(1)
        return StepOutput(
            [Term("dpo", loss, per="row", weight=config.dpo_weight)],
            metrics={  # means over no pair are NaN, which the log leaves out
                "dpo/chosen": config.dpo_beta * ratios.detach()[better].mean(),
                "dpo/rejected": config.dpo_beta * ratios.detach()[worse].mean(),
                "dpo/margin": gaps.mean(),
                "pairs_right": (gaps > 0).float().mean(),
                "pairs": pairs.sum() / len(batch),
            },
        )

    def compared(self, batch: Batch) -> tuple[list[Row], Tensor]:
        """Return the candidates that may be in a pair: n rows of B texts, and their rewards (B, n)."""
        candidates, rewards = batch.candidates, batch.candidate_rewards
        if candidates is None or rewards is None:
            raise UserError("dpo needs the columns candidates and candidate_rewards: see `semioffline candidates`")
        size, number = rewards.shape
        columns = torch.arange(number, device=rewards.device).expand(size, -1)
        if self.config.dpo_pairs == "best_worst":
            last = (~rewards.isnan()).sum(1) - 1
            columns = torch.stack([torch.zeros_like(last), last], dim=1)
        at = torch.arange(size, device=rewards.device)[:, None] * number + columns
        keeps = [candidates.keep_mask[n] for n in at.T]
        rows = [
            Row(candidates.ids[n], keep, wanted=keep, purpose="rl", term="dpo")
            for n, keep in zip(at.T, keeps, strict=True)
        ]
        return rows, rewards.gather(1, columns)

    def likelihoods(self, rows: list[Row], logits: list[Tensor]) -> Tensor:
        """Return (B, n) log-probabilities of the rows' texts; with ipo, per token."""
        alpha, size = (1.0 if self.config.dpo_loss == "ipo" else 0.0), len(rows[0].ids)
        found = [
            text_scores(token_log_p(z, row.ids[row.wanted]), row.wanted.nonzero()[:, 0], size, alpha)
            for z, row in zip(logits, rows, strict=True)
        ]
        return torch.stack(found, dim=1)

    def save(self, folder: Path) -> None:
        self.initial.save(folder)

    def load(self, folder: Path) -> None:
        self.initial.load(folder)
