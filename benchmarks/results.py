"""Every comparison of docs/results again, on one machine: starts side by side, timing alone, then all runs.

    python benchmarks/results.py --models MODELS --data DATA --out OUT [--names e2e-flan-t5 ...]

MODELS holds the folders smollm2 and flan-t5, DATA the folders e2e, commongen, nqg and samsum. OUT/NAME/comparison.json
are the results. Stopped and started again, it goes on where it was.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from semioffline.cli.compare_options import METHODS
from semioffline.tasks.reading.rows import load_rows


def variants(settings: dict[str, dict[str, Any]], looks: int = 4) -> list[str]:
    """Flags for semi_offline with each of these settings beside itself, for as many steps, from the start of another
    comparison."""
    own = labelled(settings)
    return methods(["semi_offline", *own], own, 400, looks)


def labelled(settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"semi_offline@{name}": values for name, values in settings.items()}


def methods(names: list[str], settings: dict[str, dict[str, Any]], steps: int, looks: int) -> list[str]:
    words = ["--methods", *names, "--settings", json.dumps(settings), "--seeds", "0"]
    return [*words, "--start_steps", "0", "--budget_steps", str(steps), "--evaluations", str(looks)]


def tune(rate: float) -> list[str]:
    """How large the RL loss is beside the MLE loss, and the learning rate."""
    settings: dict[str, dict[str, Any]] = {f"ratio-{ratio}": {"rl_ratio": ratio} for ratio in (1, 3)}
    settings |= {f"{name}-faster": own | {"learning_rate": 2.5 * rate} for name, own in settings.items()}
    return variants(
        settings | {"ratio-1-faster-batch-32": settings["ratio-1-faster"] | {"per_device_train_batch_size": 32}}
    )


def equal_steps(ours: dict[str, Any], samples: int = 16) -> list[str]:
    """Every method for a hundred steps, with one seed. ours: semi_offline's settings; samples: how many avg draws."""
    own = {name: {"rl_ratio": 1} for name in ("self_critic", "actor_critic")}
    own |= {"semi_offline": ours, "avg": {"rl_ratio": 1, "num_samples": samples}}
    return methods(METHODS, own, 100, 2)


BEYOND: dict[str, dict[str, Any]] = {
    "weight-30": {"rl_weight": 30},
    "mask-0.2": {"mask_rate": 0.2},
    "mask-0.6": {"mask_rate": 0.6},
    "mixed": {"mask_pattern": "mixed"},
    "suffix": {"mask_pattern": "suffix"},
    "masked-mle": {"mle_mask_share": 1.0},
    "mixed-masked-mle": {"mask_pattern": "mixed", "mle_mask_share": 1.0},
    "standardised": {"scale_rewards": True, "rl_weight": 1},
    "data-plus": {"static_target": "best"},
    "random-candidate": {"static_target": "random"},
    "ground-truth": {"static_target": "ground_truth"},
}
"""What may beat the paper's recipe at the same cost."""


def beyond(rate: float) -> list[str]:
    return variants(BEYOND | {"faster": {"learning_rate": 2.5 * rate}}, looks=2)


def more() -> list[str]:
    """The same, with what is done differently, not only more or less of it."""
    settings: dict[str, dict[str, Any]] = {
        "rate-falls": {"mask_rate": 0.6, "mask_rate_end": 0.1},
        "rate-rises": {"mask_rate": 0.2, "mask_rate_end": 0.6},
        "leave-one-out": {"baseline": "leave_one_out"},
        "standardised": BEYOND["standardised"],
    }
    own = labelled(settings) | {"brio+semi_offline": {}, "semi_offline": {}}
    return methods(list(own), {name: values | {"seeds": [0, 1]} for name, values in own.items()}, 400, 2)


def own_candidates(temperature: float, rows: int, seconds: int, settings: dict[str, dict[str, Any]]) -> list[str]:
    """One candidate for many inputs instead of four for some."""
    words = ["--methods", *settings, "--settings", json.dumps(settings), "--seeds", "0", "1", "2", "--start_steps", "0"]
    words += ["--num_candidates", "1", "--candidate_rows", str(rows), "--candidate_temperature", str(temperature)]
    return [*words, "--budget_seconds", str(seconds)]


