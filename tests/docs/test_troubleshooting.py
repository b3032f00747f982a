"""The messages of the page are those that the commands print."""

import json
import threading
from pathlib import Path

import pytest
from tests.integration.toy import build_rows, save_model

from pages import blocks
from semioffline.cli import main
from semioffline.training.diagnostics import find_problems

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
SHOWN = [line for block in blocks(PAGE, "") for line in block.splitlines() if line.startswith("semioffline: error: ")]
REWARDS = """
import time
def one(completions, **columns):
    return [1.0]
def slow(completions, **columns):
    time.sleep(2)
    return [1.0] * len(completions)
"""
SITUATIONS = {
    "no column": "train mft --train_file articles.csv",
    "no train split": "train mft --data_dir empty",
    "needs --reward": "train semi_offline --data_dir data",
    "candidates": "train semi_offline --data_dir data --reward rouge --static_target worst",
    "unknown option": "train semi_offline --data_dir data --reward rouge --mask_ratio 0.3",
    "returned 1 values": "train semi_offline --data_dir data --reward rewards.py:one",
    "TimeoutError": "train semi_offline --data_dir data --reward rewards.py:slow --reward_timeout 1",
    "is nan": "train semi_offline --data_dir data --reward rouge --learning_rate 1e20 --max_grad_norm 0",
    "is not empty": "train ft --data_dir data --output_dir rl",
    "other settings": "train semi_offline --data_dir data --reward rouge --output_dir rl --resume --num_samples 4",
    "cannot load the model": "train mft --data_dir data --model facebook/no-such-model",
}
"""part of a message on the page -> the command that prints it"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a model, and a run of two steps in rl."""
    root = tmp_path_factory.mktemp("troubles")
    for name in ("data", "empty"):
        (root / name).mkdir()
    for split in ("train", "validation"):
        rows = build_rows(8).to_list()
        (root / f"data/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_model(root / "model")
    (root / "articles.csv").write_text("article,highlights\na b c,d e\n")
    (root / "rewards.py").write_text(REWARDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert main(with_flags("train semi_offline --data_dir data --reward rouge --output_dir rl")) == 0
    return root


def with_flags(command: str, output: str = "out") -> list[str]:
    short = "--device cpu --max_steps 2 --max_prompt_length 24 --max_completion_length 28 --disable_tqdm true"
    model = "" if "--model" in command else "--model model"
    samples = "--num_samples 2" if "semi_offline" in command and "--num_samples" not in command else ""
    place = "" if "--output_dir" in command else f"--output_dir {output}"
    return f"{command} {model} {samples} {place} {short}".split()


@pytest.mark.parametrize("part", SITUATIONS)
def test_the_page_has_the_message_of(part, folder, tmp_path, monkeypatch, capsys):
    """Up to what depends on the version or the place; a message may go on where the page stops."""
    [shown] = [line for line in SHOWN if part in line]
    monkeypatch.chdir(folder)
    assert main(with_flags(SITUATIONS[part], str(tmp_path / "out"))) == 2
    for thread in threading.enumerate():  # a reward that took too long puts the streams back when it ends
        if thread.name.startswith("reward "):
            thread.join()
    [printed] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("semioffline: error: ")]
    assert printed.replace("'empty'", "'data'").startswith(shown)


def test_every_message_of_the_page_is_tested():
    assert [line for line in SHOWN if not any(part in line for part in SITUATIONS)] == []


def test_the_page_has_the_words_of_the_diagnosis():
    line = {"loss": 1.0, "reward": 0.5, "frac_reward_zero_std": 0.8, "rewards/x/std": 0.1}
    [finding] = find_problems([line | {"step": step} for step in range(3)])
    assert finding.text in PAGE
