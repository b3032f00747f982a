"""What the README shows must work."""

import json
from pathlib import Path

import pytest

from pages import blocks, check_commands
from semioffline.tasks.ads import build, build_model, build_tokenizer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MODEL = "facebook/bart-base"


@pytest.fixture
def model(tmp_path):
    build_model().save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_the_example_runs(tmp_path, monkeypatch, model):
    """With a tiny model in place of the real one, and two steps."""
    [code] = blocks(README, "python")
    assert MODEL in code
    rows = build({"train": 8})["train"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    short = "max_steps=2, use_cpu=True, disable_tqdm=True, "
    code = code.replace(MODEL, model)
    for name in ("MFTConfig(", "SemiOfflineConfig("):
        code = code.replace(name, f"{name}{short}")
    exec(code, {})
    assert list((tmp_path / "run-rl").glob("checkpoint-*"))


def test_the_commands_parse(model):
    """Every command line of the README has a known command and known flags."""
    check_commands(README)
