"""Semi-offline RL: hide part of a static target, run the model once, draw K samples from that one pass."""

from functools import partial
from typing import Any

import torch

from semioffline.data import pick_static
from semioffline.losses import advantages, reinforce_sparse
from semioffline.masking import hide, mask_uniforms
from semioffline.methods import BaseMethod
from semioffline.methods.ft import mle_row, mle_term
from semioffline.policy import Policy
from semioffline.sampling import complete, draw, draw_uniforms, sampling_logits
from semioffline.scoring import Scorer, Scores
from semioffline.types import Batch, Observation, Randomness, Row, StepOutput, Term, Text


class Method(BaseMethod):
    """L = L_MLE + rl_weight * L_RL, with L_RL = (1/K) sum_k -(R_k - b) sum_{t hidden} log p(a_t^k | o_t).

    Section 3.3 of the paper; the sum over k is taken in the sparse form (see `reinforce_sparse`).
    """

    needs_reward = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        args = self.args
        static = self._static(batch, randomness)
        uniforms = mask_uniforms(static, batch.index, randomness, "mask")
        observation = hide(static, args.mask_rate, policy.mask_id, uniforms, args.mask_unit)

        target_row = mle_row(policy, batch, randomness, args.mle_mask_rate, args.mle_mask_share)
        masked_row = Row(observation.ids, static.keep_mask, wanted=observation.hidden, purpose="rl")
        target_logits, masked_logits = policy.predict(batch.source, [target_row, masked_row])

        z = sampling_logits(masked_logits, policy.allowed, args.temperature, args.top_k, args.top_p)
        numbers = draw_uniforms(observation, batch.index, args.num_samples, randomness, "draw")
        draws, entropy = draw(z, numbers)
        samples = complete(static, observation, draws)
        scores = score(samples, batch)
        advantage = advantages(scores.rewards, args.baseline, args.scale_rewards)

        drawn_logits = masked_logits.gather(1, draws) / args.temperature
        rl = reinforce_sparse(drawn_logits, samples.rows, advantage, args.loss_scale)
        metrics = scores.metrics | {
            "entropy": entropy.mean().item() if len(entropy) else 0.0,
            "mask_rate": (observation.hidden.sum() / static.ordinary.sum().clamp(min=1)).item(),
        }
        return StepOutput(
            terms=[
                mle_term(target_logits, batch, args.label_smoothing_factor),
                Term("rl", rl, per="row", weight=args.rl_weight),
            ],
            metrics=metrics,
            completions=partial(_log_rows, policy, batch, observation, static, scores, advantage.values)
            if args.log_completions
            else None,
        )

    def _static(self, batch: Batch, randomness: Randomness) -> Text:
        if batch.static_counts is None:
            return batch.static
        uniforms = torch.cat(randomness.uniform("static", batch.index, [1] * len(batch)))
        return pick_static(batch.static, batch.static_counts, uniforms)


def _log_rows(
    policy: Policy, batch: Batch, observation: Observation, static: Text, scores: Scores, advantage: torch.Tensor
) -> list[dict[str, Any]]:
    rows = []
    for b, example in enumerate(batch.index.tolist()):
        shown = policy.show(observation.ids[b][static.keep_mask[b]].tolist())
        for k, text in enumerate(scores.texts[b]):
            rows.append(
                {
                    "example": example,
                    "prompt": batch.columns["prompt"][b],
                    "masked_target": shown,
                    "sample": text,
                    "reward": scores.rewards[b, k].item(),
                    "advantage": advantage[b, k].item(),
                }
            )
    return rows
