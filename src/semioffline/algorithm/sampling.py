"""K draws for every masked position, from one forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Observation, Samples, Text, send

WIDTH = 128
"""With top_p, the most likely tokens are searched among this many first."""


@torch.no_grad()
def sampling_logits(
    logits: Tensor, allowed: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """Return the logits of the distribution that samples are drawn from: z / temperature, -inf outside the kept set.

    logits: (M, V); allowed: (V,) or (M, V) False at ids that must never be drawn (special tokens, ids without a token).
    Restricting the draw is exact for the RL gradient: the normaliser of the kept set does not depend on the sample,
    and a constant in k cancels under zero-sum advantages.
    """
    z = logits.float() if temperature == 1.0 else logits.float() / temperature
    z = z.masked_fill(~allowed, -torch.inf)
    if top_k > 0:
        kth = z.topk(min(top_k, z.shape[1]), dim=1).values[:, -1:]
        z = z.masked_fill(z < kth, -torch.inf)
    if top_p < 1.0:
        z = z.masked_fill(~_nucleus(z.softmax(1), top_p), -torch.inf)
    return z


def _nucleus(probabilities: Tensor, top_p: float, width: int = WIDTH) -> Tensor:
    """Return (M, V), True at the most likely tokens whose probabilities together reach top_p.

    A few tokens nearly always suffice. Selecting these takes a fraction of the time of sorting the vocabulary. Rows
    that need more search among eight times as many. (The check for such rows makes the host wait for the device.)
    """
    likely, order = probabilities.topk(min(width, probabilities.shape[1]), dim=1)
    kept = torch.zeros_like(probabilities, dtype=torch.bool)
    kept.scatter_(1, order, likely.cumsum(1) - likely < top_p)  # mass before this token; the first is always kept
    if likely.shape[1] < probabilities.shape[1]:
        wide = (likely.sum(1) < top_p).nonzero().squeeze(1)
        if len(wide):
            kept[wide] = _nucleus(probabilities[wide], top_p, 8 * width)
    return kept


class Draws(NamedTuple):
    """Tokens drawn at M positions."""

    ids: Tensor
    """(M, K)"""
    entropy: Tensor
    """(M,) of the distribution of each position"""
    probabilities: Tensor
    """(M, K) of the drawn tokens"""


@torch.no_grad()
def draw(z: Tensor, uniforms: Tensor) -> Draws:
    """Draw tokens by inverting the distribution function. z: (M, V) logits. uniforms: (M, K).

    The k-th draw at a position is the first token whose cumulative probability exceeds its number. One softmax serves
    all K draws.
    """
    probabilities = z.softmax(1)
    ids = invert(probabilities, uniforms)
    return Draws(ids, torch.special.entr(probabilities).sum(1), probabilities.gather(1, ids))


def invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return (N, K) draws, by inverting the distribution function. probabilities: (N, V) weights. uniforms: (N, K)."""
    cumulative = probabilities.cumsum(1)
    total = cumulative[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    numbers = torch.minimum(send(uniforms, total.device) * total, below_total)
    ids = torch.searchsorted(cumulative, numbers, right=True)
    # NaN logits: let the loss be NaN, which is reported with step and rows
    ids = ids.clamp(max=probabilities.shape[1] - 1)
    # a parallel sum may round up at a token without probability: such a hair's breadth goes to the likeliest token
    impossible = probabilities.gather(1, ids) == 0
    return torch.where(impossible, probabilities.argmax(1, keepdim=True), ids)


def text_uniforms(index: Tensor, many: int, longest: int, randomness: Randomness, purpose: str) -> Tensor:
    """Return (B * many, longest) random numbers for `DrawsProcessor`, the rows of an example together. They do not
    depend on `longest`."""
    numbers = randomness.uniform(purpose, index, [longest * many] * len(index))
    return numbers.view(len(index), longest, many).transpose(1, 2).flatten(0, 1)


class DrawsProcessor:
    """A logits processor that chooses the tokens that `generate` samples. Each row takes the tokens that its own random
    numbers select, independently of the other rows."""

    def __init__(self, uniforms: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0):
        """uniforms: (B, T), one number for each row and token."""
        self.uniforms, self.settings, self.position = uniforms, (temperature, top_k, top_p), 0

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.uniforms = send(self.uniforms, scores.device)
        z = sampling_logits(scores, scores > -torch.inf, *self.settings)
        drawn = invert(z.softmax(1), self.uniforms[:, self.position, None])
        self.position += 1
        chosen = torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)
        return chosen.masked_fill_(scores.isnan().any(1, keepdim=True), torch.nan)  # `generate` refuses them


def draw_uniforms(
    observation: Observation, index: Tensor, num_samples: int, randomness: Randomness, purpose: str
) -> Tensor:
    """Return (M, K) random numbers for `draw`. They depend on the example that a masked position belongs to."""
    counts = observation.hidden.sum(1).tolist()
    return randomness.uniform(purpose, index, [n * num_samples for n in counts]).view(-1, num_samples)


def allow_end(allowed: Tensor, text: Text, observation: Observation, end_id: int, after: int) -> Tensor:
    """Return (M, V): `allowed` (V,) at each masked position, with the end token allowed if `after` ordinary tokens
    precede it."""
    before = text.ordinary.cumsum(1) - text.ordinary.long()
    late = send(before[observation.hidden] >= after, allowed.device)
    ends = torch.arange(allowed.shape[-1], device=allowed.device) == end_id
    return allowed | (late[:, None] & ends)


def complete(text: Text, observation: Observation, draws: Tensor, end_id: int | None = None) -> Samples:
    """Put the draws into the static text, which gives K complete samples per row. A sample ends where end_id was
    drawn."""
    return Samples(text, observation.hidden, draws, end_id)


def drawn_log_p(logits: Tensor, draws: Tensor, allowed: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Return (M,) log-probabilities of drawn ids under the distribution they were drawn from, with gradient. logits:
    (M, V). draws: (M,).

    For samples that do not share their distributions, so that the normaliser does not cancel. The drawn token always
    counts as kept: dropout or rounding may have pushed it out since.
    """
    draws = send(draws, logits.device)
    kept = sampling_logits(logits, allowed, temperature, top_k, top_p) > -torch.inf
    kept = kept.scatter(1, draws[:, None], True)
    log_p = (logits.float() / temperature).masked_fill(~kept, -torch.inf).log_softmax(1)
    return log_p.gather(1, draws[:, None]).squeeze(1)
