"""The examples run, and the pages on rewards say what works."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from pages import blocks, check_commands
from semioffline.rewards.registry import FAMILIES, load_reward
from semioffline.scoring.named import reward_names
from semioffline.scoring.reward_set import RewardSet

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "start.py")
PAGE = (ROOT / "docs" / "your-own-reward.md").read_text()
NAMES = (ROOT / "docs" / "rewards.md").read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    argv = [str(path), "--start_steps", "2", "--steps", "2", "--output_dir", str(tmp_path)]
    argv += ["--judge_steps", "2"] if path.stem == "model_reward" else []
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.syspath_prepend(str(path.parent))
    sys.modules.pop("start", None)
    runpy.run_path(str(path), run_name="__main__")
    assert re.search(r"reward +-?\d\.\d{3} -> +-?\d\.\d{3}", capsys.readouterr().out)
    assert (tmp_path / "metrics.jsonl").is_file()


def test_the_page_links_every_example():
    for path in EXAMPLES:
        assert f"examples/{path.name}" in PAGE


def test_the_page_names_every_reward():
    names = set(re.findall(r"`([\w:]+)", NAMES))
    missing = [name for name in reward_names() if name not in names]
    missing += [family for family in FAMILIES if not any(name.startswith(f"{family}:") for name in names)]
    assert not missing


def test_the_code_of_the_page_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(PAGE, "python"):
        exec(code, names)
    rows = {"prompts": ["p", "q"], "completions": ["buy this now", "a lamp"], "references": [["x"], ["a lamp"]]}
    for reward in (names["short"], names["Slogan"](["now"]), names["careful"]):
        sums, parts = RewardSet(reward)(rows)
        assert len(sums) == 2
        assert all(len(values) == 2 for values in parts.values())
    assert load_reward(names["Slogan"](["now"]))[0] == "slogan"
    sizes = []
    names["send"] = lambda completions: sizes.append(len(completions)) or [float(len(text)) for text in completions]
    assert RewardSet(names["quality"])(rows)[0] == [12.0, 6.0]  # in place of the service
    assert sizes == [2]


def test_the_commands_of_the_page_parse(tmp_path):
    check_commands(PAGE)
