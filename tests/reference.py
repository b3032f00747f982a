"""References that the library's fast forms are tested against: the losses as they are printed."""

import torch
from torch import Tensor

from semioffline.algorithm.losses import Advantages, reinforce, sample_weights
from semioffline.algorithm.tensors import Batch
from semioffline.policy.policy import Policy


def masked_counts(rows: Tensor, number: int) -> Tensor:
    """(number,) masked positions of each row."""
    return torch.bincount(rows, minlength=number)


def reinforce_dense(
    logits: Tensor, draws: Tensor, rows: Tensor, advantages: Advantages, loss_scale: str = "token"
) -> Tensor:
    """REINFORCE over the masked positions with a whole log-softmax: - sum_k w_k sum_t log p(a_t^k | o_t).

    logits: (M, V) of the distribution drawn from (after temperature and restriction); draws: (M, K); rows: (M,).
    """
    counts = masked_counts(rows, len(advantages.counts))
    divisors = advantages.counts if loss_scale == "sequence" else counts
    weights = (advantages.values / divisors.clamp(min=1)[:, None])[rows]
    return -(weights * logits.float().log_softmax(1).gather(1, draws)).sum()


def trained_loss(drawn_logits: Tensor, rows: Tensor, advantages: Advantages, loss_scale: str = "token") -> Tensor:
    """The loss that trains, with rewards that are there."""
    counts = masked_counts(rows, len(advantages.counts))
    return reinforce(drawn_logits, lambda: sample_weights(advantages, counts, loss_scale)[rows], ready=True).total


def log_p_alone(policy: Policy, batch: Batch, row: int, ids: list[int], shown: list[int] | None = None) -> Tensor:
    """(T, V) log-probabilities at each token of one text, from the Hugging Face model itself: one text, no padding, no
    packing. shown: what the decoder sees instead of the text."""
    seen = torch.tensor(ids if shown is None else shown, device=policy.device)
    source = batch.source.ids[row][batch.source.keep_mask[row]].to(policy.device)
    if policy.is_encoder_decoder:
        start = torch.tensor([policy.config.decoder_start_token_id], device=policy.device)
        logits = policy.model(input_ids=source[None], decoder_input_ids=torch.cat([start, seen[:-1]])[None]).logits[0]
    else:
        logits = policy.model(input_ids=torch.cat([source, seen])[None]).logits[0, len(source) - 1 : -1]
    return logits.float().log_softmax(1)


def token_log_p_alone(policy: Policy, batch: Batch, row: int, ids: list[int], shown: list[int] | None = None) -> Tensor:
    """(T,) those of the text's own tokens."""
    return log_p_alone(policy, batch, row, ids, shown)[range(len(ids)), ids]


def assert_same_gradient(policy: Policy, loss: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    """Two losses are equal, and so are their gradients with respect to every parameter."""
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    found = [torch.autograd.grad(one, list(policy.parameters()), allow_unused=True) for one in (loss, expected)]
    largest = max(float(g.abs().max()) for g in found[1] if g is not None)
    assert largest > 1e-4, "a loss without gradient proves nothing"
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * largest)
