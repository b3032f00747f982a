"""The options that say where a command works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semioffline.engines.base import Engine, LocalEngine
from semioffline.engines.processes import Children, OpenProcesses
from semioffline.errors import UserError
from semioffline.validation import NOT_NEGATIVE, PROCESSES, Options, Range, setting

ENGINES = ("local", "ray")


@dataclass
class EngineOptions(Options):
    engine: str = setting(
        "local", "Where to work: local (this process) | ray (workers on a Ray cluster).", "Cluster", choices=ENGINES
    )
    ray_address: str | None = setting(
        None, "Ray: host:port of a cluster, or auto for the one of this machine. Default: start one here.", "Cluster"
    )
    num_workers: int = setting(1, "Ray: number of workers. Each loads the model.", "Cluster", PROCESSES._replace(low=1))
    cpus_per_worker: int = setting(
        1, "Ray: cores of a worker, and its number of threads.", "Cluster", PROCESSES._replace(low=1)
    )
    gpus_per_worker: float | None = setting(
        None, "Ray: GPUs of a worker. Default: 1 if the cluster has GPUs, else 0.", "Cluster", Range(0, 1024)
    )

    def problem(self) -> str | None:
        """The first of these options that has no effect."""
        if self.engine == "ray":
            return None
        for name, default in type(self)().__dict__.items():
            if name != "engine" and getattr(self, name) != default:
                return f"--{name} {getattr(self, name)} has no effect with --engine local: add --engine ray"
        return None

    def check(self) -> None:
        """Reject options without effect, a missing Ray and a cluster that does not answer, before anything slow."""
        if problem := self.problem():
            raise UserError(problem)
        if self.engine == "ray":
            from semioffline.engines.ray_cluster import check_address, import_ray

            import_ray()
            check_address(self.ray_address)

    def make(self) -> Engine:
        """The engine, after `check`."""
        self.check()
        if self.engine == "local":
            return LocalEngine()
        from semioffline.engines.ray_workers import RayEngine

        return RayEngine(self)

    def processes(self, folder: Path) -> OpenProcesses:
        """Opens what runs commands. folder: their output folder."""
        if self.engine == "local":
            return Children
        from semioffline.engines.ray_commands import open_commands

        return lambda: open_commands(self, folder)


@dataclass
class TrainEngineOptions(EngineOptions):
    max_failures: int = setting(
        3,
        "Ray: how often training goes on from the last checkpoint after a worker or a node has died.",
        "Cluster",
        NOT_NEGATIVE,
    )

    def train(self, work: Callable[[], None], folder: Path) -> None:
        """Do `work` in several processes at once, which train together."""
        from semioffline.engines.ray_training import train_together

        train_together(self, work, folder)
