"""Scoring beside the model changes the clock and nothing else."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import KINDS, build_rows, build_trainer, build_uneven_rows, read_log, train, weights

from semioffline.errors import UserError
from semioffline.scoring.scorer import Scorer

AWAY = {"overlap_rewards": True, "reward_workers": 2}
HERE = {"overlap_rewards": False, "reward_workers": 0}
TIMES = ("time/reward", "time/reward_wait", "time/step", "time/train")


def letters(completions: list[str], **kwargs: Any) -> list[float]:
    return [sum(map(ord, text)) % 11 / 11 for text in completions]


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    lines = [line for line in read_log(folder) if "loss" in line]
    return [{key: line[key] for key in line if key not in TIMES} for line in lines]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    "masks": {"mask_pattern": "span", "loss_scale": "sequence", "baseline": "leave_one_out"},
    "several": {"reward": ["rouge", letters, "click_rate"], "reward_weights": [0.5, 1.5, 1.0]},
    "callable": {"reward": letters, "temperature": 0.7},
    "on-policy": {"method": "avg", "max_completion_length": 8},
    "full": {"observation": "full", "mask_rate": 0.2},
    "bf16": {"bf16": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_identical_with_and_without(kind: str, case: str, tmp_path: Path) -> None:
    """Weights and logs, bit for bit."""
    settings = {"kind": kind, "rows": build_uneven_rows(16), "max_steps": 2, "reward": "click_rate"} | CASES[case]
    away = train(tmp_path / "away", **settings, **AWAY)
    here = train(tmp_path / "here", **settings, **HERE)
    assert all(torch.equal(a, b) for a, b in zip(weights(away).values(), weights(here).values(), strict=True))
    assert numbers(tmp_path / "away") == numbers(tmp_path / "here")
    assert numbers(tmp_path / "away")[0]["reward_std"] > 0
    assert (tmp_path / "away/completions/step-1.parquet").exists()


@pytest.mark.parametrize("case", ["plain", "masks", "accumulation"])
@pytest.mark.parametrize("kind", KINDS)
def test_rouge_where_the_samples_are_trains_the_same(kind: str, case: str, tmp_path: Path, monkeypatch: Any) -> None:
    """As on a GPU, here on the CPU: weights and logs, bit for bit."""
    settings = {"kind": kind, "rows": build_uneven_rows(16), "max_steps": 3, "reward": "rouge"} | CASES[case]
    here = train(tmp_path / "here", **settings, **HERE)
    with monkeypatch.context() as patched:
        patched.setattr(
            "semioffline.training.trainer.make_scorer",
            lambda policy, rewards, *others: Scorer(policy, rewards, on_device=True),
        )
        there = train(tmp_path / "there", **settings, **HERE)
    assert there.scorer._device_rewards
    assert all(torch.equal(a, b) for a, b in zip(weights(there).values(), weights(here).values(), strict=True))
    logged = numbers(tmp_path / "here")
    assert all(0 < line.pop("cost/reward_calls") <= 4 for line in logged)  # of texts, which a device does not read
    assert numbers(tmp_path / "there") == logged
    assert logged[0]["reward_std"] > 0


def test_the_model_goes_on_while_samples_are_scored(tmp_path: Path) -> None:
    """The reward function returns only when backward has begun: without overlap this would never end."""
    backward = threading.Event()

    def patient(completions: list[str], **kwargs: Any) -> list[float]:
        assert backward.wait(20), "nobody went on"
        backward.clear()
        return letters(completions)

    trainer = build_trainer(tmp_path, reward=patient, max_steps=2, **AWAY)
    run = trainer.accelerator.backward

    def start(loss: torch.Tensor, **kwargs: Any) -> None:
        loss.register_hook(lambda gradient: backward.set())
        run(loss, **kwargs)

    trainer.accelerator.backward = start
    trainer.train()
    log = [line for line in read_log(tmp_path) if "loss" in line]
    assert [line["step"] for line in log] == [1, 2]
    assert all(line["time/reward_wait"] <= line["time/step"] for line in log)


@pytest.mark.parametrize("settings", [AWAY, HERE], ids=["away", "here"])
def test_logits_that_are_not_finite_stop_training_before_the_optimizer_steps(settings: dict, tmp_path: Path) -> None:
    trainer = build_trainer(tmp_path, max_steps=3, per_device_train_batch_size=3, **settings)
    before = {name: value.clone() for name, value in weights(trainer).items()}
    head = trainer.policy.base.get_output_embeddings()
    head.register_forward_hook(lambda module, args, output: output * float("nan"))
    with pytest.raises(UserError, match=r"the loss is nan at step 0 \(rows \d+, \d+, \d+\)"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())


@pytest.mark.parametrize("settings", [AWAY, HERE], ids=["away", "here"])
def test_an_error_of_a_reward_stops_training_with_its_name(settings: dict, tmp_path: Path) -> None:
    def broken(completions: list[str], **kwargs: Any) -> list[float]:
        raise KeyError("nothing")

    with pytest.raises(UserError, match="the reward function 'broken' raised KeyError: 'nothing'"):
        train(tmp_path, reward=broken, max_steps=1, **settings)
    rows = build_rows(8).to_list()
    for row in rows:
        row["category"] = "submarines"
    with pytest.raises(UserError, match="the reward function 'click_rate' raised UserError: unknown category"):
        train(tmp_path, rows=rows, max_steps=1, **settings)  # type: ignore[arg-type]


def test_a_reward_that_takes_too_long_stops_training(tmp_path: Path) -> None:
    def stuck(completions: list[str], **kwargs: Any) -> list[float]:
        threading.Event().wait(20)
        return letters(completions)

    with pytest.raises(UserError, match=r"'stuck' raised TimeoutError: no answer after 0\.2 s"):
        train(tmp_path, reward=stuck, max_steps=1, reward_timeout=0.2, **AWAY)


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Workers do not import the user's program: training may stand at its top level."""
    script = tmp_path / "train.py"
    here = Path(__file__).parent
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(here)!r})\nfrom toy import train\n"
        f"train({str(tmp_path / 'run')!r}, reward='rouge', max_steps=2, overlap_rewards=True, reward_workers=2)\n"
        "print('trained')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines().count("trained") == 1
