"""Draw masked positions one after another, each given those before it: the paper's (c1)."""

from __future__ import annotations

import torch
from torch import Tensor

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import complete, draw, draw_uniforms, drawn_log_p, sampling_logits
from semioffline.algorithm.tensors import Batch, Observation, Row, Samples, Text
from semioffline.methods.shared.estimator import Drawn
from semioffline.methods.shared.frozen import predict_only
from semioffline.methods.shared.settings import DrawingSettings, GroupSettings
from semioffline.policy.policy import Policy


def draw_in_turn(
    policy: Policy, batch: Batch, static: Text, observation: Observation, target_row: Row, config: GroupSettings,
    randomness: Randomness,
) -> tuple[Tensor, Drawn]:  # fmt: skip
    """Return the logits of the MLE row, and K samples that do not share distributions.

    Sampling costs K * sum_t M_t passes (Proposition 1); one more, for all samples, gives log p with gradient. The
    normaliser does not cancel, so log p is complete.
    """
    uniforms = draw_uniforms(observation, batch.index, config.num_samples, randomness, "draw")
    samples, entropy = _fill_in_turn(policy, batch, static, observation, uniforms, config)
    rows = [Row(ids, static.keep_mask, observation.hidden, purpose="grad") for ids in samples.ids.unbind(1)]
    target_logits, *logits = policy.predict(batch.source, [target_row, *rows])
    log_p = [
        drawn_log_p(z, draws, policy.allowed, config.temperature, config.top_k, config.top_p)
        for z, draws in zip(logits, samples.draws.unbind(1), strict=True)
    ]
    shown = torch.stack(log_p, dim=1)
    return target_logits, Drawn(samples, shown, entropy, shown.detach().exp())


@torch.no_grad()
def _fill_in_turn(
    policy: Policy, batch: Batch, static: Text, observation: Observation, uniforms: Tensor, config: DrawingSettings
) -> tuple[Samples, Tensor]:
    """Draw K samples position by position, with `uniforms` (M, K). Also return the entropies (M, K)."""
    k = uniforms.shape[1]
    rows, positions = observation.hidden.nonzero(as_tuple=True)  # (M,)
    turn = observation.hidden.cumsum(1)[rows, positions]  # (M,) its number among the masked positions of its row
    samples = complete(static, observation, torch.zeros_like(uniforms, dtype=torch.long))
    ids, entropy = samples.ids, torch.zeros_like(uniforms)  # (B, K, T), (M, K)
    for now in range(1, int(observation.hidden.sum(1).max()) + 1):
        at = (turn == now).nonzero().squeeze(1)  # (n,) one masked position of each row that has any left
        row, position = rows[at], positions[at]
        length = int(position.max()) + 1
        wanted = torch.arange(length, device=position.device) == position[:, None]  # (n, length)
        source = Text(batch.source.ids[row], batch.source.keep_mask[row], batch.source.words[row])
        keep_mask = static.keep_mask[row, :length]
        shown = [Row(tokens[:, :length], keep_mask, wanted, "rl") for tokens in ids[row].unbind(1)]
        logits = torch.stack(predict_only(policy, source, shown), dim=1).flatten(0, 1)  # (n * K, V)
        z = sampling_logits(logits, policy.allowed, config.temperature, config.top_k, config.top_p)
        draws, spread, _ = draw(z, uniforms[at].reshape(-1, 1))
        samples.draws[at] = draws.view(-1, k).to(ids.device)
        ids[row, :, position] = samples.draws[at]
        entropy[at] = spread.view(-1, k).to(ids.device)
    return samples, entropy
