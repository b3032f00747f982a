"""Work on a Ray cluster of two nodes: the same bytes as in one process, whatever dies; clear errors."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from tests.engines.clusters import ray_flags
from tests.engines.jobs import Part, Squares
from tests.engines.several import OneOfSeveral, SeveralJobs
from tests.integration.toy import KINDS, build_uneven_rows, save_model

from semioffline.cli import main
from semioffline.cli.candidates import CandidateOptions
from semioffline.data.candidate_job import CandidateJob
from semioffline.data.candidates import CandidateFolder
from semioffline.data.options import ModelOptions
from semioffline.data.shards import Split
from semioffline.engines import ray_cluster
from semioffline.engines.base import LocalEngine
from semioffline.engines.options import EngineOptions
from semioffline.engines.ray_workers import RayEngine
from semioffline.errors import UserError
from semioffline.tasks.registry import Source, load_task

pytestmark = pytest.mark.xdist_group("ray")
STRATEGIES = ("sampling", "beam", "diverse_beam")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and 30 rows."""
    folder = tmp_path_factory.mktemp("inputs")
    for kind in KINDS:
        save_model(folder / kind, kind)
    for split in ("train", "test"):
        build_uneven_rows(30).to_json(folder / f"{split}.jsonl")
    return folder


def options(cluster: Any, workers: int = 2, **more: Any) -> EngineOptions:
    return EngineOptions(engine="ray", ray_address=cluster.address, num_workers=workers, **more)


# ---- the same results ----


