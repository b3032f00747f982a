"""Training on several nodes: the losses and weights of one process, with Ray and with torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

from safetensors.torch import load_file
from tests.engines.clusters import ray_flags
from tests.integration.toy import build_uneven_rows, read_log, save_model

from semioffline.cli import main

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
STEPS = 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    save_model(folder / "model")
    for split in ("train", "validation"):
        build_uneven_rows(24).to_json(folder / f"{split}.jsonl")
    return folder


def command(inputs: Path, output: Path, batch: int) -> list[str]:
    flags = f"train semi_offline --data_dir {inputs} --model {inputs / 'model'} --device cpu --reward click_rate "
    flags += f"--max_steps {STEPS} --save_steps 2 --logging_steps 1 --per_device_train_batch_size {batch} --optim sgd "
    flags += "--learning_rate 0.05 --lr_scheduler_type constant --max_prompt_length 24 --max_completion_length 16 "
    flags += f"--num_samples 4 --rl_weight 1 --report_to none --eval_metrics rouge1 --output_dir {output}"
    return flags.split()


@pytest.fixture(scope="module")
def alone(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert main(command(inputs, folder, 8)) == 0
    return folder


def check_same(folder: Path, alone: Path) -> None:
    """The losses of each step, the weights and the predictions."""
    losses = [[line["loss"] for line in read_log(run) if "loss" in line] for run in (folder, alone)]
    assert len(losses[0]) == STEPS
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    ours, theirs = (load_file(run / "model" / "model.safetensors") for run in (folder, alone))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)
    predictions = [(run / "predictions.jsonl").read_text() for run in (folder, alone)]
    assert predictions[0] == predictions[1]


def test_two_workers_train_as_one_process_does(cluster: Any, inputs: Path, alone: Path, tmp_path: Path) -> None:
    assert main([*command(inputs, tmp_path / "run", 4), *ray_flags(cluster)]) == 0
    check_same(tmp_path / "run", alone)
    assert (tmp_path / "run" / "report.html").exists()


def test_an_error_for_the_user_is_not_tried_again(
    cluster: Any, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    argv = command(inputs, tmp_path / "run", 4)
    argv[argv.index("click_rate")] = "no_such_reward"
    assert main([*argv, *ray_flags(cluster)]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("semioffline: error:")]
    assert len(errors) == 1
    assert "the worker on node" in errors[0]
    assert "unknown reward 'no_such_reward'" in errors[0]


def test_torchrun_on_two_nodes(inputs: Path, alone: Path, tmp_path: Path) -> None:
    """Two launchers with --nnodes 2, as on two machines; gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = f"-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port {port}"
    argv = ["-m", "semioffline", *command(inputs, tmp_path / "run", 4)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    nodes = [
        subprocess.Popen(
            [sys.executable, *launch.split(), "--node-rank", str(rank), *argv],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], printed[0][-2000:] + printed[1][-2000:]
    check_same(tmp_path / "run", alone)
