"""Peak memory of `candidates` and `evaluate` as the data grows, in this process and with a Ray worker.

    OMP_NUM_THREADS=1 python -m benchmarks.memory_growth [ROWS ROWS]

Runs each command on 10,000 and on 200,000 rows with a very small model, and writes docs/results/memory-growth.json: the
largest resident memory of the command's own process in MB. Exit code 1: it grows by more than 20 %. It takes about half
an hour; other work on the machine does not change it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.toy import save_model

from semioffline.experiments.provenance import Provenance, commit
from semioffline.tasks import ads
from semioffline.training.run_folder import versions

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "memory-growth.json"
MOST_GROWTH = 1.2
SHARED = "--device cpu --max_prompt_length 24 --max_completion_length 4 --batch_size 256 --shard_size 1024"
COMMANDS = {
    "candidates": f"candidates {SHARED} --strategy sampling --num_candidates 2 --reward rouge1",
    "evaluate": f"evaluate {SHARED} --metrics rouge1 corpus_bleu",
    "candidates on Ray": f"candidates {SHARED} --strategy sampling --num_candidates 2 --reward rouge1 --engine ray",
}
PARTS = 10_000
"""Rows that are written at a time, each time the same ones."""


def main(sizes: list[int]) -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_model(folder / "model")
        for size in sizes:
            write_rows(folder, size)
        found = {name: [peak_memory(words.split(), folder, size) for size in sizes] for name, words in COMMANDS.items()}
    growth = {name: each[-1]["mb"] / each[0]["mb"] for name, each in found.items()}
    print(json.dumps({"rows": sizes, "runs": found, "growth": growth}, indent=1))
    if sizes == [10_000, 200_000]:
        made = Provenance("python -m benchmarks.memory_growth", commit(), versions(system=False))
        result = {"kind": "memory-growth", "rows": sizes, "runs": found, "growth": growth, "about": made.to_json()}
        OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
    return int(max(growth.values()) > MOST_GROWTH)


def write_rows(folder: Path, size: int) -> None:
    lines = [json.dumps(row) + "\n" for row in ads.build({"train": min(size, PARTS)})["train"]]
    with open(folder / f"rows-{size}.jsonl", "w") as file:
        for start in range(0, size, PARTS):
            file.writelines(lines[: size - start])


def peak_memory(words: list[str], folder: Path, size: int) -> dict[str, float]:
    """Of the process alone, without those that it starts."""
    split = "train" if words[0] == "candidates" else "test"
    output = folder / f"{'-'.join(words[-1:])}-{words[0]}-{size}"
    own = [f"--{split}_file", f"{folder}/rows-{size}.jsonl", "--model", f"{folder}/model", "--output_dir", str(output)]
    began = time.monotonic()
    command = [sys.executable, "-m", "semioffline", *words, *own]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)} ended with exit code {process.returncode}")
    found = {"mb": round(usage.ru_maxrss / 1024, 1), "seconds": round(time.monotonic() - began, 1)}
    print(f"{' '.join(words[:1] + words[-2:])}, {size} rows: {found}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or [10_000, 200_000]))
