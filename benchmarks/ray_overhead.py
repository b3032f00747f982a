"""What a Ray cluster costs and gains: candidates of the demo's task, with one thread for each worker.

    OMP_NUM_THREADS=1 python -m benchmarks.ray_overhead [--small]

Seconds of the work alone: starting the cluster and loading the model are not counted. One worker against the local
engine on 2,000 inputs, and one worker against two on 20,000 inputs, each several times in turn; medians. Writes
docs/results/ray-overhead.json. Only run it on a machine that does nothing else. --small: a tenth, and no file.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from semioffline.cli.candidates import CandidateOptions
from semioffline.cli.demo import tiny_policy
from semioffline.data.candidate_job import CandidateJob
from semioffline.data.candidates import CandidateFolder
from semioffline.data.options import ModelOptions
from semioffline.data.shards import Split
from semioffline.engines.base import Engine, LocalEngine
from semioffline.engines.options import EngineOptions
from semioffline.engines.ray_workers import RayEngine
from semioffline.experiments.provenance import Provenance, commit
from semioffline.tasks import ads
from semioffline.tasks.registry import Source, load_task
from semioffline.training.run_folder import versions

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "ray-overhead.json"
TIMES = 3
SHARD = 256
LIMITS = {"overhead": 1.15, "speedup": 1.5}


def main(small: bool) -> int:
    few, many = (200, 2000) if small else (2000, 20000)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tiny_policy(seed=0).save(folder / "model")
        ads.build({"train": many})["train"].to_json(folder / "train.jsonl")
        one, two = (RayEngine(EngineOptions(engine="ray", num_workers=n)) for n in (1, 2))
        local, ray = compare(folder, few, LocalEngine(), one)
        single, double = compare(folder, many, one, two)
    found = {
        "inputs": [few, many],
        "seconds": {"local": local, "one worker": ray, "one worker, many": single, "two workers, many": double},
        "overhead": statistics.median(ray) / statistics.median(local),
        "speedup": statistics.median(single) / statistics.median(double),
        "inputs_per_second": {
            "local": few / statistics.median(local),
            "two workers": many / statistics.median(double),
        },
    }
    print(json.dumps(found, indent=1))
    if not small:
        made = Provenance("python -m benchmarks.ray_overhead", commit(), versions(system=False))
        OUTPUT.write_text(json.dumps({"kind": "ray-overhead", **found, "about": made.to_json()}, indent=1) + "\n")
    is_good = found["overhead"] <= LIMITS["overhead"] and found["speedup"] >= LIMITS["speedup"]
    return 0 if is_good else 1


def compare(folder: Path, inputs: int, *engines: Engine) -> list[list[float]]:
    """The seconds of each engine, which take turns."""
    seconds: list[list[float]] = [[] for _ in engines]
    for n in range(TIMES):
        for number, engine in enumerate(engines):
            seconds[number].append(seconds_of(engine, folder, folder / f"{inputs}-{n}-{number}", inputs))
            print(f"{inputs} inputs, {type(engine).__name__} {number}: {seconds[number][-1]:.1f} s", flush=True)
    return seconds


def seconds_of(engine: Engine, folder: Path, output: Path, inputs: int) -> float:
    place = CandidateFolder(output, inputs, SHARD)
    missing = place.begin({})
    options = CandidateOptions(strategy="sampling", num_candidates=8)
    lengths = {"max_prompt_length": 32, "max_completion_length": 32}
    model = ModelOptions(str(folder / "model"), device="cpu")
    job = CandidateJob(place, model, ["click_rate"], lengths, options.decoding, options.batch_size, seed=0)
    split = Split(load_task("files"), Source(files={"train": str(folder / "train.jsonl")}, limit=inputs), "train")
    with engine.open(job, output) as workers:
        began = time.perf_counter()
        for _ in workers.make(split.shards(SHARD, set(missing)), lambda told: None):
            pass
        return time.perf_counter() - began


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":
        sys.exit("set OMP_NUM_THREADS=1, as Ray does for workers with one core")
    sys.exit(main("--small" in sys.argv))
