"""Samples that are used for several steps, in grpo and ppo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Rollout, Row
from semioffline.data.examples import Tokens, pad
from semioffline.methods.shared.frozen import predict_only
from semioffline.methods.shared.on_policy import sample_texts, sampled_log_p, sampled_row
from semioffline.methods.shared.settings import RLSettings
from semioffline.policy.policy import Policy
from semioffline.policy.tokens import Encoded
from semioffline.scoring.scorer import Scorer, Scores
from semioffline.validation import Range, setting

_PART = "reward/"


@dataclass
class RolloutSettings(RLSettings):
    """Settings of repeated steps on one batch and its samples."""

    num_iterations: int = setting(
        4, "Number of consecutive steps on one batch and its samples.", "Rollout", Range(1, 100)
    )
    epsilon: float = setting(
        0.2, "Ratios of new to old probability are clipped to 1 - epsilon and 1 + epsilon.", "Rollout",
        Range(0, 1, open_low=True),
    )  # fmt: skip


def make_rollout(
    policy: Policy, batch: Batch, score: Scorer, config: RolloutSettings, randomness: Randomness, many: int,
    with_values: bool = False,
) -> Rollout:  # fmt: skip
    """Draw `many` samples of each input. Return them on the host with their rewards and present log-probabilities,
    computed without dropout; with_values: also the critic's values."""
    texts = sample_texts(policy, batch, config, randomness, many)
    scores = score.score_ids(texts, batch, many)
    samples = pad([Tokens.of(Encoded(ids, [-1] * len(ids), False)) for ids in texts], policy.tokens.pad_id)
    rows = _rows(policy, batch, texts, config, many)
    scoring = [replace(row, purpose="rl") for row in rows]
    found: Any = predict_only(policy, batch.source, scoring, with_values=with_values)
    logits = found[0] if with_values else found
    log_p = [sampled_log_p(policy, z, row, config) for z, row in zip(logits, rows, strict=True)]
    rollout = {"ids": samples.ids, "keep": samples.keep_mask, "rewards": scores.rewards.cpu()}
    rollout["seconds"] = torch.tensor(scores.seconds / config.num_iterations)
    rollout["actions"] = _lay_out([torch.ones(int(row.wanted.sum())) for row in rows], rows, samples.ids.shape).bool()
    rollout["log_p"] = _lay_out(log_p, rows, samples.ids.shape)
    if with_values:
        rollout["values"] = _lay_out(found[1], rows, samples.ids.shape)
    parts = {name: torch.tensor(list(values), dtype=torch.float64) for name, values in scores.parts.items()}
    return rollout | {f"{_PART}{name}": values for name, values in parts.items()}


class Stored:
    """A stored rollout in the form that `step` uses."""

    def __init__(self, policy: Policy, batch: Batch, rollout: Rollout, config: RolloutSettings):
        self._policy, self._rollout = policy, rollout
        self.rewards = rollout["rewards"]  # (B, K)
        self.texts = [ids[keep].tolist() for ids, keep in zip(rollout["ids"], rollout["keep"], strict=True)]
        self.many = self.rewards.shape[1]
        self.rows = _rows(policy, batch, self.texts, config, self.many)
        """K rows for each input, to be run with gradient."""

    def at_rows(self, name: str) -> list[Tensor]:
        """Return, for each of the K rows, the (P,) numbers at its wanted positions, on the policy's device."""
        whole = self._rollout[name]
        own = [whole[n :: self.many, : row.wanted.shape[1]][row.wanted] for n, row in enumerate(self.rows)]
        return [part.to(self._policy.device) for part in own]

    @cached_property
    def scores(self) -> Scores:
        parts = {n.removeprefix(_PART): t.tolist() for n, t in self._rollout.items() if n.startswith(_PART)}
        seconds = float(self._rollout["seconds"])
        return Scores(self.rewards, parts, lambda: self._policy.tokens.decode(self.texts), seconds)


def _rows(policy: Policy, batch: Batch, texts: list[list[int]], config: RolloutSettings, many: int) -> list[Row]:
    return [sampled_row(policy, batch, texts[n::many], config.max_completion_length) for n in range(many)]


def _lay_out(parts: list[Tensor], rows: list[Row], shape: torch.Size) -> Tensor:
    """Return (B * K, T): the (P,) numbers of each of K rows at its wanted positions, 0 elsewhere."""
    whole = torch.zeros(shape)
    for n, (part, row) in enumerate(zip(parts, rows, strict=True)):
        own = torch.zeros(row.wanted.shape)
        own[row.wanted] = part.float().cpu()
        whole[n :: len(rows), : own.shape[1]] = own
    return whole
