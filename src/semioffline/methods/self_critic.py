"""Self-critic: one sample from the policy; the reward of its own greedy output is the baseline."""

from functools import partial

from semioffline.algorithm.losses import text_scores
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput, Term, send
from semioffline.methods import BaseMethod
from semioffline.methods.avg import (
    greedy_texts,
    log_rows,
    mean_length,
    rows_of,
    sample_texts,
    sampled_log_p,
    sampled_row,
)
from semioffline.methods.ft import mle_row, mle_term
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


class Method(BaseMethod):
    """L = L_MLE + rl_weight * L_RL, with L_RL = -(R(y) - R(greedy)) log p(y | x) / |y|**length_alpha.

    Rennie et al. 2017; section 4.1 of the paper. One sample whatever num_samples is, a sum over its tokens, a mean over
    rows. A sample counts nothing where it or the greedy output has no reward.
    """

    needs_reward = True
    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        args = self.args
        texts = sample_texts(policy, batch, args, randomness, 1)
        scores = score.score_ids(texts, batch, 1)
        baseline = score.score_ids(greedy_texts(policy, batch, args), batch, 1)
        advantage = (scores.rewards - baseline.rewards).nan_to_num(nan=0.0)  # (B, 1)

        target_row = mle_row(policy, batch, randomness, args.mle_mask_rate, args.mle_mask_share)
        row = sampled_row(policy, batch, texts, args)
        target_logits, logits = policy.predict(batch.source, [target_row, row])
        likelihoods = text_scores(sampled_log_p(policy, logits, row, args), rows_of(row), len(batch), args.length_alpha)
        rl = -(send(advantage[:, 0], policy.device) * likelihoods).sum()
        metrics = scores.metrics | {
            "reward_greedy": baseline.metrics["reward"],
            "time/reward": scores.metrics["time/reward"] + baseline.metrics["time/reward"],
            "sample_length": mean_length(texts),
        }
        return StepOutput(
            terms=[
                mle_term(target_logits, batch, args.label_smoothing_factor),
                Term("rl", rl, per="row", weight=args.rl_weight),
            ],
            metrics=metrics,
            completions=partial(log_rows, batch, scores, advantage) if args.log_completions else None,
        )
