"""Which checkpoints there are, and that a metric that is also the reward is measured once."""

import json
from pathlib import Path

import pytest
from tests.integration.toy import build_rows, build_trainer

from semioffline.config import MethodConfig
from semioffline.training.checkpoints import SaveByTime


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_the_last_checkpoint_is_kept_by_default(tmp_path: Path) -> None:
    assert MethodConfig.save_total_limit == 1
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    build_trainer(tmp_path, **settings).train()
    assert kept(tmp_path) == ["checkpoint-3"]


def test_a_long_run_saves_by_time_before_its_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 4 minutes here, and the first checkpoint would come after 500 steps."""
    now = iter(range(0, 10**6, 240))
    monkeypatch.setattr("semioffline.training.checkpoints.time.monotonic", lambda: float(next(now)))
    trainer = build_trainer(tmp_path, save_strategy="steps", save_steps=500, max_steps=4)
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in ("Console",):
            trainer.remove_callback(callback)
    trainer.train()
    assert "checkpoint-3" in kept(tmp_path)
    again = build_trainer(tmp_path, save_strategy="steps", save_steps=500, max_steps=4)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4


@pytest.mark.parametrize("settings", [{"save_strategy": "no"}, {"save_strategy": "steps", "save_minutes": None}])
def test_no_checkpoint_is_written_that_nobody_asked_for(settings: dict, tmp_path: Path) -> None:
    trainer = build_trainer(tmp_path, **settings, save_steps=500, max_steps=2)
    [callback] = [found for found in trainer.callback_handler.callbacks if isinstance(found, SaveByTime)]
    callback.saved = -1e9
    control = trainer.control
    callback.on_step_end(trainer.args, trainer.state, control)
    assert not control.should_save


def test_a_reward_that_is_named_as_a_metric_too_is_measured_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def good(completions, **columns):\n    return [1.0] * len(completions)\n")
    name = f"{tmp_path}/mine.py:good"
    settings = {"dev": build_rows(4), "eval_strategy": "steps", "eval_steps": 3, "eval_metrics": [name, "rouge1"]}
    build_trainer(tmp_path / "run", reward=name, **settings).train()
    [line] = [line for line in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
              if "eval_reward" in line]  # fmt: skip
    assert {"eval_good", "eval_rouge1"} <= line.keys()
    assert not any(name.startswith("eval_good_") and name != "eval_good_stderr" for name in line)