def all_shards(engine: Any, inputs: Path, folder: Path, number: int) -> dict[str, bytes]:
    """The files of all shards, for both kinds of model and all strategies."""
    jobs = []
    for kind in KINDS:
        for strategy in STRATEGIES:
            place = CandidateFolder(folder / f"{kind}-{strategy}", 30, 7)
            place.begin({})
            own = CandidateOptions(strategy=strategy, num_candidates=3)
            config = {"max_prompt_length": 24, "max_completion_length": 8}
            model = ModelOptions(str(inputs / kind), device="cpu")
            jobs.append(CandidateJob(place, model, ["rouge"], config, own.decoding, batch_size=3, seed=0))
    split = Split(load_task("files"), Source(data_dir=str(inputs)), "train")
    shards = [OneOfSeveral(n, shard) for n in range(len(jobs)) for shard in split.shards(7, range(5))]
    with engine.open(SeveralJobs(jobs), folder) as workers:
        assert len(list(workers.make(shards, lambda told: None))) == number
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/shards/*.jsonl"))}


def test_candidates_are_those_of_one_process(cluster: Any, inputs: Path, tmp_path: Path) -> None:
    """Two workers, each on a node of its own: every byte, for both kinds of model and all strategies."""
    here = all_shards(LocalEngine(), inputs, tmp_path / "here", 30)
    there = all_shards(RayEngine(options(cluster)), inputs, tmp_path / "ray", 30)
    assert len(here) == 30
    assert there == here


def test_the_commands_start_here_and_go_on_there(
    cluster: Any, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Both commands, with shards that are there already: these are not made again, and all outputs are the same."""
    shared = f"--data_dir {inputs} --model {inputs / 'bart'} --device cpu --max_prompt_length 24 --shard_size 7".split()
    shared += ["--max_completion_length", "8", "--batch_size", "3"]
    own = {"candidates": ["--strategy", "sampling", "--num_candidates", "2", "--reward", "rouge1"]}
    own["evaluate"] = ["--metrics", "rouge1", "corpus_bleu"]
    outputs = {"candidates": "candidates.jsonl", "evaluate": "predictions.jsonl"}
    for command, flags in own.items():
        here, there = tmp_path / f"{command}-here", tmp_path / f"{command}-ray"
        assert main([command, *shared, *flags, "--output_dir", str(here)]) == 0
        shutil.copytree(here, there)
        made = sorted(path for path in there.rglob("0000*") if path.is_file())
        assert len(made) == 5
        times = {path: path.stat().st_mtime_ns for path in made[:2]}
        for path in (*made[2:], there / outputs[command]):
            path.unlink()
        assert main([command, *shared, *flags, "--output_dir", str(there), *ray_flags(cluster)]) == 0
        assert (there / outputs[command]).read_bytes() == (here / outputs[command]).read_bytes()
        assert {path: path.stat().st_mtime_ns for path in times} == times
        assert not (there / "workers").exists()
    results = [json.loads((tmp_path / f"evaluate-{name}" / "result.json").read_text()) for name in ("here", "ray")]
    assert results[0]["metrics"] == results[1]["metrics"]


# ---- workers that die ----


def squares(cluster: Any, folder: Path, number: int = 12, workers: int = 2, **job: Any) -> dict[int, int]:
    with RayEngine(options(cluster, workers)).open(Squares(folder, **job), folder) as found:
        return {made.shard.number: made.result for made in found.make(map(Part, range(number)), lambda told: None)}


def test_a_worker_that_dies_loses_its_shard_only(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert squares(cluster, tmp_path, trouble="die once", at=5) == {n: n**2 for n in range(12)}
    told = capsys.readouterr().err  # the result of shard 3 or 4 may have been on its way
    assert re.search(r"died in shard [345] \(its process was killed or has crashed\): another one goes on", told)


def test_a_shard_that_kills_every_worker_is_an_error(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"died in shard 3, and so did 3 before it: .* the last words of a worker \("):
        squares(cluster, tmp_path, trouble="die", at=3)


def test_a_node_that_dies_is_replaced_by_the_others(cluster: Any, tmp_path: Path) -> None:
    """Also when the cluster then has room for one worker only."""
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    threading.Timer(3.0, lambda: cluster.remove_node(node, allow_graceful=False)).start()
    found = squares(cluster, tmp_path, number=30, workers=3, seconds=0.3)
    assert found == {n: n**2 for n in range(30)}


def test_no_actor_is_left(cluster: Any, tmp_path: Path) -> None:
    """After an interruption in the middle of the work."""

    def interrupt(told: int) -> None:
        if len(list(tmp_path.glob("pid-*"))) == 2:
            raise KeyboardInterrupt

    engine = RayEngine(options(cluster))
    with engine.open(Squares(tmp_path, seconds=0.05), tmp_path) as found, pytest.raises(KeyboardInterrupt):
        list(found.make(map(Part, range(100)), interrupt))
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


# ---- errors in one line ----


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("load", "the worker on node .*: it cannot be loaded"),
        ("die while loading", "died while it loaded, and so did 3 before it"),
        ("user", "the worker on node .*: a row is wrong"),
        ("memory", "the worker on node .* has not enough memory: lower --batch_size"),
        ("disk", "the worker on node .* cannot read or write .*absent/file: No such file or directory"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(trouble: str, told: str, cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        squares(cluster, tmp_path, number=3, workers=1, trouble=trouble, at=1)


def test_a_bug_keeps_its_type(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="a bug"):
        squares(cluster, tmp_path, number=3, workers=1, trouble="bug", at=1)


def test_too_few_resources(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 60 seconds; here the waiting is shorter."""
    assert ray_cluster.SECONDS_FOR_ROOM < 60
    monkeypatch.setattr(ray_cluster, "SECONDS_FOR_ROOM", 2.0)
    with pytest.raises(
        UserError, match=r"no room within 2 seconds for 3 workers, each with 1 CPUs .* 2 CPUs and 0 GPUs"
    ):
        squares(cluster, tmp_path, workers=3)


def test_a_place_that_a_node_does_not_see(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the worker on node [\d.]+ \(.*\): it cannot see --model /absent/model"):
        squares(cluster, tmp_path, seen={"--model": Path("/absent/model")})


def test_another_folder_of_the_same_name(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a folder of its own under this path finds no token, or another one."""
    monkeypatch.setattr(ray_cluster, "SEEN", "another.txt")
    with pytest.raises(UserError, match=rf"on node .* cannot see the output folder {tmp_path}: use a folder on a file"):
        squares(cluster, tmp_path)


def test_other_versions_on_a_node(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ray_cluster.library_versions() | {"semioffline": "9.9"}
    monkeypatch.setattr(ray_cluster, "library_versions", lambda: ours)
    with pytest.raises(UserError, match=r"on node .*: it has other versions .*: semioffline 0\.1\.0 instead of 9\.9"):
        squares(cluster, tmp_path)


def refused(argv: list[str], capsys: pytest.CaptureFixture) -> str:
    """The one line of a command that is refused."""
    assert main(argv) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("semioffline: error:")]
    return line


@pytest.mark.parametrize("command", ["candidates", "evaluate", "compare", "train ft"])
def test_refused_before_anything_is_loaded(
    command: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is not installed; nobody listens at the address; the address is none; the options have no effect."""
    argv = [*command.split(), "--data_dir", str(inputs), "--model", str(inputs / "bart"), "--device", "cpu"]
    argv += ["--output_dir", str(tmp_path / "out"), *(["--reward", "rouge1"] if command != "evaluate" else [])]
    ray = [*argv, "--engine", "ray"]
    address = [*ray, "--ray_address"]
    assert "--ray_address 127.0.0.1:1: there is no Ray cluster" in refused([*address, "127.0.0.1:1"], capsys)
    assert "--ray_address nowhere must be host:port" in refused([*address, "nowhere"], capsys)
    assert "--num_workers 2 has no effect with --engine local" in refused([*argv, "--num_workers", "2"], capsys)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "needs Ray: pip install 'semioffline[ray]'" in refused(ray, capsys)
    assert not (tmp_path / "out").exists()


def test_a_machine_that_is_too_small(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A cluster of this machine cannot grow: it is refused at once."""
    argv = ["evaluate", "--data_dir", str(inputs), "--model", str(inputs / "bart"), "--device", "cpu"]
    argv += ["--output_dir", str(tmp_path), "--engine", "ray", "--num_workers", "999"]
    assert "no room for 999 workers, each with 1 CPUs and 0 GPUs: the cluster has 1 nodes" in refused(argv, capsys)
