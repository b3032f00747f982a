"""Two methods on one batch."""

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.training.trainer import SemiOfflineTrainer


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def batch_for(policy, tiny_data):
    rows = tiny_data.to_list()
    for n, row in enumerate(rows):
        row["candidates"] = [rows[n - 1]["completion"], row["completion"]]
        row["candidate_rewards"] = [0.1, 0.9]
    data = type(tiny_data).from_list(rows)
    examples = Examples(data, policy, 40, 40, progress=False, with_candidates=True)
    return examples, Collator(policy.tokens.pad_id)([examples[n] for n in range(4)])


def run(policy, examples, batch, args):
    method = load_method(args)
    method.prepare(policy, examples)
    return method, method.step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_both_losses_and_one_mle_term(tiny_policy, tiny_data, settings, kind):
    policy = tiny_policy(kind)
    examples, batch = batch_for(policy, tiny_data)
    method, both = run(policy, examples, batch, settings("brio+semi_offline", num_samples=3, rl_weight=5.0))
    assert method.needs_reward
    assert method.needs_candidates
    found = {term.name: term for term in both.terms}
    assert [term.name for term in both.terms] == ["mle", "ranking", "rl"]
    for name in ("brio", "semi_offline"):
        own = {} if name == "brio" else {"num_samples": 3, "rl_weight": 5.0}
        for term in run(policy, examples, batch, settings(name, **own))[1].terms:
            assert torch.allclose(found[term.name].total, term.total)
            assert found[term.name].weight == term.weight
    assert {"pairs_right", "reward"} <= set(both.all_metrics())
    assert {row["method"] for row in both.completions()} == {"semi_offline"}


def test_names_that_clash_get_the_method_in_front(tiny_policy, tiny_data, settings):
    policy = tiny_policy("bart")
    examples, batch = batch_for(policy, tiny_data)
    args = settings("avg+semi_offline", num_samples=2, max_completion_length=6)
    output = run(policy, examples, batch, args)[1]
    assert [term.name for term in output.terms] == ["mle", "avg/rl", "semi_offline/rl"]
    assert {"avg/reward", "semi_offline/reward", "mask_rate", "sample_length"} <= set(output.all_metrics())
    rows = output.completions()
    assert {row["method"] for row in rows} == {"avg", "semi_offline"}
    assert len({tuple(row) for row in rows}) == 1, "one table: the same columns in every row"


def test_gold_takes_the_mle_term_of_the_other(tiny_policy, tiny_data, settings, tmp_path):
    policy = tiny_policy("bart")
    examples, batch = batch_for(policy, tiny_data)
    method, output = run(policy, examples, batch, settings("gold + mft"))
    assert [term.name for term in output.terms] == ["gold", "mle"]
    method.save(tmp_path)
    method.load(tmp_path)


def test_costs_add_up(tiny_policy, tiny_data, settings):
    policy = tiny_policy("bart")
    examples, batch = batch_for(policy, tiny_data)
    run(policy, examples, batch, settings("brio+semi_offline", num_samples=2))
    policy.meter.add_inputs(4)
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["calls"]) == (2 + 1, 2, 2 / 4)


@pytest.mark.parametrize("name", ["gold", "dpo", "best_of_n"])
def test_what_has_no_mle_term_takes_that_of_mft(tiny_policy, tiny_data, settings, name):
    policy = tiny_policy("bart")
    examples, batch = batch_for(policy, tiny_data)
    found = {term.name: term.total for term in run(policy, examples, batch, settings(f"{name}+mft"))[1].terms}
    assert set(found) == {name, "mle"}
    [alone] = run(policy, examples, batch, settings("mft"))[1].terms
    assert torch.allclose(found["mle"], alone.total)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brio+semi_ofline", "unknown method 'semi_ofline'. Did you mean 'semi_offline'"),
        ("brio+", "unknown method ''"),
        ("avg+avg", "same method twice"),
        ("ft+mft", "two MLE terms"),
        ("ft+brio", "an MLE term that the other"),
        ("avg+brio+gold", "at most two can be combined"),
    ],
)
def test_what_cannot_be_combined_is_told_in_one_line(settings, name, message):
    with pytest.raises(UserError, match="method") as caught:
        settings(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["actor_critic", "gold+brio", "avg+semi_offline", "self_critic", "gold+semi_offline", "dpo+mft", "best_of_n+brio"],
)
def test_the_trainer_stops_and_goes_on_exactly(tiny_policy, tiny_data, settings, tmp_path, name):
    """Four steps, or two and, from the checkpoint, two more: the same weights, critic and start rewards included."""
    rows = tiny_data.to_list()
    for n, row in enumerate(rows):
        row |= {"candidates": [rows[n - 1]["completion"], row["completion"]], "candidate_rewards": [0.1, 0.9]}
    data = type(tiny_data).from_list(rows)

    def trainer(folder):
        args = settings(
            name, max_steps=4, save_steps=2, save_total_limit=3, per_device_train_batch_size=4, learning_rate=1e-2,
            max_prompt_length=40, max_completion_length=8, disable_tqdm=True, logging_steps=1, eval_metrics=[],
            **({"num_samples": 2} if "semi_offline" in name else {}),
        )  # fmt: skip
        args.output_dir = str(folder)
        return SemiOfflineTrainer(tiny_policy("bart"), length, args, data)

    straight = trainer(tmp_path / "straight")
    straight.train()
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))
    ours, theirs = resumed.policy.state_dict(), straight.policy.state_dict()
    assert ours.keys() == theirs.keys()
    assert ("value_head.weight" in ours) == (name == "actor_critic")
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
    log = [entry for entry in straight.state.log_history if "loss" in entry]
    assert all("cost/forward_passes" in entry for entry in log)
    fine_tuning = [key for key in log[0] if key.startswith("loss/") and key.endswith("mle")]
    assert len(fine_tuning) == 1
    assert ("loss/dpo" in log[0]) == ("dpo" in name)
    assert ("loss/gold" in log[0]) == ("gold" in name)