LIKELY = {
    "semi_offline": BEYOND["standardised"],
    "semi_offline@400-steps": {"scale_rewards": False, "rl_weight": 10, "steps": 400},
}
LONGEST: dict[str, dict[str, Any]] = {"semi_offline": BEYOND["standardised"] | {"eos_after": 4, "draw_end": True}}
"""What helped, together. With its candidates it takes as long as the M-FT stage."""
ONE_PASS: dict[str, dict[str, Any]] = {"mft": {}, "ft": {"seeds": [0]}, "gold": {"seeds": [0]}}
"""The other methods at one forward pass, for as long and on as many inputs."""
NEAR: dict[str, dict[str, Any]] = {
    "semi_offline": {"rl_ratio": 3},
    "semi_offline@draw-end": {"eos_after": 4, "draw_end": True},
}
"""Beside the worst of 16 texts, which is far from what the model writes."""
KEPT = ("data-plus", "random-candidate", "ground-truth", "mask-0.2", "masked-mle")
BALANCED = {"ratio-1": {"rl_ratio": 1}} | {f"ratio-1-{name}": BEYOND[name] | {"rl_ratio": 1} for name in KEPT}
"""What may keep its gain where a larger weight loses it."""
LIKE_TEST = "e2e-like-test"
"""E2E, but for training and validation those inputs alone that are like the ones of the test split: 98 % of these say
what the place is `near` and its `eatType`, of the training inputs 22 %, of the validation inputs 54 %."""
SMOLLM2 = ("compare-samsum-smollm2", "samsum-smollm2", "samsum")
COMPARISONS: dict[str, tuple[str, str, str, int, list[str]]] = {
    # name: recipe, model (or the comparison whose start it has, and whose candidates, if it makes none), data, runs at
    # a time, more flags
    "e2e-flan-t5": ("compare-e2e", "flan-t5", "e2e", 6, []),
    "commongen-flan-t5": ("compare-commongen", "flan-t5", "commongen", 6, []),
    "nqg-flan-t5": ("compare-nqg", "flan-t5", "nqg", 6, []),
    "nqg-flan-t5-likely": ("compare-nqg", "nqg-flan-t5", "nqg", 6, own_candidates(0.3, 1_000_000, 15, NEAR)),
    "samsum-smollm2": ("compare-samsum-smollm2", "smollm2", "samsum", 5, []),
    "samsum-smollm2-unseen": ("compare-samsum-smollm2-unseen", "smollm2", "samsum", 5, []),
    "samsum-flan-t5": ("compare-samsum-flan-t5", "flan-t5", "samsum", 5, []),
    "e2e-flan-t5-like-test": (
        *("compare-e2e", "e2e-flan-t5", LIKE_TEST, 6),
        ["--start_steps", "0", "--num_candidates", "16", "--budget_seconds", "15"],
    ),
    "e2e-rates": ("compare-e2e-rates", "e2e-flan-t5", "e2e", 7, []),
    "e2e-contexts": ("compare-e2e-contexts", "e2e-flan-t5", "e2e", 6, []),
    "commongen-variants": ("compare-commongen-variants", "commongen-flan-t5", "commongen", 12, []),
    "commongen-length": ("compare-commongen-length", "commongen-flan-t5", "commongen", 10, []),
    "commongen-offline": ("compare-commongen-offline", "flan-t5", "commongen", 9, []),
    "commongen-steps": ("compare-commongen", "commongen-flan-t5", "commongen", 6, equal_steps({"rl_ratio": 10})),
    "nqg-steps": ("compare-nqg", "nqg-flan-t5", "nqg", 6, equal_steps({"rl_ratio": 10})),
    "e2e-steps": ("compare-e2e", "e2e-flan-t5", "e2e", 6, equal_steps({"rl_ratio": 1})),
    "samsum-smollm2-steps": (*SMOLLM2, 4, equal_steps({}, 8)),
    "samsum-flan-t5-steps": ("compare-samsum-flan-t5", "samsum-flan-t5", "samsum", 5, equal_steps({})),
    "e2e-weights": ("compare-e2e", "e2e-flan-t5", "e2e", 5, tune(5e-5)),
    "e2e-balanced": ("compare-e2e", "e2e-flan-t5", "e2e", 5, variants(BALANCED)),
    "samsum-smollm2-weights": (*SMOLLM2, 4, tune(2e-5)),
    "samsum-flan-t5-variants": ("compare-samsum-flan-t5", "samsum-flan-t5", "samsum", 5, beyond(5e-5)),
    "samsum-smollm2-variants": (*SMOLLM2, 4, beyond(2e-5)),
    "samsum-smollm2-more": ("compare-samsum-smollm2", "samsum-smollm2-unseen", "samsum", 5, more()),
    # texts near to what the model would write: that is what it will see when it decodes greedily
    "samsum-smollm2-likely": (*SMOLLM2, 6, own_candidates(0.3, 1_000_000, 45, LIKELY)),
    "samsum-smollm2-longest": (*SMOLLM2, 5, own_candidates(1.0, 10_000, 70, LONGEST | ONE_PASS)),
    "samsum-smollm2-longest-likely": (*SMOLLM2, 5, own_candidates(0.3, 10_000, 70, LONGEST)),
    "samsum-flan-t5-weights": ("compare-samsum-flan-t5", "samsum-flan-t5", "samsum", 4, tune(5e-5)),
}
BESIDE = {"samsum-smollm2": ["longest", "longest-likely"], "nqg-flan-t5": ["likely"], "e2e-flan-t5": ["like-test"]}
"""Comparisons from the same start, NAME-SUFFIX, whose runs stand in the table of NAME; docs/results has such a table as
NAME-SUFFIX.json, with the first suffix."""
STARTED = time.time()
PARTS = ("start", "timing", "runs", "table")
TRIALS = 3
"""What fails is tried again: side by side, runs may want more memory than there is."""


