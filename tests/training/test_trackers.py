"""Reward functions that log as in TRL, and completions as tables in trackers."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
from tests.integration.toy import build_rows, build_trainer

from semioffline.scoring.reward_set import RewardSet
from semioffline.training.trackers import as_markdown


def test_a_reward_may_read_the_state_and_log(tmp_path: Path) -> None:
    steps = []

    def reward(completions, trainer_state, log_metric, log_extra, **columns):
        steps.append(trainer_state.global_step)
        log_metric("short", len(completions))
        log_extra("first_word", [text.split()[0] if text else "" for text in completions])
        return [float(len(text)) for text in completions]

    build_trainer(tmp_path, reward=reward, logging_steps=1, max_steps=3).train()
    assert steps == [0, 1, 2]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["short"] for line in lines if "loss" in line] == [8 * 4] * 3
    rows = pyarrow.parquet.read_table(tmp_path / "completions/step-2.parquet").to_pylist()
    assert [row["first_word"] for row in rows] == [row["sample"].split()[0] if row["sample"] else "" for row in rows]


def test_functions_that_do_not_ask_get_columns_only(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def reward(completions, **columns):
        seen.append(set(columns))
        return [0.0] * len(completions)

    build_trainer(tmp_path, reward=reward, max_steps=1).train()
    assert not seen[0] & {"trainer_state", "log_metric", "log_extra"}


def test_outside_of_training_there_is_no_state(tmp_path: Path) -> None:
    def reward(completions, trainer_state, log_metric, **columns):
        log_metric("x", 1.0)
        assert trainer_state is None
        return [1.0] * len(completions)

    assert RewardSet(reward)({"completions": ["a"], "prompts": ["b"]})[0] == [1.0]
    trainer = build_trainer(tmp_path, reward="click_rate", dev=build_rows(2), eval_metrics=["rouge1"])
    assert trainer.evaluate()["eval_reward"] >= 0


def test_tensorboard_gets_completions(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    build_trainer(tmp_path, report_to="tensorboard", max_steps=2, logging_steps=1).train()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    assert "completions/text_summary" in events.Tags()["tensors"]
    assert len(events.Tensors("completions/text_summary")) == 2
    assert "train/reward" in events.Tags()["scalars"]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_other_trackers_get_a_table_by_their_own_call(name: str, tmp_path: Path, monkeypatch) -> None:
    """With a module in its place that has the calls of the real one and writes down what it is given."""
    calls: list[Any] = []
    module = SimpleNamespace(
        log=lambda given: calls.append(given["completions"]),
        log_table=lambda columns, artifact: calls.append((columns, artifact)),
        Table=lambda **given: given,
    )
    monkeypatch.setitem(sys.modules, name, module)
    trainer = build_trainer(tmp_path, report_to="none", max_steps=1)
    trainer.args.report_to = [name]
    trainer.train()
    [given] = calls
    columns = list(given["dataframe"] if name == "trackio" else given["columns"] if name == "wandb" else given[0])
    assert {"prompt", "masked_target", "sample", "reward", "advantage"} <= set(columns)


def test_a_table_in_markdown_keeps_hostile_text_in_its_cell() -> None:
    lines = as_markdown({"sample": ["a|b\n<script>"], "reward": [0.5]}).splitlines()
    assert lines[2] == "| a\\|b &lt;script&gt; | 0.5000 |"
