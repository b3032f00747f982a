"""rl_ratio: the RL gradient beside the MLE gradient, whatever the reward's scale."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from integration.toy import build_config, build_rows, build_trainer, read_log, train, weights
from semioffline.errors import UserError
from semioffline.methods.shared.registry import config_class
from semioffline.tasks.ads import click_rate
from semioffline.training.balance import FIRST, STEPS, Balance, _Measured

SETTINGS: dict[str, Any] = {"rows": build_rows(32), "learning_rate": 0.05}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_log(folder) if "loss" in line]


def test_the_weight_follows_from_the_norms():
    """Norms 3 and 8 at weight 2: at weight 1 the RL term has 4, so 3 / 4 makes them equal, and 3 / 2 twice as large."""
    balance = Balance(ratio=2.0)
    assert balance.weight() == FIRST
    rl = balance.measured["rl"] = _Measured(steps=1, mle=3.0, own=4.0)
    assert balance.weight() == 1.5
    balance.add(torch.tensor([9.0, 36.0, 0.0]))  # 6 at weight 1.5: 4 again
    assert balance.weight() == pytest.approx(1.5)
    for nothing in ([0.0, 1.0, 0.0], [1.0, 0.0, 1.0]):
        balance.add(torch.tensor(nothing))
    assert rl.steps == 2


def test_the_first_steps_find_the_weight(tmp_path: Path) -> None:
    trainer = train(tmp_path, rl_ratio=1.0, max_steps=STEPS + 4, **SETTINGS)
    log = lines(tmp_path)
    found = [line["rl_weight"] for line in log]
    assert found[0] == FIRST
    assert len({round(w, 12) for w in found[STEPS:]}) == 1  # then it stays
    assert found[-1] == pytest.approx(trainer.balance.weight())
    ratios = [line["grad/rl"] / line["grad/mle"] for line in log[1:STEPS]]
    assert 0.5 < sum(ratios) / len(ratios) < 2.0
    assert log[0]["grad/rl"] / log[0]["grad/mle"] < 1e-3


def test_the_scale_of_the_reward_does_not_matter(tmp_path: Path) -> None:
    def large(**columns: Any) -> list[float]:
        return [1000 * value for value in click_rate(**columns)]

    one = train(tmp_path / "a", rl_ratio=0.5, max_steps=6, reward=click_rate, **SETTINGS)
    other = train(tmp_path / "b", rl_ratio=0.5, max_steps=6, reward=large, **SETTINGS)
    assert one.balance.weight() == pytest.approx(1000 * other.balance.weight(), rel=0.03)
    for name, value in weights(one).items():
        torch.testing.assert_close(value, weights(other)[name], rtol=1e-2, atol=2e-3)


def test_micro_batches_make_one_measurement(tmp_path: Path) -> None:
    whole = train(tmp_path / "a", rl_ratio=1.0, max_steps=3, per_device_train_batch_size=8, **SETTINGS)
    parts = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    split = train(tmp_path / "b", rl_ratio=1.0, max_steps=3, **parts, **SETTINGS)
    assert (whole.balance.measured["rl"].steps, split.balance.measured["rl"].steps) == (3, 3)
    assert split.balance.weight() == pytest.approx(whole.balance.weight(), rel=1e-3)


def test_methods_without_a_reward_have_nothing_to_balance(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown setting of mft 'rl_ratio'"):
        train(tmp_path, method="mft", rl_ratio=1.0, max_steps=2)
    trainer = train(tmp_path, method="mft", max_steps=2)
    assert trainer.balance is None
    assert "rl_weight" not in lines(tmp_path)[-1]


@pytest.mark.parametrize("method", ["avg", "self_critic", "actor_critic"])
def test_other_methods_with_an_rl_term_are_balanced_too(method: str, tmp_path: Path) -> None:
    train(tmp_path, method=method, rl_ratio=1.0, max_steps=4, max_completion_length=8, **SETTINGS)
    log = lines(tmp_path)
    assert 0.3 < log[-1]["grad/rl"] / log[-1]["grad/mle"] < 3.0


@pytest.mark.parametrize(("method", "terms"), [("brio", ["ranking"]), ("brio+semi_offline", ["ranking", "rl"])])
def test_the_ranking_term_has_a_weight_of_its_own(method: str, terms: list[str], tmp_path: Path) -> None:
    """Whatever ranking_weight says: each term's gradient is as large as that of the MLE term."""
    texts = build_rows(32).to_list()
    own = [
        {"candidates": [texts[n - c]["completion"] for c in range(4)], "candidate_rewards": [3, 2, 1, 0]}
        for n in range(32)
    ]
    rows = Dataset.from_list([row | candidates for row, candidates in zip(texts, own, strict=True)])
    for weight in (0.1, 10.0):
        settings = SETTINGS | {"rows": rows, "learning_rate": 1e-3, "ranking_weight": weight}
        train(tmp_path / str(weight), method=method, rl_ratio=1.0, max_steps=STEPS, **settings)
        log = lines(tmp_path / str(weight))
        for term in terms:
            ratios = [line[f"grad/{term}"] / line["grad/mle"] for line in log[1:]]
            assert 0.5 < sum(ratios) / len(ratios) < 2.0
            assert log[0][f"{term}_weight"] == FIRST
    assert lines(tmp_path / "0.1")[-1]["ranking_weight"] == lines(tmp_path / "10.0")[-1]["ranking_weight"]


@pytest.mark.parametrize("stopped", [4, STEPS + 2])
def test_a_resumed_run_has_the_same_weight(stopped: int, tmp_path: Path) -> None:
    settings = SETTINGS | {"rl_ratio": 1.0, "save_strategy": "steps", "save_steps": stopped, "max_steps": stopped + 3}
    whole = train(tmp_path, **settings)
    again = build_trainer(tmp_path, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stopped}"))
    assert again.balance.weight() == whole.balance.weight()
    assert all(torch.equal(a, b) for a, b in zip(weights(again).values(), weights(whole).values(), strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"rl_ratio": 0.0}, "must be above 0"), ({"rl_ratio": 1.0, "method": "avg+semi_offline"}, "set rl_weight")],
)
def test_mistakes(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        build_config(tmp_path, **settings)


def test_the_default_is_the_ratio_1_and_what_is_given_goes_first(tmp_path):
    def config(method="semi_offline", **given):
        found = config_class(method)(output_dir=str(tmp_path), use_cpu=True, **given)
        return found.rl_ratio, found.rl_weight

    assert config() == (1.0, None)
    assert config("avg") == (1.0, None)
    assert config(rl_weight=3.0) == (None, 3.0)
    assert config(rl_ratio=2.0, rl_weight=3.0) == (2.0, 3.0)
    assert config("brio+semi_offline") == (None, 5.0)
    assert config("gold+semi_offline") == (None, 5.0)
