"""FT: plain fine-tuning on the ground truth."""

from torch import Tensor

from semioffline.algorithm.losses import mle
from semioffline.algorithm.masking import hide, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term
from semioffline.methods import BaseMethod
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


def mle_row(
    policy: Policy, batch: Batch, randomness: Randomness, mask_rate: float = 0.0, mask_share: float = 0.0
) -> Row:
    """The ground truth as a row; in a `mask_share` of the examples its inputs are masked at `mask_rate`.

    The labels stay whole, so that the model learns to go on after mask tokens.
    """
    target = batch.target
    if not mask_rate or not mask_share:
        return Row(ids=target.ids, keep_mask=target.keep_mask, wanted=target.keep_mask, purpose="mle")
    uniforms = mask_uniforms(target, batch.index, randomness, "mle mask")
    chosen = randomness.uniform("mle share", batch.index, [1] * len(batch))[:, None] < mask_share  # (B, 1)
    shown = hide(target, chosen.to(uniforms) * mask_rate, policy.mask_id, uniforms).ids
    return Row(ids=shown, keep_mask=target.keep_mask, wanted=target.keep_mask, purpose="mle")


def mle_term(logits: Tensor, batch: Batch, label_smoothing: float) -> Term:
    return Term("mle", mle(logits, batch.target.ids[batch.target.keep_mask], label_smoothing), per="token")


class Method(BaseMethod):
    """L = -sum_t log p(y_t | x, y_<t)."""

    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        [logits] = policy.predict(batch.source, [mle_row(policy, batch, randomness)])
        return StepOutput([mle_term(logits, batch, self.args.label_smoothing_factor)])
