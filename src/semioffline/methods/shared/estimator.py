"""Draw samples from the distributions of one forward pass: independent ones, or base samples and their swaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from semioffline.algorithm.counterfactual import Swaps, swap
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import Draws, draw, draw_uniforms
from semioffline.algorithm.tensors import Observation, Samples
from semioffline.methods.shared.settings import GroupSettings
from semioffline.validation import setting

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
    swaps: Swaps | None = None
    """estimator=counterfactual: how the samples differ from their base."""


@dataclass
class EstimatorSettings(GroupSettings):
    """Settings of how K samples of one forward pass estimate the gradient."""

    estimator: Estimator = setting(
        "reinforce", "reinforce: independent samples | counterfactual: a base sample and copies with one other token.",
        "Sampling",
    )  # fmt: skip

    def problems(self) -> list[str]:
        found = super().problems()
        if self.estimator == "counterfactual" and (self.scale_rewards or self.baseline != "mean"):
            found.append("scale_rewards and baseline need estimator='reinforce': estimator='counterfactual' has a "
                         "baseline of its own for each position")  # fmt: skip
        return found


def draw_tokens(
    z: Tensor, observation: Observation, index: Tensor, config: EstimatorSettings, randomness: Randomness
) -> tuple[Draws, Swaps | None]:
    """Draw K tokens at each of the M masked positions, from their (M, V) logits."""
    if config.estimator == "reinforce":
        return draw(z, draw_uniforms(observation, index, config.num_samples, randomness, "draw")), None
    base = draw(z, draw_uniforms(observation, index, 1, randomness, "draw"))
    p = z.softmax(1)
    swaps = swap(p, base.ids[:, 0], observation.hidden.sum(1).tolist(), config.num_samples)
    return Draws(swaps.draws, base.entropy, p.gather(1, swaps.draws)), swaps
