"""Training in several processes on a Ray cluster, with Ray Train. Checkpoints are those of the run folder."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semioffline.engines.actor import Failure, NodeActor
from semioffline.engines.options import TrainEngineOptions
from semioffline.engines.ray_cluster import (
    LOGS,
    Resources,
    cause_of_death,
    connected,
    log_name,
    telling,
    wait_for_room,
)
from semioffline.errors import UserError, short
from semioffline.printing import quiet_libraries, say
from semioffline.storage.files import read_complete_lines

RUN = "ray-train"
"""The folder of Ray Train, in that of the logs. Nothing in it is needed: checkpoints are in the run folder."""


class Notes:
    """An actor that keeps the first error for the user: Ray Train would start the workers again."""

    def __init__(self) -> None:
        self._problem: str | None = None

    def add(self, problem: str) -> None:
        self._problem = self._problem or problem

    def problem(self) -> str | None:
        return self._problem


def train_together(options: TrainEngineOptions, work: Callable[[], None], folder: Path) -> None:
    """Do `work` in `num_workers` processes that train together. After a death all of them start again, from the last
    complete checkpoint."""
    with connected(options) as ray:
        resources = Resources.of(ray, options)
        wait_for_room(ray, options, resources, options.num_workers)
        notes = ray.remote(num_cpus=0)(Notes).remote()
        logs = [log_name(rank) for rank in range(options.num_workers)]
        with telling(folder, resources.cpus) as told, _following(Path(told["folder"], logs[0])):
            problem = _fit(options, resources, {"work": work, "told": told, "notes": notes, "logs": logs}, folder)
            if problem is not None:
                raise UserError(ray.get(notes.problem.remote()) or problem)
            if noted := ray.get(notes.problem.remote()):
                raise UserError(noted)


def _fit(options: TrainEngineOptions, resources: Resources, config: dict[str, Any], folder: Path) -> str | None:
    """Train. Returns what is wrong, after the last attempt."""
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        _work,
        train_loop_config=config,
        torch_config=TorchConfig(backend="nccl" if resources.gpus else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=resources.gpus > 0,
            resources_per_worker=resources.as_bundle(),
        ),
        run_config=ray.train.RunConfig(
            name=RUN,
            storage_path=config["told"]["folder"],
            failure_config=ray.train.FailureConfig(max_failures=options.max_failures),
        ),
    )
    try:
        trainer.fit()
    except (ray.train.TrainingFailedError, ray.exceptions.RayError, RuntimeError) as error:
        failures = getattr(error, "worker_failures", {}) or {0: error}
        first = next(iter(failures.values()))
        died = isinstance(first, ray.exceptions.RayActorError)
        cause = cause_of_death(str(first)) if died else " ".join(f"{type(first).__name__}: {first}".split())
        return (
            f"training failed, after {options.max_failures} restarts (--max_failures): {short(cause, 500)}. What the "
            f"workers printed is in {folder / LOGS}"
        )
    finally:
        shutil.rmtree(Path(config["told"]["folder"], RUN), ignore_errors=True)  # else Ray would restore its state
    return None


def _work(config: dict[str, Any]) -> None:
    """In each process: check the node, then train."""
    import ray
    import ray.train

    if ray.get(config["notes"].problem.remote()):  # of the attempt before: nothing is tried again
        return
    import torch

    torch.set_num_threads(config["told"]["cpus"])
    quiet_libraries()
    rank = ray.train.get_context().get_world_rank()
    actor = NodeActor()
    answer = actor.start(config["told"], config["logs"][rank])
    if not isinstance(answer, Failure):
        answer = actor.guarded(config["work"])
    if isinstance(answer, Failure):
        ray.get(config["notes"].add.remote(answer.message))
        raise RuntimeError(answer.message)


@contextmanager
def _following(log: Path) -> Iterator[None]:
    """Show what is added to a log during the block."""
    ended = threading.Event()

    def follow() -> None:
        shown, is_over = 0, False
        while not is_over:
            is_over = ended.wait(0.5)  # then once more
            lines = read_complete_lines(log, shown)
            shown += sum(map(len, lines))
            for line in lines:
                say(line.decode(errors="replace").rstrip())

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)
