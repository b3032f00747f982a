"""Run by several processes at once (torchrun): trains the cases of test_equal_steps and saves the weights.

python -m torch.distributed.run --nproc-per-node 2 steps_worker.py OUTPUT_FOLDER
"""

import os
import sys
from pathlib import Path

import torch
from toy import build_uneven_rows, train, weights

from semioffline.algorithm.randomness import Randomness

CASES = {
    "bart-4": {"kind": "bart", "per_device_train_batch_size": 4},
    "bart-2x2": {"kind": "bart", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "llama-4": {"kind": "llama", "per_device_train_batch_size": 4},
    "t5-4": {"kind": "t5", "per_device_train_batch_size": 4},
    "workers": {"kind": "bart", "per_device_train_batch_size": 4, "reward_workers": 1},
}
METHODS = {
    "grpo": {"method": "grpo", "num_iterations": 2, "num_samples": 2, "max_completion_length": 12},
    "ppo": {"method": "ppo", "num_iterations": 2, "critic_warmup_steps": 1, "max_completion_length": 12},
    "kl": {"kl_weight": 2.0},
}
"""Methods that keep something between steps."""
WRONG = ("bart", "t5")
ROWS = 24


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rows = build_uneven_rows(ROWS)
    own = {name: {"per_device_train_batch_size": 4} | settings for name, settings in METHODS.items()}
    for name, settings in (CASES | own).items():
        trainer = train(folder / name, rows=rows, **settings)
        assert trainer.args.world_size == 2
        if trainer.accelerator.is_main_process:
            torch.save(weights(trainer), folder / f"{name}.pt")
    rank, right = int(os.environ["RANK"]), Randomness.uniform
    Randomness.uniform = lambda self, purpose, *rest: right(self, f"{purpose}/{rank}", *rest)
    for kind in WRONG:
        trainer = train(folder / f"wrong-key-{kind}", kind=kind, rows=rows, per_device_train_batch_size=4)
        if trainer.accelerator.is_main_process:
            torch.save(weights(trainer), folder / f"wrong-key-{kind}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
