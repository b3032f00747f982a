"""Batches that are repeated with a stored rollout: the order of the rows, what is kept, checkpoints."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.integration.toy import build_rows, build_trainer, build_uneven_rows, read_log, train, weights

from semioffline.algorithm.tensors import Batch, Text
from semioffline.data.order import Repeated, Sequential, Shuffled
from semioffline.errors import UserError
from semioffline.training.rollouts import Rollouts

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"max_completion_length": 12, "num_iterations": 3}
OWN = {"grpo": {"num_samples": 2}, "ppo": {"critic_learning_rate": 0.05, "critic_warmup_steps": 2}}


def batch_of(*rows: int) -> Batch:
    text = Text(torch.zeros(1, 1).long(), torch.ones(1, 1).bool(), torch.zeros(1, 1).long())
    return Batch(torch.tensor(rows), text, text, text, {})


def test_the_rows_of_a_step_come_several_times_in_a_row():
    order = Repeated(Sequential(5, 0), 5, together=2, times=3)
    assert list(order) == [0, 1] * 3 + [2, 3] * 3 + [4, 0] * 3
    assert len(order) == 18


def test_each_epoch_has_an_order_of_its_own():
    order = Repeated(Shuffled(50, 7), 50, together=10, times=2)
    first = list(order)
    assert sorted(first) == sorted([*range(50)] * 2)
    assert list(order) == first
    order.set_epoch(1)
    assert list(order) != first


def test_fewer_rows_than_a_step_fill_it():
    assert list(Repeated(Sequential(3, 0), 3, together=8, times=1)) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_rollout_is_kept_while_its_batch_is_repeated(tmp_path: Path):
    """Two micro-batches a step, three steps; then new ones. A checkpoint in between has them."""
    made, rollouts = [], Rollouts(3)

    def roll_out(batch: Batch) -> dict[str, torch.Tensor]:
        made.append(batch.index.tolist())
        return {"rewards": torch.full((2, 1), float(len(made)))}

    for step in range(3):
        for rows, number in (((4, 2), 1.0), ((0, 5), 2.0)):
            found = rollouts.attach(batch_of(*rows), step, roll_out)
            assert found.rollout["rewards"][0].item() == number
        rollouts.save(tmp_path / str(step), 0, step + 1) if (tmp_path / str(step)).mkdir() is None else None
    assert made == [[4, 2], [0, 5]]
    assert rollouts.attach(batch_of(4, 2), 3, roll_out).rollout["rewards"][0].item() == 3.0
    assert [path.name for path in sorted(tmp_path.glob("*/*"))] == ["rollouts-0.safetensors"] * 2
    other = Rollouts(3)
    other.load(tmp_path / "1", 0, 2)
    assert other.attach(batch_of(0, 5), 2, roll_out).rollout["rewards"][0].item() == 2.0
    other.load(tmp_path / "2", 0, 3)  # there is nothing to read: the next step makes its own
    with pytest.raises(UserError, match="is missing"):
        other.load(tmp_path / "2", 0, 4)


@pytest.mark.parametrize("kind", ["bart", "llama", "t5"])
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_run_goes_on_in_the_middle_of_a_rollout(name: str, kind: str, tmp_path: Path) -> None:
    """Killed after 4 or 5 of 8 steps, three on each batch: the same weights, the critic's too, and the same log."""
    rows = build_rows(24)
    settings = {"rows": rows, "kind": kind, "method": name, "max_steps": 8, "optim": "adamw_torch"} | SHORT | OWN[name]
    settings |= {"learning_rate": 0.01, "save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 2}
    settings |= {"per_device_train_batch_size": 4}
    whole = train(tmp_path / "whole", **settings)
    for last in (4, 5):
        part = tmp_path / f"part-{last}"
        shutil.copytree(tmp_path / "whole", part)
        for step in range(last + 1, 9):
            shutil.rmtree(part / f"checkpoint-{step}")
        resumed = train(part, resume=True, **settings)
        for key, value in whole.policy.state_dict().items():
            assert torch.equal(resumed.policy.state_dict()[key], value), key
        lines = [[{k: v for k, v in line.items() if "time" not in k and "per_second" not in k and "runtime" not in k}
                  for line in read_log(folder)] for folder in (tmp_path / "whole", part)]  # fmt: skip
        assert lines[0] == lines[1]


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_samples_change_with_the_batch_only(name: str, tmp_path: Path) -> None:
    """Three steps on the samples of the first, then on others: their reward says so. The policy moves in each."""
    trainer = train(tmp_path, method=name, max_steps=6, rows=build_uneven_rows(16), **SHORT, **OWN[name])
    rewards = [line["reward"] for line in read_log(tmp_path) if "loss" in line]
    assert rewards[:3] == [rewards[0]] * 3
    assert rewards[3:] == [rewards[3]] * 3
    assert rewards[0] != rewards[3]
    assert trainer.state.global_step == 6
    cost = trainer.policy.meter.per_input()
    assert (cost["mle_rows"], cost["grad_rows"]) == (1, OWN[name].get("num_samples", 1))
    many = OWN[name].get("num_samples", 1)
    assert cost["forward_passes"] == pytest.approx(many * 13 / 3), "12 tokens and one row to score, every third step"


def test_an_epoch_has_every_row_once(tmp_path: Path) -> None:
    trainer = build_trainer(tmp_path, method="grpo", rows=build_rows(20), num_train_epochs=2, max_steps=-1, **SHORT)
    trainer.train()
    assert trainer.state.global_step == 2 * 3 * 3  # 20 rows in steps of 8, each three times


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_methods_that_roll_out_combine_with_others(name: str, tmp_path: Path) -> None:
    trainer = train(tmp_path, method=f"{name}+semi_offline", **SHORT, num_samples=2)
    assert all(weight.isfinite().all() for weight in weights(trainer).values())
    line = next(line for line in read_log(tmp_path) if "loss" in line)
    assert {f"loss/{name}/rl", "loss/semi_offline/rl", f"{name}/reward"} <= line.keys()
