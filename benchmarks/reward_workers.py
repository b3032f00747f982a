"""Reward workers: our pool against concurrent.futures.ProcessPoolExecutor, on the CPU.

    OMP_NUM_THREADS=1 python benchmarks/reward_workers.py

Trains semi_offline on the synthetic task (16 inputs a step, K = 64, reward ROUGE, two worker processes) with each of
them in turn, several times, and prints seconds per step as JSON. Only run it on a machine that does nothing else.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import numpy as np
from transformers import TrainerCallback

from semioffline import Policy, SemiOfflineConfig, SemiOfflineTrainer
from semioffline.scoring import pool, scorer
from semioffline.scoring.worker import Group, Worker
from semioffline.tasks import ads

_WORKER: list[Worker] = []


def _load(tokenizer: str) -> None:
    worker = Worker()
    worker.load(tokenizer)
    _WORKER.append(worker)


def _score(asked: dict[str, Any], draws: np.ndarray) -> bytes:
    [worker] = _WORKER
    worker.prepare(asked)
    return worker.score(draws)


class Asked:
    """The interface of `pool.Asked`, on an executor."""

    def __init__(self, executor: ProcessPoolExecutor, workers: int, request: dict[str, Any], groups: Sequence[Group]):
        self.executor, self.request, self.groups = executor, request, groups
        self.parts = pool.cut([group.many for group in groups], workers)
        self.futures: list[Future[bytes]] = []

    def send(self, draws: np.ndarray) -> None:
        own = pool.deal(self.groups, draws)
        for parts in self.parts:
            told = [self.groups[part.at].told(part.high - part.low) for part in parts]
            columns = {name: [values[part.at] for part in parts] for name, values in self.request["columns"].items()}
            chosen = np.concatenate([own[part.at][:, part.low : part.high].reshape(-1) for part in parts])
            self.futures.append(
                self.executor.submit(_score, self.request | {"groups": told, "columns": columns}, chosen)
            )

    def values(self) -> list[np.ndarray]:
        rewards = len(self.request["rewards"])
        answers = [np.frombuffer(future.result()).reshape(rewards, -1) for future in self.futures]
        return list(np.concatenate(answers, axis=1))

    def close(self) -> None:
        pass


class ExecutorPool:
    """The interface of `pool.RewardPool`, on an executor that spawns its processes."""

    alive = True

    def __init__(self, workers: int):
        self.workers, self.executor = workers, None

    def ask(
        self,
        tokenizer: str,
        rewards: Sequence[str],
        groups: Sequence[Group],
        columns: dict[str, list[Any]],
        timeout: Any,
    ) -> Asked:
        if self.executor is None:
            context = multiprocessing.get_context("spawn")
            self.executor = ProcessPoolExecutor(self.workers, context, _load, (tokenizer,))
        needed = {name: [values[group.row] for group in groups] for name, values in columns.items()}
        request = {"rewards": list(rewards), "timeout": timeout, "columns": needed}
        return Asked(self.executor, self.workers, request, groups)


class Clock(TrainerCallback):
    """Seconds of each step."""

    def __init__(self) -> None:
        self.began, self.steps = 0.0, []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.steps.append(time.perf_counter() - self.began)


def measure(steps: int) -> dict[str, float]:
    """Median seconds of a step, and of scoring in it, after a third of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        config = SemiOfflineConfig(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=16, num_samples=64, reward_workers=2,
            logging_steps=1, log_completions=False, use_cpu=True, report_to="none", disable_tqdm=True,
            save_strategy="no", **ads.TASK.settings,
        )  # fmt: skip
        clock = Clock()
        rows = ads.build({"train": 256})["train"]
        policy = Policy(ads.build_model(), ads.build_tokenizer())
        trainer = SemiOfflineTrainer(policy, "rouge", config, rows, callbacks=[clock])
        trainer.train()
    logged = [line["time/reward"] for line in trainer.state.log_history if "time/reward" in line]
    return {
        "step": statistics.median(clock.steps[steps // 3 :]),
        "reward": statistics.median(logged[steps // 3 :]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=4)
    args = parser.parse_args()
    ours, executor = pool.start_pool, ExecutorPool(2)
    found: dict[str, list[dict[str, float]]] = {"pool": [], "executor": []}
    for _ in range(args.repetitions):
        for name, shared in (("pool", ours), ("executor", lambda number: executor)):
            scorer.start_pool = shared
            found[name].append(measure(args.steps))
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    ratios = {key: medians["executor"][key] / medians["pool"][key] for key in medians["pool"]}
    print(json.dumps({"seconds": medians, "executor / pool": ratios, "runs": found}, indent=1))


if __name__ == "__main__":
    main()
