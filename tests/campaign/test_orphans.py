"""No process outlives the one that started it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.commands import TRAINING, flags
from campaign.conftest import Tally
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
from semioffline.experiments.comparison import Children
children = Children()
run = ([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
threading.Thread(target=children.run, args=run, daemon=True).start()
time.sleep(60)
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def session(process: subprocess.Popen) -> list[int]:
    """The processes of its session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(number) == process.pid and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen]]:
    """Processes with sessions of their own, which a test may leave."""
    processes: list[subprocess.Popen] = []
    yield processes
    for process in processes:
        for number in session(process):
            os.kill(number, signal.SIGKILL)
        process.wait()


def wait(condition: object, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def check_ends(process: subprocess.Popen, sent: signal.Signals, seconds: float) -> None:
    process.send_signal(sent)
    process.wait(seconds)
    wait(lambda: not session(process), seconds, f"processes are left after {sent.name}")


def test_a_process_ends_with_its_parent(started: list, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(log)], start_new_session=True)
    started.append(process)
    wait(lambda: log.exists() and "started" in log.read_text(), 60, "the child does not start")
    assert len(session(process)) == 2
    check_ends(process, signal.SIGKILL, 5)


@pytest.mark.campaign
@pytest.mark.parametrize("sent", SIGNALS, ids=lambda sent: sent.name)
def test_runs_side_by_side_end_with_their_comparison(
    sent: signal.Signals, started: list, tmp_path: Path, tally: Tally
) -> None:
    settings = TRAINING | {"task": "ads", "limit": 24, "start_steps": 2, "budget_steps": 5000, "eval_metrics": "rouge1"}
    argv = ["compare", "--output_dir", str(tmp_path / "run"), "--methods", "semi_offline", "avg", "--jobs", "2"]
    command = [sys.executable, "-m", "semioffline", *argv, *flags(settings)]
    with open(tmp_path / "output", "wb") as output:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)
    started.append(process)
    runs = [tmp_path / f"run/runs/{method}-seed0/settings.json" for method in ("semi_offline", "avg")]
    wait(lambda: all(path.exists() for path in runs), 300, (tmp_path / "output").read_text())
    assert len(session(process)) == 3
    check_ends(process, sent, 10)
    tally(f"compare --jobs: {sent.name}", "handled")


@pytest.mark.campaign
@pytest.mark.parametrize("sent", SIGNALS, ids=lambda sent: sent.name)
def test_reward_workers_end_with_training(sent: signal.Signals, started: list, tmp_path: Path, tally: Tally) -> None:
    model = save_model(tmp_path / "model", "bart")
    settings = TRAINING | {"task": "ads", "limit": 24, "model": model, "max_steps": 100000, "reward_workers": 2}
    settings |= {"reward": "rouge1", "max_completion_length": 16, "logging_steps": 1, "save_strategy": "no"}
    command = [sys.executable, "-m", "semioffline", "train", "semi_offline", "--output_dir", str(tmp_path / "run")]
    with open(tmp_path / "output", "wb") as output:
        process = subprocess.Popen([*command, *flags(settings)], start_new_session=True, stdout=output, stderr=output)
    started.append(process)
    wait((tmp_path / "run/metrics.jsonl").exists, 300, (tmp_path / "output").read_text())
    assert len(session(process)) == 4  # one process deals out to two workers
    check_ends(process, sent, 10)
    tally(f"train with reward workers: {sent.name}", "handled")
