"""Candidates and evaluation on a Ray cluster of two nodes: the same bytes as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from engines.clusters import ray_flags, start_cluster
from integration.toy import KINDS, build_uneven_rows, save_model
from semioffline.cli import main

pytestmark = pytest.mark.xdist_group("ray")
STRATEGIES = ("sampling", "beam", "diverse_beam")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with start_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and 30 rows."""
    folder = tmp_path_factory.mktemp("inputs")
    for kind in KINDS:
        save_model(folder / kind, kind)
    rows = build_uneven_rows(30)
    for split in ("train", "test"):
        rows.to_json(folder / f"{split}.jsonl")
    return folder


def candidates(inputs: Path, output: Path, *more: str, kind: str = "bart", strategy: str = "sampling") -> int:
    flags = f"--data_dir {inputs} --model {inputs / kind} --device cpu --max_prompt_length 24 --strategy {strategy} "
    flags += f"--reward rouge --max_completion_length 8 --num_candidates 3 --batch_size 3 --shard_size 7 --output_dir {output}"
    return main(["candidates", *flags.split(), *more])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_candidates_are_those_of_one_process(
    kind: str, strategy: str, cluster: Any, inputs: Path, tmp_path: Path
) -> None:
    assert candidates(inputs, tmp_path / "here", kind=kind, strategy=strategy) == 0
    assert candidates(inputs, tmp_path / "ray", *ray_flags(cluster), kind=kind, strategy=strategy) == 0
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.jsonl"))
    assert len(files) == 6
    for path in files:
        assert (tmp_path / "ray" / path).read_bytes() == (tmp_path / "here" / path).read_bytes()
