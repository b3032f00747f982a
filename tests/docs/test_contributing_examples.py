"""The examples of CONTRIBUTING.md work: each block is written to a file of its package, as the page says."""

import json
from pathlib import Path

import pytest
from tests.integration.toy import build_rows, save_model

from pages import blocks
from semioffline import methods, tasks
from semioffline.cli import main
from semioffline.rewards import registry

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
METHOD, REWARD, REWARD_TEST, TASK = blocks(PAGE, "python")


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Data and flags of a run of two steps, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation"):
        rows = [{"article": row["prompt"], "headline": row["completion"]} for row in build_rows(8)]
        Path(f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = str(save_model(tmp_path / "model"))
    return ["--data_dir", ".", "--model", model, "--device", "cpu", "--max_steps", "2", "--max_prompt_length", "24"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """package(which, name, code): code as one more file of a package."""

    def add(which, name, code):
        folder = tmp_path / which.__name__
        folder.mkdir()
        (folder / f"{name}.py").write_text(code)
        monkeypatch.setattr(which, "__path__", [*which.__path__, str(folder)])

    return add


def test_the_method_trains(flags, package):
    package(methods, "focal", METHOD)
    columns = ["--columns", "prompt=article", "completion=headline"]
    own = ["--focus", "1", "--logging_steps", "1", "--max_completion_length", "28", "--output_dir", "run"]
    assert main(["train", "focal", *flags, *columns, *own]) == 0
    line = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[0])
    assert line["loss/focal"] > 0
    assert 0 < line["focal/weight"] < 1


def test_the_reward_gives_what_its_test_says(monkeypatch):
    names: dict = {}
    exec(REWARD, names)
    exec(REWARD_TEST, names)
    names["test_compression"]()
    monkeypatch.setitem(registry.REWARDS, "compression", lambda: names["compression"])
    name, reward = registry.load_reward("compression")
    assert name == "compression"
    assert reward.signature == "compression|tok:whitespace|v:1"


def test_the_task_trains(flags, package):
    package(tasks, "headlines", TASK)
    assert main(["train", "mft", "--task", "headlines", *flags, "--output_dir", "run"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert "rougeL" in json.dumps(result)
