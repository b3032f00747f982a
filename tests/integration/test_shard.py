"""Parameters sharded over two processes (FSDP2): the losses, gradients and texts of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from shard_worker import METHODS, build_policy, step, write
from toy import KINDS


@pytest.mark.slow
def test_a_sharded_policy_makes_the_same_step(tmp_path: Path) -> None:
    script = Path(__file__).with_name("shard_worker.py")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *launch],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for kind in KINDS:
        for method in METHODS:
            policy = build_policy(kind)
            loss, grads = step(policy, method, 0, 1, tmp_path)
            sharded = torch.load(tmp_path / f"{kind}-{method}.pt")
            assert sharded["loss"] == pytest.approx(loss, rel=1e-5)
            assert sharded["texts"] == write(policy)
            assert sharded["grads"].keys() == grads.keys()
            for name, value in grads.items():
                torch.testing.assert_close(sharded["grads"][name], value, rtol=1e-3, atol=1e-4)
