"""The tutorial runs from its first block to its last, and ends where it says. Minutes: make tutorial."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from pages import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


def run(tmp_path, monkeypatch, **steps: int) -> tuple[dict, str]:
    """The names that the blocks define, and what they print. steps: replaces max_steps=300 and max_steps=150."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(PAGE, "python"))
    for name, count in steps.items():
        written = f"max_steps={name.removeprefix('steps_')}"
        assert written in code
        code = code.replace(written, f"max_steps={count}")
    names: dict = {}
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return names, printed.getvalue()


def test_every_block_runs(tmp_path, monkeypatch):
    """With twenty steps in place of all, so that the log has a sample."""
    names, printed = run(tmp_path, monkeypatch, steps_300=20, steps_150=20)
    assert re.search(r"eval_liked +0\.\d{3} -> 0\.\d{3}", printed)
    assert names["loaded"].config.d_model == 64
    assert 0.1 < float(re.search(r"liked: (\S+)", printed)[1]) < 0.25  # "about one entry in six"


@pytest.mark.campaign
def test_the_reward_rises_and_the_facts_stay(tmp_path, monkeypatch):
    names, _ = run(tmp_path, monkeypatch)
    before, after = names["before"], names["after"]
    assert before["eval_liked"] < 0.4
    assert after["eval_liked"] > 0.9
    assert after["eval_correct"] > 0.95
    assert abs(after["eval_length"] - before["eval_length"]) < 1
