"""Rewards that misbehave: a command stops with one line, or goes on, and never hangs or ends well without a result."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from campaign import misbehaving
from campaign.commands import TEXT, TRAINING, flags
from campaign.conftest import Tally
from campaign.misbehaving import ENDS, GOES_ON, STOPS
from campaign.processes import Ended, run_command
from integration.toy import save_model

NAMES = [*STOPS, *GOES_ON, *ENDS]
LIMIT = 2.0
"""Seconds that a reward has. A process that cannot stop it ends some seconds later."""
PATIENCE = 60.0
"""Seconds until a command counts as hung."""
SEED, SHARE = 24, 4
"""One in SHARE of the rewards is tried where it is not trained on in the simplest way."""
REWARD = f"{Path(misbehaving.__file__)}:"
DATA: dict[str, Any] = {"task": "ads", "limit": 4, "eval_limit": 2, "output_dir": "run", "reward_timeout": LIMIT}
TRAIN = DATA | TRAINING | {"num_samples": 2, "per_device_train_batch_size": 2, "max_steps": 2}
COMMANDS: dict[str, tuple[list[str], str]] = {
    # what stands before the reward, and the file that says that it went well
    "train": (["train", "semi_offline", *flags(TRAIN | TEXT), "--reward"], "result.json"),
    "train beside workers": (
        ["train", "semi_offline", *flags(TRAIN | TEXT | {"reward_workers": 2}), "--reward", "rouge1"],
        "result.json",
    ),
    "evaluate": (["evaluate", *flags(DATA | TEXT | {"split": "validation"}), "--metrics"], "result.json"),
    "candidates": (
        ["candidates", *flags(DATA | TEXT | {"strategy": "sampling", "num_candidates": 2}), "--reward"],
        "candidates.jsonl",
    ),
}
ELSEWHERE = [
    (command, name)
    for command in COMMANDS
    if command != "train"
    for name in random.Random(f"{SEED} {command}").sample(NAMES, len(NAMES) // SHARE)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("rewards") / "model")


def problem_of(name: str, ended: Ended, result: Path) -> str:
    """What is wrong with how a command has ended; nothing where it is as documented."""
    if ended.code is None:
        return "hangs"
    if name in GOES_ON:
        return "" if ended.code == 0 and result.exists() and "Traceback" not in ended.printed else "does not go on"
    if ended.code == 0 or result.exists():
        return "ends as if all was well"
    if name in ENDS:
        return ""
    told = ended.code == 2 and len(ended.errors) == 1 and name in ended.errors[0] and len(ended.errors[0]) < 1300
    return "" if told and "Traceback" not in ended.printed else "does not stop with one line"


def check(command: str, name: str, model: Path, folder: Path, tally: Tally) -> None:
    words, result = COMMANDS[command]
    ended = run_command([*words, REWARD + name, "--model", str(model)], folder, folder / "output", PATIENCE)
    problem = problem_of(name, ended, folder / "run" / result)
    tally(f"{command}: rewards that misbehave", {"": "handled", "hangs": "hung"}.get(problem, "lost"))
    assert not problem, f"{name} {problem}: exit code {ended.code}, {ended.printed[-3000:]}"


def test_there_are_many_rewards_of_each_kind() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 60
    assert min(map(len, (STOPS, GOES_ON, ENDS))) >= 5


@pytest.mark.parametrize(
    "name", ["returns_tensors_of_two", "sleeps_async", "raises_system_exit_async", "changes_the_folder"]
)
def test_some_rewards_that_misbehave_in_training(name: str, model: Path, tmp_path: Path, tally: Tally) -> None:
    check("train", name, model, tmp_path, tally)


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_rewards_that_misbehave_in_training(name: str, model: Path, tmp_path: Path, tally: Tally) -> None:
    check("train", name, model, tmp_path, tally)


@pytest.mark.campaign
@pytest.mark.parametrize(("command", "name"), ELSEWHERE)
def test_rewards_that_misbehave_elsewhere(command: str, name: str, model: Path, tmp_path: Path, tally: Tally) -> None:
    check(command, name, model, tmp_path, tally)
