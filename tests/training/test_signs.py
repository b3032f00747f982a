"""What the trainer logs for advice: real runs provoke it, from their predictions and outputs."""

import json
import math
from pathlib import Path

import pytest
from datasets import Dataset
from tests.integration.toy import build_rows, build_trainer

from semioffline.evaluation.signs import shared
from semioffline.evaluation.statistics import standard_error
from semioffline.training.diagnostics import find_problems


def run(folder: Path, **settings) -> list[dict]:
    build_trainer(folder, **({"max_steps": 3} | settings)).train()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def names(log: list[dict]) -> list[str]:
    return [finding.name for finding in find_problems(log)]


def test_a_model_that_never_saw_its_mask_token_is_told_from_its_predictions(tmp_path: Path) -> None:
    """Before and after M-FT, without a word about where the model comes from."""
    settings = {"learning_rate": 0.01, "optim": "adamw_torch", "per_device_train_batch_size": 16}
    start = build_trainer(tmp_path / "ft", method="ft", reward=None, rows=build_rows(200), max_steps=60, **settings)
    start.train()
    model = start.policy.model
    log = run(tmp_path / "before", model=model)
    assert "mask_token" in names(log)
    assert not any("mask_token/masked" in line for line in log[1:])  # once, before the first step
    masks = {"mle_mask_rate": 0.4, "mle_mask_share": 1.0}
    settings |= {"model": model, "rows": build_rows(200), "max_steps": 150} | masks
    taught = build_trainer(tmp_path / "mft", method="mft", reward=None, **settings)
    taught.train()
    assert "mask_token" not in names(run(tmp_path / "after", model=taught.policy.model))


def test_methods_without_masks_are_not_asked(tmp_path: Path) -> None:
    assert not any(name.startswith("mask_token") for line in run(tmp_path, method="avg") for name in line)


def test_cut_texts_are_in_the_first_line(tmp_path: Path) -> None:
    log = run(tmp_path / "cut", max_prompt_length=6)
    assert log[0]["truncated/prompts"] == 1.0
    assert "truncated" in names(log)
    assert not any("truncated/prompts" in line for line in log[1:])
    assert "truncated" not in names(run(tmp_path / "whole", max_prompt_length=40, max_completion_length=40))


def test_an_evaluation_that_has_no_reward_is_not_passed_over(tmp_path: Path) -> None:
    def never(completions, **columns):
        return [None] * len(completions)

    evaluated = {"dev": build_rows(4), "eval_strategy": "steps", "eval_steps": 3}
    log = run(tmp_path / "none", reward=never, **evaluated)
    [line] = [line for line in log if "eval_reward" in line]
    assert math.isnan(line["eval_reward"])
    assert line["eval_frac_reward_none"] == 1.0
    [finding] = [finding for finding in find_problems(log) if finding.name == "reward_missing"]
    assert "not a number" in finding.text
    assert "reward_missing" not in names(run(tmp_path / "some", **evaluated))


def test_an_evaluation_says_how_alike_and_how_long_the_texts_are(tmp_path: Path) -> None:
    texts = ["shop now", "shop now", "shop now", "buy"]
    rows = Dataset.from_list([{"prompt": f"price : ${n}", "completion": text} for n, text in enumerate(texts)])
    log = run(tmp_path, reward="rouge1", dev=rows, rows=rows, eval_strategy="steps", eval_steps=3)
    [line] = [line for line in log if "eval_reward" in line]
    assert line["eval_identical_references"] == 0.75
    assert line["eval_length_references"] == 7 / 4
    assert 0 <= line["eval_identical"] <= 1
    assert line["eval_reward_stderr"] == line["eval_rouge1_stderr"] >= 0


def test_texts_of_one_input_are_not_shared() -> None:
    assert shared(["a", "a", "b", "c"], ["1", "1", "2", "3"]) == 0
    assert shared(["a", "a", "b", "b"], ["1", "2", "3", "3"]) == 0.5


def test_a_standard_error_is_that_of_the_mean() -> None:
    assert standard_error([1.0, 2.0, 3.0, math.nan]) == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(standard_error([1.0]))
