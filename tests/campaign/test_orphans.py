"""No process outlives the one that started it, however that ends: every command that runs for long, every signal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from campaign.commands import TEXT, TRAINING, flags
from campaign.conftest import Tally
from campaign.processes import session, start_command
from integration.toy import save_model

CHILD = """
import threading, time
from semioffline.cli.child import end_with_parent
threading.Thread(target=end_with_parent, daemon=True).start()
print("started", flush=True)
time.sleep(60)
"""
PARENT = """
import sys, threading, time
from pathlib import Path
from semioffline.engines.processes import Children
children = Children()
run = ([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
threading.Thread(target=children.run, args=run, daemon=True).start()
time.sleep(60)
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
SOON = 15.0
"""Seconds until all processes must have ended."""


class Long(NamedTuple):
    """A command that runs until a signal comes."""

    words: str
    settings: dict[str, Any]
    ready: str
    """A pattern for what it writes into its folder, after which it is under way."""
    processes: int
    """How many it is then, with those that it has started."""


ADS = {"task": "ads", "limit": 24, "eval_limit": 4, "output_dir": "run"}
STEPS = ADS | TRAINING | {"max_steps": 100_000, "logging_steps": 1, "save_strategy": "no", "reward": "rouge1"}
COMPARE = TRAINING | {"task": "ads", "limit": 24, "output_dir": "run", "start_steps": 2, "budget_steps": 5000}
COMPARE |= {"eval_metrics": "rouge1", "reward": "rouge1", "logging_steps": 1}
COMMANDS: dict[str, Long] = {
    "train": Long("train semi_offline --model model", STEPS | TEXT, "metrics.jsonl", 1),
    "train, 1 worker": Long(
        "train semi_offline --model model", STEPS | TEXT | {"reward_workers": 1}, "metrics.jsonl", 2
    ),
    "train, 2 workers": Long(
        "train semi_offline --model model", STEPS | TEXT | {"reward_workers": 2}, "metrics.jsonl", 4
    ),
    "evaluate": Long("evaluate --model model", ADS | TEXT | {"limit": 5000, "shard_size": 1}, "outputs/*.json", 1),
    "candidates": Long(
        "candidates --model model",
        ADS | TEXT | {"limit": 5000, "shard_size": 1, "num_candidates": 8},
        "shards/*.jsonl",
        1,
    ),
    "compare": Long(
        "compare --methods semi_offline avg",
        COMPARE | {"reward_workers": 2},
        "runs/semi_offline-seed0/metrics.jsonl",
        4,
    ),
    "compare --jobs 2": Long(
        "compare --methods semi_offline avg",
        COMPARE | {"jobs": 2, "reward_workers": 1},
        "runs/[as]*-seed0/metrics.jsonl",
        4,
    ),
    "demo": Long("demo", {"output_dir": "run", "mft_steps": 100_000}, "config.yaml", 1),
    "bench": Long("bench --small", {"output_dir": "run", "steps": 100_000}, "", 1),
}


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """Processes with sessions of their own, which a test may leave."""
    processes: list[Any] = []
    yield processes
    for process in processes:
        for number in session(process.pid):
            os.kill(number, signal.SIGKILL)


def wait(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_process_ends_with_its_parent(started: list[Any], tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(log)], start_new_session=True)
    started.append(process)
    wait(lambda: log.exists() and "started" in log.read_text(), 60, "the child does not start")
    assert len(session(process.pid)) == 2
    process.kill()
    process.wait()
    wait(lambda: not session(process.pid), 5, "the child goes on")


def start(name: str, folder: Path, started: list[Any]) -> Any:
    """Under way, with all the processes that it starts."""
    one = COMMANDS[name]
    if "--model" in one.words:
        save_model(folder / "model")
    process = start_command([*one.words.split(), *flags(one.settings)], folder, folder / "output")
    started.append(process)

    def is_ready() -> bool:
        assert process.is_alive(), (folder / "output").read_text()
        written = not one.ready or any((folder / "run").glob(one.ready))
        return written and len(session(process.pid)) >= one.processes

    wait(is_ready, 120, f"{name} does not start")
    return process


def check_ends(process: Any, what: str, tally: Tally) -> None:
    process.join(SOON)
    hung = process.is_alive()
    try:
        wait(lambda: not session(process.pid), SOON, "processes are left")
    except AssertionError:
        tally(what, "hung" if hung else "lost")
        raise
    tally(what, "handled" if process.exitcode != 0 else "lost")
    assert process.exitcode != 0, "it ends as if all was well"


@pytest.mark.campaign
@pytest.mark.parametrize("sent", SIGNALS, ids=lambda sent: sent.name)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_left_after_a_signal(
    name: str, sent: signal.Signals, started: list[Any], tmp_path: Path, tally: Tally
) -> None:
    process = start(name, tmp_path, started)
    os.kill(process.pid, sent)
    check_ends(process, "signals, all commands", tally)


@pytest.mark.campaign
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=lambda sent: sent.name)
@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name].processes > 1])
def test_nothing_is_left_after_a_signal_when_a_child_is_stopped(
    name: str, sent: signal.Signals, started: list[Any], tmp_path: Path, tally: Tally
) -> None:
    """SIGSTOP: it sees no closed pipe. Linux continues and ends it, because its group has lost its parent."""
    process = start(name, tmp_path, started)
    for number in session(process.pid):
        if number != process.pid:
            os.kill(number, signal.SIGSTOP)
    os.kill(process.pid, sent)
    check_ends(process, "signals, with children that are stopped", tally)


@pytest.mark.campaign
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda sent: sent.name)
@pytest.mark.parametrize("moment", [0.0, 0.3, 1.0])
def test_nothing_is_left_after_a_signal_while_a_command_starts(
    moment: float, sent: signal.Signals, started: list[Any], tmp_path: Path, tally: Tally
) -> None:
    one = COMMANDS["train, 2 workers"]
    save_model(tmp_path / "model")
    process = start_command([*one.words.split(), *flags(one.settings)], tmp_path, tmp_path / "output")
    started.append(process)
    wait(lambda: session(process.pid), 60, "there is no session")
    time.sleep(moment)
    os.kill(process.pid, sent)
    check_ends(process, "signals, while a command starts", tally)
