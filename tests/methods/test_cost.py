"""What every method costs, for one batch: the table of docs/choosing-a-method.md."""

from dataclasses import replace

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator
from semioffline.methods.shared.registry import load_method, method_names
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

K, N, T, INPUTS = 3, 4, 6, 4
"""Samples, candidates, tokens of a generated text, inputs of the batch."""
COSTS = {
    **dict.fromkeys(("ft", "mft", "gold", "best_of_n", "scheduled_sampling"), (1, 0, 1)),
    "dpo": (2, 0, 2),
    "brio": (N, 0, N + 1),
    "ilql": (N + 1, 1, N + 2),
    "raml": (K, K, K),
    "actor_critic": (T, 1, 2),
    "self_critic": (2 * T, 2, 2),
    "avg": (K * T, K, K + 1),
    "spg": (K * T, K, K),
    "erpo": (2 + T, K, K),  # of three texts, two are edits
    "ppo": (T + 1, 1, 2),
    "grpo": (K * (T + 1), K, K + 1),
    "semi_offline": (1, K, 2),
    "ablations": (2, K, 2),  # -Mask
}
"""Per input: forward passes, reward calls (fewer where texts are the same), decoder rows with gradient."""
OWN = {"ablations": {"observation": "no_mask"}, "erpo": {"edit_share": 0.67}}


def vowels(completions, **kwargs):
    return [float(sum(text.count(v) for v in "aeiou") % 7) for text in completions]


def test_every_method_is_here():
    assert sorted(COSTS) == method_names()


@pytest.mark.parametrize("name", sorted(COSTS))
def test_costs_per_input(tiny_policy, tiny_data, settings, ranked, name):
    passes, calls, trained = COSTS[name]
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
    run, rows = policy.runner, []

    def count(source, shown, *rest):
        rows.extend(shown if torch.is_grad_enabled() else [])
        return run(source, shown, *rest)

    with policy.through(count):
        method.step(policy, batch, scorer, Randomness(0, 0))
    policy.meter.add_inputs(INPUTS)
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], len(rows)) == (passes, trained)
    assert (calls > 0) == (cost.get("reward_calls", 0) > 0)
    assert cost.get("reward_calls", 0) <= calls
