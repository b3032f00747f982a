"""What people do with a trainer that they know from elsewhere, and where they slip."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.toy import KINDS, build_rows, build_trainer, save_model, train

from semioffline import SemiOfflineTrainer
from semioffline.cli import main
from semioffline.errors import UserError


def reward(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_no_weight(kind: str, tmp_path: Path) -> None:
    plain = train(tmp_path / "a", reward=reward, kind=kind, max_steps=2)
    saved = train(tmp_path / "b", reward=reward, kind=kind, max_steps=2, gradient_checkpointing=True)
    for (name, one), other in zip(plain.policy.named_parameters(), saved.policy.parameters(), strict=True):
        assert one.allclose(other, rtol=1e-4, atol=1e-6), name


def test_a_second_stage_counts_its_own_forward_passes(tmp_path: Path) -> None:
    """The README's example trains one policy twice."""
    start = train(tmp_path / "a", method="mft", max_steps=2)
    after = train(tmp_path / "b", reward=reward, max_steps=2, model=start.policy)
    assert after.policy is start.policy
    assert after.policy.meter.per_input()["forward_passes"] == 1


def test_early_stopping_takes_the_reward(tmp_path: Path) -> None:
    looks = {"eval_strategy": "steps", "eval_steps": 1, "early_stopping_patience": 1, "learning_rate": 0.0}
    trainer = train(tmp_path, reward=reward, max_steps=9, dev=build_rows(4), **looks)
    assert trainer.args.metric_for_best_model == "reward"
    assert trainer.state.global_step == 2  # the second look was no better


def test_batches_by_length_see_every_row_once(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.extend(prompts)
        return [0.0] * len(prompts)

    train(
        tmp_path,
        reward=look,
        max_steps=-1,
        num_train_epochs=1,
        num_samples=2,
        train_sampling_strategy="group_by_length",
    )
    assert len(set(seen)) == len(seen) // 2 >= 8


def test_a_huge_learning_rate_is_told_as_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"at step \d+ \(rows"):
        train(tmp_path, reward=reward, max_steps=4, learning_rate=1e30, max_grad_norm=1e30, warmup_steps=0)


def test_weights_that_the_last_step_has_broken_are_told(tmp_path: Path) -> None:
    """No loss is computed after it."""
    trainer = build_trainer(tmp_path, reward=reward, max_steps=1, save_strategy="steps", save_steps=1)
    next(trainer.policy.parameters()).register_hook(lambda gradient: torch.full_like(gradient, torch.nan))
    with pytest.raises(UserError, match="the weights are not finite after step 1"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_an_async_reward_may_keep_things_between_steps(tmp_path: Path) -> None:
    """A semaphore or an HTTP client belongs to the event loop that it was first used in."""
    gate = asyncio.Semaphore(1)

    async def slow(completions: list[str], **columns: Any) -> list[float]:
        async def one(text: str) -> float:
            async with gate:
                await asyncio.sleep(0)
                return float(len(text))

        return list(await asyncio.gather(*map(one, completions)))

    assert train(tmp_path, reward=slow, max_steps=3).state.global_step == 3


def test_rewards_get_token_ids_in_evaluation_too(tmp_path: Path) -> None:
    lengths: list[int] = []

    def look(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [0.0] * len(completions)

    trainer = train(tmp_path, reward=look, max_steps=1)
    lengths.clear()
    trainer.evaluate(build_rows(3))
    assert len(lengths) == 3
    assert min(lengths) > 0


def test_datasets_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    trainer = train(tmp_path, reward=reward, max_steps=1)
    assert len(trainer.prepare([{"prompt": "a", "completion": "b"}])) == 1
    with pytest.raises(UserError, match="generator"):
        trainer.prepare(row for row in [])


def test_evaluation_without_data_is_refused_in_front(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="eval_dataset"):
        train(tmp_path, reward=reward, max_steps=1, eval_strategy="steps", eval_steps=1)


def test_resume_does_not_turn_one_run_into_another(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = save_model(tmp_path / "model")
    flags = ["--task", "ads", "--limit", "8", "--model", str(model), "--device", "cpu", "--max_steps", "1"]
    flags += ["--output_dir", str(tmp_path / "run")]
    assert main(["train", "mft", *flags]) == 0
    assert "method   mft: 1 steps of 8 inputs" in capsys.readouterr().out
    before = (tmp_path / "run" / "result.json").read_text()
    assert main(["train", "semi_offline", *flags, "--resume"]) == 2
    assert "method: mft before, semi_offline now" in capsys.readouterr().err
    assert (tmp_path / "run" / "result.json").read_text() == before


def test_a_run_folders_settings_are_a_recipe(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    flags = ["--task", "ads", "--limit", "8", "--model", str(model), "--device", "cpu", "--max_steps", "1"]
    assert main(["train", "mft", *flags, "--output_dir", str(tmp_path / "a")]) == 0
    again = ["--config", str(tmp_path / "a" / "config.yaml"), "--output_dir", str(tmp_path / "b")]
    assert main(["train", "mft", *again]) == 0
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_one_file_is_training_data_only(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "oslo", "completion": "visit oslo"}) + "\n" for _ in range(4)))
    flags = ["--data_dir", str(rows), "--model", str(save_model(tmp_path / "model")), "--device", "cpu"]
    assert main(["train", "ft", *flags, "--max_steps", "1", "--output_dir", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "predictions.jsonl").exists()


def test_a_model_that_cannot_generate_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertForMaskedLM(BertConfig(vocab_size=20, **shape)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="both directions"):
        SemiOfflineTrainer(str(tmp_path))
