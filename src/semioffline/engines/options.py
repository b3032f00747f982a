"""The options that say where a command works."""

from __future__ import annotations

from dataclasses import dataclass

from semioffline.engines.base import Engine, LocalEngine
from semioffline.errors import UserError
from semioffline.validation import PROCESSES, Options, Range, setting

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
        for name, default in EngineOptions().__dict__.items():
            if name != "engine" and getattr(self, name) != default:
                return f"--{name} {getattr(self, name)} has no effect with --engine local: add --engine ray"
        return None

    def make(self) -> Engine:
        """The engine. Ray is imported and the cluster is asked here, before anything else is loaded."""
        if problem := self.problem():
            raise UserError(problem)
        if self.engine == "local":
            return LocalEngine()
        from semioffline.engines.ray_workers import RayEngine

        return RayEngine(self)
