"""Draw samples from the distributions of one forward pass: independent ones, or base samples and their swaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.counterfactual import Swaps, Tail, Uniforms, compared, swap
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import Draws, draw, draw_uniforms
from semioffline.algorithm.tensors import Observation, Samples
from semioffline.methods.shared.settings import GroupSettings
from semioffline.validation import Range, setting

Estimator = Literal["reinforce", "counterfactual"]


class Drawn(NamedTuple):
    """K samples, which differ at the M masked positions, and the entropy of the distributions they were drawn from."""

    samples: Samples
    logits: Tensor
    """(M, K) logits of the drawn tokens / temperature, with gradient; log p for samples that do not share
    distributions."""
    entropy: Tensor
    probabilities: Tensor
    """(M, K) of the drawn tokens."""
    swaps: list[Swaps] | None = None
    """estimator=counterfactual: how the samples differ from their bases."""


@dataclass
class EstimatorSettings(GroupSettings):
    """Settings of how K samples of one forward pass estimate the gradient."""

    estimator: Estimator = setting(
        "reinforce", "reinforce: independent samples | counterfactual: base samples and copies with one other token.",
        "Sampling",
    )  # fmt: skip
    num_bases: int = setting(
        1, "estimator=counterfactual: number of base samples among the K.", "Advanced", Range(1, 2**15)
    )
    swap_tail: Tail = setting(
        "truncate", "estimator=counterfactual: unlikely tokens are left out (truncate) or also sampled, without bias "
        "(sample).", "Advanced",
    )  # fmt: skip

    def problems(self) -> list[str]:
        found = super().problems()
        if self.estimator == "counterfactual":
            if self.num_samples < 2 * self.num_bases:
                found.append(f"num_bases={self.num_bases} needs num_samples of at least {2 * self.num_bases}")
            if self.scale_rewards or self.baseline != "mean":
                found.append("scale_rewards and baseline need estimator='reinforce': estimator='counterfactual' has a "
                             "baseline of its own for each position")  # fmt: skip
        return found


def draw_tokens(
    z: Tensor, observation: Observation, index: Tensor, config: EstimatorSettings, randomness: Randomness
) -> tuple[Draws, list[Swaps] | None]:
    """Draw K tokens at each of the M masked positions, from their (M, V) logits."""
    if config.estimator == "reinforce":
        return draw(z, draw_uniforms(observation, index, config.num_samples, randomness, "draw")), None
    counts: list[int] = observation.hidden.sum(1).tolist()
    bases = config.num_bases
    chosen = draw(z, draw_uniforms(observation, index, bases, randomness, "draw"))
    tails = draw_uniforms(observation, index, bases, randomness, "tail").to(z.device)
    p, swaps = z.softmax(1), []
    for n in range(bases):
        many = config.num_samples // bases + (n < config.num_samples % bases)
        extra = compared(many - 1, config.swap_tail)
        pairs = randomness.uniform(f"pairs {n}", index, [2 * extra] * len(counts)).view(len(counts), extra, 2)
        uniforms = Uniforms(tails[:, n], pairs.to(z.device))
        swaps.append(swap(p, chosen.ids[:, n], counts, many, config.swap_tail, uniforms))
    ids = torch.cat([one.draws for one in swaps], dim=1)
    return Draws(ids, chosen.entropy, p.gather(1, ids)), swaps
