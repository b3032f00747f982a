"""Weight the likelihood of texts by a target distribution: shared by erpo, raml and spg."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from semioffline.algorithm.edits import draw_edits, edit_uniforms, log_q_edit
from semioffline.algorithm.losses import target_weights, text_scores, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, Row, StepOutput, Term, Text, send
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.completions import completion_rows
from semioffline.methods.shared.on_policy import as_text, mean_length, rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.shared.settings import DrawingSettings, WeightedSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer

WeightedConfig = TypeVar("WeightedConfig", bound=WeightedSettings)


class Target(NamedTuple):
    """The target q ∝ exp((alpha log p + R) / (alpha + beta)), and the distribution that the texts are drawn from."""

    alpha: float
    beta: float
    edits: int = 0
    """Number of edits of the ground truth among the K texts. The others are samples of the policy."""
    edit_rate: float = 0.0
    drawing: DrawingSettings | None = None
    """Settings for sampling the policy. None: it is not sampled, and p is the model's distribution over all tokens, as
    for MLE."""


class WeightedMethod(BaseMethod[WeightedConfig]):
    """L = - sum_k w_k log p(y_k | x), with w_k ∝ q(y_k) / proposal(y_k) and sum 1, without gradient.

    The loss estimates the gradient of KL(q || p), with q the target distribution and p the policy. The proposal is the
    mixture of edits and samples that the K texts are drawn from, so a weight does not depend on which of the two gave a
    text. The sum over inputs is divided by the target tokens of the step, as for MLE: with all weight on the ground
    truth this is the MLE loss.
    """

    needs_reward = True
    has_mle = False
    batch_on_host = True

    @property
    def target(self) -> Target:
        raise NotImplementedError

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        k, target, name = self.config.num_samples, self.target, self.config.method
        texts = self.propose(policy, batch, randomness)
        scores = score.score_ids(texts, batch, k)
        padded = as_text(texts, policy.tokens.pad_id)
        rows = [self.row(policy, batch, texts[n::k], is_edit=n < target.edits) for n in range(k)]
        pairs = zip(policy.predict(batch.source, rows), rows, strict=True)
        log_p = torch.stack(
            [text_scores(self.log_p(policy, z, row), rows_of(row), len(batch), alpha=0.0) for z, row in pairs], dim=1
        )  # (B, K)
        proposal = self.log_proposal(policy, batch, padded, log_p.detach())
        rewards = send(scores.rewards, policy.device)
        weights = target_weights(log_p, rewards, proposal, target.alpha, target.beta)
        has_any = weights.sum(1) > 0

        def log() -> list[CompletionRow]:
            return completion_rows(batch, scores.texts, scores.rewards, weights)

        return StepOutput(
            terms=[Term(name, -(weights * log_p).sum(), per="token")],
            metrics={  # means over no row are NaN, which the log leaves out
                **scores.metrics,
                "reward_weighted": (weights * rewards.nan_to_num(nan=0.0)).sum(1)[has_any].mean(),
                "effective_samples": (1.0 / weights.square().sum(1))[has_any].mean(),
                "sample_length": mean_length(texts),
            },
            completions=log if self.config.log_completions else None,
        )

    def propose(self, policy: Policy, batch: Batch, randomness: Randomness) -> list[list[int]]:
        """Draw B * K token lists, the texts of an input together, edits first."""
        text, target, made = batch.target, self.target, []
        samples = self.config.num_samples - target.edits
        if target.edits:
            uniforms = edit_uniforms(text, batch.index, target.edits, randomness)
            edits = draw_edits(text, policy.allowed.cpu(), target.edit_rate, target.edits, uniforms)
            made.append([[row[:length] for row in own] for own, length in zip(edits.tolist(), text.lengths)])
        if samples and target.drawing is not None:
            drawn = sample_texts(policy, batch, target.drawing, randomness, samples)
            made.append([drawn[b * samples : (b + 1) * samples] for b in range(len(batch))])
        return [ids for part in zip(*made, strict=True) for own in part for ids in own]

    def row(self, policy: Policy, batch: Batch, texts: list[list[int]], is_edit: bool) -> Row:
        """Return one text of each input as a row. The row of an edit counts as FP; samples were counted when they were
        generated."""
        row = sampled_row(policy, batch, texts, self.config.max_completion_length)
        wanted = row.keep_mask if self.target.drawing is None else row.wanted
        return replace(row, wanted=wanted, purpose="rl" if is_edit else "grad", term=self.config.method)

    def log_p(self, policy: Policy, logits: Tensor, row: Row) -> Tensor:
        """Return (P,) log-probabilities of the row's tokens."""
        if self.target.drawing is None:
            return token_log_p(logits, row.ids[row.wanted])
        return sampled_log_p(policy, logits, row, self.target.drawing)

    def log_proposal(self, policy: Policy, batch: Batch, texts: Text, log_p: Tensor) -> Tensor:
        """Return (B, K) log-probabilities of texts under the mixture of edits and samples. log_p: (B, K) under the
        policy."""
        target = self.target
        share = target.edits / self.config.num_samples
        if not target.edits:
            return log_p
        edits = send(log_q_edit(texts, batch.target, policy.allowed.cpu(), target.edit_rate), log_p.device).view_as(
            log_p
        )
        if share == 1.0:
            return edits
        return torch.logaddexp(edits + math.log(share), log_p + math.log(1.0 - share))
