"""FT: plain fine-tuning on the ground truth."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput
from semioffline.config import MethodConfig
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.mle import mle_term, target_row
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


@dataclass
class FTConfig(MethodConfig):
    """Settings of `ft`: plain fine-tuning."""

    method: ClassVar[str] = "ft"


class Method(BaseMethod[FTConfig]):
    """L = -sum_t log p(y_t | x, y_<t)."""

    config_class = FTConfig
    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        [logits] = policy.predict(batch.source, [target_row(batch)])
        return StepOutput([mle_term(logits, batch, self.config.label_smoothing_factor)])
