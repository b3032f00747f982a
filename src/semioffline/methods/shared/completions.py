"""Log sampled completions and drawn tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from semioffline.algorithm.losses import Advantages, token_advantages
from semioffline.algorithm.tensors import Batch, CompletionRow, Observation, Samples, TokenRow
from semioffline.policy.tokens import Codec
from semioffline.scoring.scorer import PendingScores, Scores

INPUTS = 4
"""Number of inputs of a batch whose draws are logged."""
TOKENS = 8
"""Tokens that are logged for a masked position: those drawn most often, and those of the highest and of the lowest
advantage."""


def completion_rows(
    batch: Batch,
    texts: list[list[str]],
    rewards: Tensor,
    advantages: Tensor,
    masked_targets: list[str] | None = None,
) -> list[CompletionRow]:
    """Return one row for each of K samples of B inputs: prompt, masked target, sample, reward, advantage.

    Args:
        texts: B lists of K samples.
        rewards: (B, K). advantages: (B, K).
        masked_targets: what the policy saw of each static target; empty for methods that mask nothing.
    """
    all_rewards, all_advantages = rewards.tolist(), advantages.tolist()
    return [
        {
            "example": example,
            "prompt": batch.columns["prompt"][b],
            "masked_target": "" if masked_targets is None else masked_targets[b],
            "sample": text,
            "reward": all_rewards[b][k],
            "advantage": all_advantages[b][k],
        }
        for b, example in enumerate(batch.index.tolist())
        for k, text in enumerate(texts[b])
    ]


@dataclass
class SampleLog:
    """Logs the samples that replace the masked positions of a static target. Nothing is computed until one of its
    methods is called, which waits for the rewards."""

    codec: Codec
    batch: Batch
    observation: Observation
    samples: Samples
    probabilities: Tensor
    """(M, K) of the drawn tokens."""
    scores: Scores | PendingScores
    advantages: Callable[[Tensor], Advantages]

    def completions(self) -> list[CompletionRow]:
        rewards, keep_mask = self.scores.rewards, self.samples.keep_mask
        pairs = zip(self.observation.ids, keep_mask, strict=True)
        shown = [self.codec.show(ids[keep].tolist()) for ids, keep in pairs]
        return completion_rows(self.batch, self.scores.texts, rewards, self.advantages(rewards).values, shown)

    def tokens(self) -> list[TokenRow]:
        """Return a row for each of the first inputs: the tokens of the static target as text, and lists of position,
        token, count, probability and advantage (Proposition 3: `token_advantages`), with one entry for every logged
        token. rewards: of the K samples, NaN if there is none."""
        hidden = self.samples.hidden[:INPUTS].cpu()
        number = int(hidden.sum())
        rewards, draws = self.scores.rewards[:INPUTS].cpu(), self.samples.draws[:number].cpu()
        rows, places = hidden.nonzero(as_tuple=True)  # (M,) each
        found = token_advantages(draws, rows, self.advantages(rewards))
        kept = _worth_showing(found.positions, found.counts, found.values)
        at, tokens = found.positions[kept], found.tokens[kept]
        chosen = draws[at] == tokens[:, None]  # (E, K)
        probabilities = (self.probabilities[:number].cpu()[at] * chosen).sum(1) / chosen.sum(1)
        ids = self.samples.text.ids[:INPUTS].cpu()
        before = ids.roll(1, 1)[rows, places][at]  # of a first token: the last one, whose text is taken off
        texts = self.codec.pieces(list(zip(before.tolist(), tokens.tolist(), strict=True)))
        made: list[TokenRow] = []
        for b, length in enumerate(self.samples.keep_mask[:INPUTS].sum(1).tolist()):
            own = (rows[at] == b).nonzero()[:, 0]
            made.append(
                {
                    "example": int(self.batch.index[b]),
                    "prompt": str(self.batch.columns["prompt"][b]),
                    "target": self._target(ids[b, :length].tolist()),
                    "rewards": rewards[b].tolist(),
                    "position": places[at][own].tolist(),
                    "token": [texts[n] for n in own.tolist()],
                    "count": found.counts[kept][own].int().tolist(),
                    "probability": probabilities[own].tolist(),
                    "advantage": found.values[kept][own].tolist(),
                }
            )
        return made

    def _target(self, ids: list[int]) -> list[str]:
        """Return the text of each token of a target. Together they are the target's text."""
        first = self.codec.show(ids[:1]) if ids else ""
        return [first, *self.codec.pieces(list(zip(ids[:-1], ids[1:], strict=True)))]


def _worth_showing(positions: Tensor, counts: Tensor, values: Tensor) -> Tensor:
    """Return the entries to log for each position: the best and the worst token, then those drawn most often."""
    if not len(positions):
        return positions
    number = int(positions.max()) + 1
    best = torch.full((number,), -torch.inf).scatter_reduce(0, positions, values, "amax")
    worst = torch.full((number,), torch.inf).scatter_reduce(0, positions, values, "amin")
    extreme = (values == best[positions]) | (values == worst[positions])
    order = torch.argsort(counts + extreme * counts.max(), descending=True, stable=True)
    order = order[torch.argsort(positions[order], stable=True)]
    first = torch.searchsorted(positions[order], torch.arange(number))
    return order[torch.arange(len(order)) - first[positions[order]] < TOKENS]
