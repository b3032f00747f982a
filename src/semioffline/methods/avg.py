"""AVG: K samples from the policy itself, the mean of their rewards as baseline. What self_critic and actor_critic share
with it, drawing whole texts and running them again with gradient, stands here too."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from semioffline.algorithm.losses import advantages, text_scores, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import sampling_logits, text_uniforms
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term, send
from semioffline.data.examples import Tokens, pad
from semioffline.methods import BaseMethod
from semioffline.methods.ft import mle_row, mle_term
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer, Scores


class Method(BaseMethod):
    """L = L_MLE + rl_weight * L_RL, with L_RL = sum_k -(R_k - b) log p(y_k | x) / |y_k|**length_alpha.

    Appendix D of the paper without its constant 2N; RLOO with baseline=leave_one_out, and GRPO without clipping with
    scale_rewards. loss_scale=token: the sum over samples, as written; with length_alpha=1 that is the scale of
    semi_offline (sum over K, mean over tokens), so that one rl_weight means the same for both. loss_scale=sequence:
    divided by K. Rows are averaged. K rows run with gradient: choose num_samples for your memory.
    The paper samples with the decoding parameters of evaluation (appendix B); we draw from the policy, with
    temperature, top_k and top_p, so that the samples are on-policy.
    """

    needs_reward = True
    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        args = self.args
        many = args.num_samples
        texts = sample_texts(policy, batch, args, randomness, many)
        scores = score.score_ids(texts, batch, many)
        advantage = advantages(scores.rewards, args.baseline, args.scale_rewards)

        target_row = mle_row(policy, batch, randomness, args.mle_mask_rate, args.mle_mask_share)
        sample_rows = [sampled_row(policy, batch, texts[k::many], args) for k in range(many)]
        target_logits, *sample_logits = policy.predict(batch.source, [target_row, *sample_rows])
        likelihoods = [
            text_scores(sampled_log_p(policy, z, row, args), rows_of(row), len(batch), args.length_alpha)
            for z, row in zip(sample_logits, sample_rows, strict=True)
        ]
        weights = advantage.values
        if args.loss_scale == "sequence":
            weights = weights / advantage.counts.clamp(min=1)[:, None]
        rl = -(send(weights, policy.device) * torch.stack(likelihoods, dim=1)).sum()
        return StepOutput(
            terms=[
                mle_term(target_logits, batch, args.label_smoothing_factor),
                Term("rl", rl, per="row", weight=args.rl_weight),
            ],
            metrics=scores.metrics | {"sample_length": mean_length(texts)},
            completions=partial(log_rows, batch, scores, advantage.values) if args.log_completions else None,
        )


def sample_texts(policy: Policy, batch: Batch, args: Any, randomness: Randomness, many: int) -> list[list[int]]:
    """B * many token lists from the policy, the samples of an input together, with EOS where they ended.

    They are keyed by (seed, step, example): whatever batch it is in, an example has the same samples, as far as the
    model's numbers are the same there and its positions leave as much room.
    """
    longest = policy.longest_output(batch.source, args.max_completion_length)
    uniforms = text_uniforms(batch.index, many, longest, randomness, "on-policy")
    return policy.generate(batch.source, Decoding.as_trained(args, longest, many), keep_end=True, uniforms=uniforms)


def greedy_texts(policy: Policy, batch: Batch, args: Any) -> list[list[int]]:
    return policy.generate(
        batch.source,
        Decoding(max_new_tokens=policy.longest_output(batch.source, args.max_completion_length)),
        keep_end=True,
    )


def sampled_row(policy: Policy, batch: Batch, texts: list[list[int]], args: Any) -> Row:
    """One sample for each input as a row to run again; tokens that `generate` forces were not the policy's choice."""
    padded = pad([Tokens(ids, ids) for ids in texts], policy.pad_id)  # type: ignore[arg-type]
    wanted = padded.keep_mask.clone()
    forced = policy.base.generation_config
    if policy.is_encoder_decoder and forced.forced_bos_token_id is not None:
        wanted[:, 0] = False
    last = policy.longest_output(batch.source, args.max_completion_length) - 1
    if forced.forced_eos_token_id is not None and last < wanted.shape[1]:
        wanted[:, last] = False
    return Row(padded.ids, padded.keep_mask, wanted, purpose="grad")


def sampled_log_p(policy: Policy, logits: Tensor, row: Row, args: Any) -> Tensor:
    """(P,) log-probabilities under the distribution that was drawn from: temperature, top_k, top_p, without what
    `generate` suppresses."""
    tokens = send(row.ids[row.wanted], logits.device)
    allowed = torch.ones_like(policy.allowed)
    allowed[sorted(policy.suppressed)] = False
    kept = sampling_logits(logits, allowed, args.temperature, args.top_k, args.top_p).isfinite()
    kept.scatter_(1, tokens[:, None], True)  # rounding must not put a drawn token outside
    return token_log_p((logits.float() / args.temperature).masked_fill(~kept, -torch.inf), tokens)


def rows_of(row: Row) -> Tensor:
    """(P,) the input that each wanted position belongs to."""
    return row.wanted.nonzero()[:, 0]


def mean_length(texts: list[list[int]]) -> float:
    return sum(map(len, texts)) / len(texts)


def log_rows(batch: Batch, scores: Scores, advantage: Tensor) -> list[dict[str, Any]]:
    """The rows of the log of samples. Nothing is masked in them."""
    return [
        {
            "example": example,
            "prompt": batch.columns["prompt"][b],
            "masked_target": "",
            "sample": text,
            "reward": scores.rewards[b, k].item(),
            "advantage": advantage[b, k].item(),
        }
        for b, example in enumerate(batch.index.tolist())
        for k, text in enumerate(scores.texts[b])
    ]
