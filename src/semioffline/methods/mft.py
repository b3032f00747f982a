"""M-FT: fine-tuning with masked decoder inputs, so that the model knows the mask token. RL starts from its result."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.settings import MaskedMLESettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


@dataclass
class MFTConfig(MaskedMLESettings):
    """Settings of `mft`: fine-tuning with masked decoder inputs. Run it before `semi_offline`."""

    method: ClassVar[str] = "mft"


class Method(BaseMethod[MFTConfig]):
    """L = -sum_t log p(y_t | x, y^M_<t): inputs masked in a share of the examples, labels whole."""

    config_class = MFTConfig
    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        [logits] = policy.predict(batch.source, [masked_target_row(policy, batch, self.config, randomness)])
        return StepOutput([mle_term(logits, batch, self.config.label_smoothing_factor)])
