"""Best of N: fine-tune on the candidate with the highest reward."""

from dataclasses import dataclass, replace
from typing import ClassVar

from semioffline.algorithm.losses import text_scores, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput, Term, Text
from semioffline.errors import UserError
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.mle import masked_target_row
from semioffline.methods.shared.settings import MaskedMLESettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


@dataclass
class BestOfNConfig(MaskedMLESettings):
    """Settings of `best_of_n`."""

    method: ClassVar[str] = "best_of_n"


class Method(BaseMethod[BestOfNConfig]):
    """L = - log p(y | x) / |y|, a mean over inputs, with y the best candidate of the input.

    One round of rejection sampling, or RAFT (Dong et al. 2023), on candidates that exist; make new ones from the result
    for another round. Its inputs are masked in a share of the examples, as in M-FT. An input counts as much as any
    other, however long its candidate: MLE on the ground truth is a mean over tokens instead. `best_of_n+mft` has a
    term for the ground truth too.
    """

    config_class = BestOfNConfig
    needs_candidates = True
    has_mle = False
    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        best = best_candidates(batch)
        shown = masked_target_row(policy, replace(batch, target=best), self.config, randomness)
        row = replace(shown, purpose="rl", term="best_of_n")
        [logits] = policy.predict(batch.source, [row])
        log_p = token_log_p(logits, best.ids[best.keep_mask])
        loss = -text_scores(log_p, best.keep_mask.nonzero()[:, 0], len(batch)).sum()
        rewards = batch.candidate_rewards
        return StepOutput(
            [Term("best_of_n", loss, per="row")],
            {} if rewards is None else {"reward_best": rewards[:, 0].mean(), "reward_candidates": rewards.nanmean()},
        )


def best_candidates(batch: Batch) -> Text:
    """Return the first candidate of each input. Candidates are sorted, best first."""
    candidates, rewards = batch.candidates, batch.candidate_rewards
    if candidates is None or rewards is None:
        raise UserError("best_of_n needs the columns candidates and candidate_rewards: see `semioffline candidates`")
    every = slice(None, None, rewards.shape[1])
    return Text(candidates.ids[every], candidates.keep_mask[every], candidates.words[every])
