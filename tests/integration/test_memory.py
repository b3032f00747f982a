"""What saves memory works with every method: gradient checkpointing, LoRA, weights in bfloat16."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from toy import KINDS, build_model, build_uneven_rows, read_by, read_log, train, weights

METHODS = ["ft", "mft", "gold", "brio", "self_critic", "actor_critic", "avg", "semi_offline", "brio+semi_offline"]
METHODS += ["dpo", "best_of_n", "scheduled_sampling", "erpo", "raml", "spg"]
METHODS += ["grpo", "ppo", "ilql"]
QUICK = {"max_steps": 2, "num_iterations": 2, "num_samples": 2, "max_completion_length": 8}


@pytest.fixture(scope="module")
def rows() -> Dataset:
    """With candidates, for the methods that rank them."""
    made = build_uneven_rows(16).to_list()
    for n, row in enumerate(made):
        words = row["completion"].split()
        row["candidates"] = [" ".join(words[k:] or words) + " today" * k for k in range(2 + n % 2)]
        row["candidate_rewards"] = [1.0 - 0.3 * k for k in range(len(row["candidates"]))]
    return Dataset.from_list(made)


def run(folder: Path, kind: str, method: str, rows: Dataset, **settings: Any) -> Any:
    quick = read_by(method, QUICK)
    trainer = train(folder, kind=kind, method=method, rows=rows, reward="click_rate", **(quick | settings))
    log = [line for line in read_log(folder) if "loss" in line]
    assert len(log) == 2
    return trainer


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_changes_memory_only(kind: str, method: str, rows: Dataset, tmp_path: Path) -> None:
    """Activations are computed again in backward; the weights after two steps are the same."""
    saving = weights(run(tmp_path / "a", kind, method, rows, gradient_checkpointing=True))
    plain = weights(run(tmp_path / "b", kind, method, rows))
    for name, value in plain.items():
        torch.testing.assert_close(saving[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_train(kind: str, method: str, checkpointing: bool, rows: Dataset, tmp_path: Path) -> None:
    from peft import LoraConfig

    adapter = LoraConfig(r=2, target_modules="all-linear")
    trainer = run(tmp_path, kind, method, rows, peft_config=adapter, gradient_checkpointing=checkpointing)
    after = weights(trainer)
    moved = [name for name, value in after.items() if "lora_B" in name and value.abs().max() > 0]
    assert moved
    before = build_model(kind).state_dict()
    plain = {name.removeprefix("base_model.model.").replace("base_layer.", ""): v for name, v in after.items()}
    assert all(torch.equal(value, plain[name]) for name, value in before.items() if name in plain)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_weights_train(kind: str, method: str, rows: Dataset, tmp_path: Path) -> None:
    before = build_model(kind).to(torch.bfloat16)
    trainer = run(tmp_path, kind, method, rows, model=build_model(kind).to(torch.bfloat16))
    after = weights(trainer)
    assert {value.dtype for name, value in after.items() if "weight" in name} == {torch.bfloat16}
    changed = [name for name, value in before.state_dict().items() if not torch.equal(value, after[name])]
    assert len(changed) > len(after) // 2
    assert all(value.isfinite().all() for value in after.values())
