"""M-FT: fine-tuning with masked decoder inputs, so that the model knows the mask token: where RL starts from."""

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput
from semioffline.methods import BaseMethod
from semioffline.methods.ft import mle_row, mle_term
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


class Method(BaseMethod):
    """L = -sum_t log p(y_t | x, y^M_<t): inputs masked in a share of the examples, labels whole."""

    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        args = self.args
        row = mle_row(policy, batch, randomness, args.mle_mask_rate, args.mle_mask_share)
        [logits] = policy.predict(batch.source, [row])
        return StepOutput([mle_term(logits, batch, args.label_smoothing_factor)])
