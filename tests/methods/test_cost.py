"""The column FP of every method, from the meter, for one batch."""

from dataclasses import replace

import pytest

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator
from semioffline.methods.shared.registry import load_method, method_names
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

K, N, T, INPUTS = 3, 4, 6, 4
"""Samples, candidates, tokens of a generated text, inputs of the batch."""
PASSES = {
    **dict.fromkeys(("ft", "mft", "gold", "best_of_n", "semi_offline", "scheduled_sampling"), 1),
    "dpo": 2,
    "brio": N,
    "ilql": N + 1,
    "raml": K,
    "actor_critic": T,
    "self_critic": 2 * T,
    "avg": K * T,
    "spg": K * T,
    "erpo": 2 + T,  # of three texts, two are edits
    "ppo": T + 1,
    "grpo": K * (T + 1),
    "ablations": 2,  # -Mask
}
OWN = {"ablations": {"observation": "no_mask"}, "erpo": {"edit_share": 0.67}}


def vowels(completions, **kwargs):
    return [float(sum(text.count(v) for v in "aeiou") % 7) for text in completions]


def test_every_method_is_here():
    assert sorted(PASSES) == method_names()


@pytest.mark.parametrize("name", sorted(PASSES))
def test_forward_passes_per_input(tiny_policy, tiny_data, settings, ranked, name):
    policy = tiny_policy("bart")
    policy.base.generation_config.suppress_tokens = [policy.tokens.eos_id]  # all texts have T tokens
    examples = ranked(policy, tiny_data, N)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(INPUTS)])
    args = settings(name, **OWN.get(name, {}))
    args.max_completion_length = T
    if hasattr(args, "num_samples"):
        args.num_samples = K
    method, scorer = load_method(args), Scorer(policy, RewardSet(vowels))
    method.prepare(policy, examples)  # what it costs once is not counted
    if method.repeats:
        batch = replace(batch, rollout=method.roll_out(policy, batch, scorer, Randomness(0, 0)))
    method.step(policy, batch, scorer, Randomness(0, 0))
    policy.meter.add_inputs(INPUTS)
    assert policy.meter.per_input()["forward_passes"] == PASSES[name]
