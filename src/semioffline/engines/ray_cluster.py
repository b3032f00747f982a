"""The connection to a Ray cluster, and what is wrong with it in one line."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from semioffline.engines.actor import SEEN, WorkerSetup
from semioffline.engines.options import EngineOptions
from semioffline.engines.versions import library_versions
from semioffline.errors import UserError, short
from semioffline.storage.files import make_folder, write_atomically

LOGS = "workers"
"""The folder, in the output folder, with what each worker prints."""
SECONDS_TO_CONNECT = 10.0
SECONDS_FOR_ROOM = 45.0
"""How long workers may wait for room on the cluster."""
SECONDS_TO_START = 600.0
"""How long the process of a worker may take to start, where the file system is slow."""
MOST_LOSSES = 4
"""Workers that may die of one shard, or one after the other while they load, before the command gives up."""
OBJECT_STORE = 256 * 2**20
"""Bytes of the object store of a cluster that is started here. Only rows and results go through it."""


def import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray: pip install 'semioffline[ray]'") from error
    return ray


def check_address(address: str | None) -> None:
    """Whether there is a cluster at this address, before anything slow is done. Ray itself waits for minutes."""
    if address is None or address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not (host and colon and port.isdigit() and int(port) < 65536):
        raise UserError(
            f"--ray_address {short(address)} must be host:port of the cluster's head, such as 10.0.0.1:6379, or auto. "
            "Start the command on a node of the cluster"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT):
            pass
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--ray_address {address}: there is no Ray cluster ({reason}). Start one with `ray start --head`, or leave "
            "the address out to start one on this machine"
        ) from error


@contextmanager
def connected(options: EngineOptions, print_output: bool = False) -> Iterator[Any]:
    """Ray, connected for the block. A cluster that was started here ends with it.

    print_output: show what workers print.
    """
    ray = import_ray()
    if ray.is_initialized():  # by the caller, who also ends it
        yield ray
        return
    check_address(options.ray_address)
    own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE} if options.ray_address is None else {}
    try:
        ray.init(address=options.ray_address or "local", log_to_driver=print_output, logging_level="ERROR", **own)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        where = f"--ray_address {options.ray_address}" if options.ray_address else "a Ray cluster on this machine"
        raise UserError(f"cannot connect to {where}: {' '.join(str(error).split())}") from error
    try:
        if not print_output and hasattr(ray._private.worker, "_worker_logs_enabled"):
            setattr(ray._private.worker, "_worker_logs_enabled", False)  # noqa: B010  (we report deaths ourselves)
        yield ray
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Resources:
    """What one worker needs."""

    cpus: int
    gpus: float

    @classmethod
    def of(cls, ray: Any, options: EngineOptions) -> Resources:
        gpus = options.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
        return cls(options.cpus_per_worker, gpus)

    def as_ray(self) -> dict[str, float]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def as_bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def fit(self, ray: Any) -> int:
        """The number of workers that the cluster has room for, if nothing else runs."""
        return sum(self._fit_node(node["Resources"]) for node in ray.nodes() if node["Alive"])

    def _fit_node(self, node: dict[str, float]) -> int:
        by_gpu = node.get("GPU", 0) / self.gpus if self.gpus else float("inf")
        return int(min(node.get("CPU", 0) // self.cpus, by_gpu))

    def shortage(self, ray: Any, wanted: int, seconds: float = 0) -> UserError:
        """The error for a cluster with too few resources."""
        nodes = sum(node["Alive"] for node in ray.nodes())
        every, free = ray.cluster_resources(), ray.available_resources()
        waited = f" within {seconds:.0f} seconds" if seconds else ""
        count = f"{wanted} workers, each with" if wanted > 1 else "one worker with"
        has, left = (f"{one.get('CPU', 0):g} CPUs and {one.get('GPU', 0):g} GPUs" for one in (every, free))
        return UserError(
            f"no room{waited} for {count} {self.cpus} CPUs and {self.gpus:g} GPUs: the cluster has {nodes} nodes with "
            f"{has}, of which {left} are free: lower --num_workers, --cpus_per_worker or --gpus_per_worker, or add "
            "nodes"
        )


def wait_for_room(ray: Any, options: EngineOptions, resources: Resources, workers: int) -> None:
    """An error if the cluster has no room for this many workers. A cluster of this machine cannot grow: it is not
    waited for. Only room is waited for here, and not processes, which may start slowly."""
    seconds = SECONDS_FOR_ROOM if options.ray_address else 0
    if not seconds and resources.fit(ray) < workers:
        raise resources.shortage(ray, workers)
    group = ray.util.placement_group([resources.as_bundle()] * workers)
    found = group.wait(seconds or SECONDS_FOR_ROOM)
    ray.util.remove_placement_group(group)
    if not found:
        raise resources.shortage(ray, workers, seconds or SECONDS_FOR_ROOM)


# ---- what workers are told, and how they end ----


@contextmanager
def telling(folder: Path, cpus: int) -> Iterator[dict[str, Any]]:
    """Yield what every worker is told: the fields of `actor.WorkerSetup`. folder: the output folder, which holds the
    logs. Logs without content are removed at the end."""
    logs = folder.absolute() / LOGS
    token = uuid4().hex
    make_folder(logs)
    write_atomically(logs / SEEN, token)
    told = WorkerSetup(str(logs), token, os.getcwd(), library_versions(), cpus)
    try:
        yield asdict(told)
    finally:
        with suppress(OSError):
            (logs / SEEN).unlink(missing_ok=True)
            for path in logs.glob("*.log"):
                if not path.stat().st_size:
                    path.unlink()
            logs.rmdir()  # unless there is something in it


def log_name(number: int) -> str:
    """The log of a worker. An interrupted command leaves its own."""
    return f"worker-{os.getpid()}-{number}.log"


def cause_of_death(reason: str) -> str:
    """Why an actor has died, from Ray's long description."""
    text = " ".join(reason.split())
    if "running low on memory" in text or "OutOfMemoryError" in text:
        return "its node was out of memory: lower --batch_size, or use fewer workers for each node"
    if "failed to import" in text or "ModuleNotFoundError" in text:
        return "it cannot import semioffline: install the same version on all nodes"
    if "node was terminated" in text or "node has died" in text or "node is dead" in text or "The node" in text:
        return "its node is gone"
    return "its process was killed or has crashed"
