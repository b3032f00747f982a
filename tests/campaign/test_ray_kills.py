"""Workers and nodes of a Ray cluster are killed at random moments: the output is complete and the same."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from campaign.commands import checksum, compare_result
from campaign.conftest import Tally
from campaign.processes import Ended, run_command
from engines.clusters import STORE, ray_flags
from integration.toy import build_uneven_rows, save_model

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("ray")]
SLOW = """
import time
from semioffline.rewards.rouge import Rouge

rouge = Rouge("rouge1")


def slow(**columns):
    time.sleep(SECONDS)
    return rouge(**columns)
"""
SHARED = "--data_dir . --model model --device cpu --max_prompt_length 24 --max_completion_length 8"
SHARDS = "--batch_size 2 --shard_size 2"
TRAIN = "--learning_rate 0.01 --num_samples 4 --report_to none --rl_weight 1 --eval_metrics rouge1"
COMMANDS = {
    "candidates": f"candidates {SHARED} {SHARDS} --strategy sampling --num_candidates 2 --reward slow.py:slow",
    "evaluate": f"evaluate {SHARED} {SHARDS} --metrics slow.py:slow rouge2",
    "compare": f"compare {SHARED} {TRAIN} --methods avg semi_offline --reward slow.py:slow --start_steps 2 "
    "--budget_steps 12 --evaluations 1 --per_device_train_batch_size 4 --num_candidates 2 --log_completions false",
    "train": f"train semi_offline {SHARED} {TRAIN} --reward slow.py:slow --max_steps 16 --save_steps 2 "
    "--logging_steps 1 --per_device_train_batch_size 2 --gradient_accumulation_steps 2",
}
BEGUN = {"candidates": "shards/*.jsonl", "evaluate": "outputs/*.json", "compare": "runs/*/log.txt"}
BEGUN |= {"train": "checkpoint-*"}
"""The files that say that a command is under way."""
KILLS = {"candidates": 8, "evaluate": 8, "compare": 4, "train": 5}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    save_model(folder / "model", dropout=0.1)
    (folder / "slow.py").write_text(SLOW.replace("SECONDS", "0.1"))
    for split, number in (("train", 80), ("validation", 6), ("test", 80)):
        build_uneven_rows(number).to_json(folder / f"{split}.jsonl")
    return folder


def run(name: str, cluster: Any, inputs: Path, folder: Path) -> Ended:
    limit = ["--limit", "16"] if name == "compare" else []
    argv = [*COMMANDS[name].split(), *limit, *ray_flags(cluster), "--output_dir", str(folder)]
    return run_command(argv, inputs, folder.with_suffix(".txt"), patience=300)


def result(name: str, folder: Path) -> Any:
    if name == "compare":
        return compare_result(folder)
    if name == "train":
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return checksum(folder / "model" / "model.safetensors"), [line["loss"] for line in lines if "loss" in line]
    return (folder / {"candidates": "candidates.jsonl", "evaluate": "predictions.jsonl"}[name]).read_bytes()


@pytest.fixture(scope="module")
def undisturbed(cluster: Any, inputs: Path) -> dict[str, Any]:
    """name -> the result of a run in which nothing dies, made when it is first needed"""
    return {}


def workers(cluster: Any) -> list[int]:
    """The processes of actors, on all nodes."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            title = (path / "cmdline").read_text()
        except OSError:
            continue
        if parent in raylets and any(name in title for name in ("WorkerActor", "CommandActor", "RayTrainWorker")):
            found.append(int(path.name))
    return found


class Killer(threading.Thread):
    """Kills one worker, or one node with all that runs on it, when a command is under way."""

    def __init__(self, cluster: Any, folder: Path, begun: str, chance: random.Random, nodes_too: bool) -> None:
        super().__init__(daemon=True)
        self.cluster, self.folder, self.begun, self.chance, self.nodes_too = cluster, folder, begun, chance, nodes_too
        self.killed: str | None = None

    def run(self) -> None:
        early = self.chance.random() < 0.2  # while workers load
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if workers(self.cluster) and (early or any(self.folder.glob(self.begun))):
                break
            time.sleep(0.02)
        time.sleep(self.chance.uniform(0, 1.5))
        if self.nodes_too and self.chance.random() < 0.4:
            node = self.chance.choice(sorted(self.cluster.worker_nodes, key=lambda one: one.unique_id))
            for process in node.all_processes["raylet"]:
                os.kill(process.process.pid, signal.SIGKILL)
            self.killed = "a node"
            self.cluster.remove_node(node, allow_graceful=False)
        elif pids := workers(self.cluster):
            os.kill(self.chance.choice(sorted(pids)), signal.SIGKILL)
            self.killed = "a worker"


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, most in KILLS.items() for n in range(most)])
def test_a_kill_changes_nothing(
    name: str, number: int, cluster: Any, inputs: Path, undisturbed: dict[str, Any], tmp_path: Path, tally: Tally
) -> None:
    if name not in undisturbed:
        ended = run(name, cluster, inputs, inputs / f"whole-{name}")
        assert ended.code == 0, ended.printed[-2000:]
        undisturbed[name] = result(name, inputs / f"whole-{name}")
    folder = inputs / f"{name}-{number}"
    chance = random.Random(f"{name}/{number}")
    while len(cluster.worker_nodes) < 2:  # the test before has killed one
        cluster.add_node(num_cpus=1, **STORE)
    killer = Killer(cluster, folder, BEGUN[name], chance, nodes_too=name != "train")
    killer.start()
    ended = run(name, cluster, inputs, folder)
    killer.join(60)
    assert killer.killed, "the command ended before anything was killed"
    same = ended.code == 0 and result(name, folder) == undisturbed[name]
    what = f"Ray: {killer.killed} is killed, {name}"
    tally(what, "handled" if same else "hung" if ended.code is None else "lost")
    assert ended.code == 0, ended.printed[-2000:]
    assert same