def say(text: str) -> None:
    print(f"{time.time() - STARTED:6.0f} s  {text}", flush=True)


def choose_like_test(data: Path, folder: Path) -> None:
    """data: E2E as it is published. The test split stays whole."""
    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")  # so that what is left of a stopped run is not taken for all of it
    part.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        rows = load_rows(data, split, require=())
        if split != "test":
            rows = rows.filter(lambda row: all(f"{name}[" in str(row) for name in ("near", "eatType")))
        rows.to_json(part / f"{split}.jsonl")
    part.rename(folder)


def command(args: argparse.Namespace, name: str, only: str | None) -> list[str]:
    recipe, model, data, jobs, more = COMPARISONS[name]
    rows = args.out / data if data == LIKE_TEST else args.data / data
    words = ["--config", recipe, "--data_dir", rows, "--output_dir", args.out / name]
    if model in COMPARISONS:
        first = args.out / model
        words += ["--model", first / "start/model"]
        if "--num_candidates" not in more:  # else it makes its own
            words += ["--train_file", first / "candidates/candidates.jsonl"]
    else:
        words += ["--model", args.models / model]
    words += ["--jobs", jobs, *more, *(["--only", only] if only else []), *args.more]
    return [sys.executable, "-m", "semioffline", "compare", *map(str, words)]


def run(args: argparse.Namespace, names: list[str], only: str | None) -> None:
    """One part of several comparisons at a time; a part that fails is told and does not stop the others."""

    def one(name: str) -> None:
        part = (only or "runs").partition(":")[0]
        for trial in range(TRIALS):
            with open(args.out / f"{name}-{part}-{trial}.log", "w") as log:
                code = subprocess.run(command(args, name, only), stdout=log, stderr=subprocess.STDOUT).returncode
            say(f"{name}, {part}: exit code {code}")
            if code == 0:
                return
        if part == "runs":  # what there is
            subprocess.run(command(args, name, "table"), stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(max(len(names), 1)) as pool:
        list(pool.map(one, names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--models", "--data", "--out"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--names", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to do now; the rest another time"
    )
    args, args.more = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if any(COMPARISONS[name][2] == LIKE_TEST for name in args.names):
        choose_like_test(args.data / "e2e", args.out / LIKE_TEST)
    first = [name for name in args.names if COMPARISONS[name][1] not in COMPARISONS]
    if "start" in args.parts:
        run(args, first, "start:0")
    for name in first if "timing" in args.parts else ():
        run(args, [name], "timing")
    if "runs" in args.parts:
        run(args, first, None)
        others = [name for name in args.names if name not in first]
        for name in others:
            if "--budget_seconds" in COMPARISONS[name][4]:  # timed alone
                run(args, [name], "timing")
        run(args, others, None)
    for name in BESIDE if "table" in args.parts else ():
        folders = {suffix: args.out / f"{name}-{suffix}" for suffix in BESIDE[name]}
        done = [f"{suffix}={folder}" for suffix, folder in folders.items() if (folder / "comparison.json").exists()]
        if name in args.names and done:
            subprocess.run([*command(args, name, "table"), "--beside", *done], stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
