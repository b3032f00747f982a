"""The MLE term, which nearly every method has."""

from torch import Tensor

from semioffline.algorithm.losses import mle
from semioffline.algorithm.masking import hide, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, Term
from semioffline.methods.shared.settings import MaskedMLESettings
from semioffline.policy.policy import Policy


def target_row(batch: Batch) -> Row:
    """Return the ground truth as a row."""
    target = batch.target
    return Row(ids=target.ids, keep_mask=target.keep_mask, wanted=target.keep_mask, purpose="mle")


def masked_target_row(policy: Policy, batch: Batch, config: MaskedMLESettings, randomness: Randomness) -> Row:
    """Return the ground truth as a row whose inputs are masked in a share of the examples.

    The labels stay whole, so that the model learns to continue after mask tokens.
    """
    target = batch.target
    if not config.mle_mask_rate or not config.mle_mask_share:
        return target_row(batch)
    uniforms = mask_uniforms(target, batch.index, randomness, "mle mask")
    chosen = randomness.uniform("mle share", batch.index, [1] * len(batch))[:, None] < config.mle_mask_share  # (B, 1)
    shown = hide(target, chosen.to(uniforms) * config.mle_mask_rate, policy.tokens.mask_id, uniforms).ids
    return Row(ids=shown, keep_mask=target.keep_mask, wanted=target.keep_mask, purpose="mle")


def mle_term(logits: Tensor, batch: Batch, label_smoothing: float) -> Term:
    return Term("mle", mle(logits, batch.target.ids[batch.target.keep_mask], label_smoothing), per="token")
