"""Advice about a run: which logs provoke it, which do not, and that it comes once."""

from typing import Any

import pytest

from semioffline.training.diagnostics import EVAL_RULES, TRAIN_RULES, Diagnostics, find_problems

Log = list[dict[str, float]]
HEALTHY = {"loss": 1.0, "grad/mle": 1.0, "grad/rl": 2.0, "frac_reward_zero_std": 0.1, "frac_reward_none": 0.0}
HEALTHY |= {"rewards/rouge/std": 0.1}
OUTPUTS = {"eval_length": 10.0, "eval_length_references": 10.0, "eval_repetition": 0.01, "eval_distinct": 0.9}
OUTPUTS |= {"eval_identical": 0.0, "eval_identical_references": 0.0, "eval_runtime": 1.0}


def steps(*rewards: float, **changes: float) -> Log:
    """Training lines with these rewards."""
    return [HEALTHY | {"step": n, "reward": reward} | changes for n, reward in enumerate(rewards, 1)]


def looks(*rewards: float, last: dict[str, float] | None = None) -> Log:
    """Evaluations with these rewards at the same steps; `last` changes the last one."""
    lines = [OUTPUTS | {"step": n, "eval_reward": value} for n, value in enumerate(rewards, 1)]
    return [*lines[:-1], lines[-1] | (last or {})]


def mixed(train: Log, evals: Log) -> Log:
    return sorted([*train, *evals], key=lambda line: line["step"])


RISING = (0.1, 0.2, 0.3, 0.4, 0.5)
CASES: dict[str, tuple[Log, Log]] = {
    "rl_gradient": (steps(*RISING, **{"grad/rl": 30.0}), steps(*RISING, **{"grad/rl": 30.0, "rl_weight": 2.0})),
    "equal_rewards": (
        steps(*RISING, frac_reward_zero_std=0.9),
        steps(*RISING, frac_reward_zero_std=1.0, reward_greedy=0.3),
    ),
    "reward_constant": (steps(0.5, 0.5, 0.5, **{"rewards/rouge/std": 0.0}), steps(0.5, 0.5, 0.5)),
    "reward_left_out": (steps(*RISING, frac_reward_none=0.3), steps(*RISING, frac_reward_none=0.01)),
    "truncated": (
        steps(*RISING, **{"truncated/prompts": 0.3, "truncated/completions": 0.0}),
        steps(*RISING, **{"truncated/prompts": 0.05, "truncated/completions": 0.01}),
    ),
    "mask_token": (
        steps(*RISING, **{"mask_token/plain": 1.0, "mask_token/masked": 2.9, "mask_token/wrong": 3.0}),
        steps(*RISING, **{"mask_token/plain": 1.0, "mask_token/masked": 2.0, "mask_token/wrong": 3.0}),
    ),
    "reward_missing": (mixed(steps(0.1), looks(float("nan"))), mixed(steps(0.1), looks(0.1))),
    "validation_falls": (
        mixed(steps(*RISING), looks(0.1, 0.5, 0.4, 0.3)),
        mixed(steps(*RISING), looks(0.1, 0.5, 0.4, 0.5)),
    ),
    "metric_falls": (
        mixed(steps(0.1, 0.2), [line | {"eval_bleu": 0.5 / line["step"]} for line in looks(0.1, 0.2)]),
        mixed(steps(0.1, 0.2), [line | {"eval_rouge": 0.5 / line["step"]} for line in looks(0.1, 0.2)]),  # rewarded
    ),
    "length_drift": (
        mixed(steps(0.1, 0.2), looks(0.1, 0.2, last={"eval_length": 20.0})),
        mixed(steps(0.1, 0.2), looks(0.1, 0.2, last={"eval_length": 20.0, "eval_length_references": 21.0})),
    ),
    "repetition": (
        mixed(steps(0.1, 0.2), looks(0.1, 0.2, last={"eval_repetition": 0.2})),
        mixed(steps(0.1, 0.2), looks(0.1, 0.2, last={"eval_repetition": 0.05})),
    ),
    "distinct": (
        mixed(steps(0.1, 0.2), looks(0.1, 0.2, last={"eval_distinct": 0.5})),
        mixed(steps(0.1, 0.2), looks(0.1, 0.2, last={"eval_distinct": 0.85})),
    ),
    "identical": (
        mixed(steps(0.1), looks(0.1, last={"eval_identical": 0.5})),
        mixed(steps(0.1), looks(0.1, last={"eval_identical": 0.5, "eval_identical_references": 0.4})),
    ),
}


def test_every_rule_has_a_log_that_provokes_it_and_one_that_does_not() -> None:
    assert CASES.keys() == TRAIN_RULES.keys() | EVAL_RULES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_log_with_the_sign_provokes_its_advice_and_a_similar_one_does_not(name: str) -> None:
    bad, good = CASES[name]
    found = find_problems(bad)
    assert [finding.name for finding in found] == [name]
    assert any(char.isdigit() for char in found[0].text) or name == "reward_missing"
    assert found[0].advice
    assert name not in [finding.name for finding in find_problems(good)]


def test_a_problem_that_stays_is_reported_once_with_the_step_where_it_was_seen() -> None:
    log = steps(*RISING * 4, **{"grad/rl": 30.0})
    [finding] = find_problems(log)
    assert finding.step == 3
    diagnostics = Diagnostics()
    assert [len(diagnostics.add(line)) for line in log] == [0, 0, 1, *[0] * 17]


def test_fine_tuning_may_change_the_outputs() -> None:
    """Without a reward there is nothing to hack: drift from the initial checkpoint is what was asked for."""
    train = [{"step": 1, "loss": 1.0, "loss/mle": 1.0}, {"step": 2, "loss": 0.5, "loss/mle": 0.5}]
    changed: dict[str, Any] = {"eval_length": 30.0, "eval_repetition": 0.5, "eval_distinct": 0.2, "eval_identical": 0.9}
    evals = [OUTPUTS | {"step": 1, "eval_rouge": 0.5}, OUTPUTS | changed | {"step": 2, "eval_rouge": 0.2}]
    assert find_problems(mixed(train, evals)) == []


def test_a_fall_within_chance_is_none() -> None:
    train = steps(*RISING)
    falls = looks(0.1, 0.5, 0.4, 0.4)
    wide = [line | {"eval_reward_stderr": 0.2} for line in falls]
    narrow = [line | {"eval_reward_stderr": 0.01} for line in falls]
    assert find_problems(mixed(train, wide)) == []
    assert [finding.name for finding in find_problems(mixed(train, narrow))] == ["validation_falls"]


def test_lines_of_other_versions_and_summaries_are_read() -> None:
    assert find_problems([]) == []
    assert (
        find_problems([{"step": 5, "train_loss": 0.3, "train_runtime": 2.0}, {"loss": 1.0}, {"eval_rouge1": 0.2}]) == []
    )
