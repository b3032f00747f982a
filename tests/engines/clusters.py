"""Small Ray clusters on this machine, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
STORE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def start_cluster(nodes: int = 2, cpus: int = 1, **head: Any) -> Iterator[Any]:
    """A cluster of this many nodes: the head has no core for workers."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **STORE, **head})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=cpus, **STORE)
        yield cluster
    finally:
        cluster.shutdown()


def ray_flags(cluster: Any, workers: int = 2) -> list[str]:
    return ["--engine", "ray", "--ray_address", cluster.address, "--num_workers", str(workers)]
