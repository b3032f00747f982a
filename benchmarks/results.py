"""Every comparison of docs/results.md again, on one machine: starts side by side, timing alone, then all runs.

    python benchmarks/results.py --models MODELS --data DATA --out OUT [--names e2e-flan-t5 ...]

MODELS holds the folders smollm2 and flan-t5, DATA the folders e2e and samsum. OUT/NAME/comparison.json are the results.
Stopped and started again, it goes on where it was.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

COMPARISONS = {
    # name: recipe, model, data, runs at a time
    "e2e-flan-t5": ("compare-e2e", "flan-t5", "e2e", 8),
    "samsum-smollm2": ("compare-samsum-smollm2", "smollm2", "samsum", 4),
    "samsum-flan-t5": ("compare-samsum-flan-t5", "flan-t5", "samsum", 4),
}
RECIPES = Path(__file__).parents[1] / "recipes"
STARTED = time.time()


def say(text: str) -> None:
    print(f"{time.time() - STARTED:6.0f} s  {text}", flush=True)


def command(args: argparse.Namespace, name: str, only: str | None) -> list[str]:
    recipe, model, data, jobs = COMPARISONS[name]
    words = ["--config", RECIPES / f"{recipe}.yaml", "--model", args.models / model, "--data_dir", args.data / data]
    words += ["--output_dir", args.out / name, "--jobs", jobs, *(["--only", only] if only else []), *args.more]
    return [sys.executable, "-m", "semioffline", "compare", *map(str, words)]


def run(args: argparse.Namespace, names: list[str], only: str | None) -> None:
    """One part of several comparisons at a time; a part that fails is told and does not stop the others."""
    started = []
    for name in names:
        log = open(args.out / f"{name}-{(only or 'runs').partition(':')[0]}.log", "w")  # noqa: SIM115 (it outlives this)
        started.append((name, subprocess.Popen(command(args, name, only), stdout=log, stderr=subprocess.STDOUT)))
    for name, process in started:
        say(f"{name}, {only or 'runs'}: exit code {process.wait()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--models", "--data", "--out"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--names", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    args, args.more = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run(args, args.names, "start:0")
    for name in args.names:
        run(args, [name], "timing")
    run(args, args.names, None)


if __name__ == "__main__":
    main()
