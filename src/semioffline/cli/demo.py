"""semioffline demo: `run` on the synthetic task `ads`, with a tiny model that is trained from scratch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from semioffline.cli.recipes import Recipe
from semioffline.cli.run import parse_job
from semioffline.cli.run_folder import about
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.job_results import MFT, JobResult
from semioffline.experiments.job_results import RESULT as RL
from semioffline.policy.policy import Policy
from semioffline.printing import one_line, say
from semioffline.report.job import in_folder, run_and_report
from semioffline.storage.files import read_log

DEFAULTS: Recipe = {"task": "ads", "batch_size": 32, "mft_steps": 300, "rl_steps": 150, "eval_steps": 50}
DEFAULTS |= {"mft_learning_rate": 2e-3, "rl_learning_rate": 1e-3, "rl_weight": 0.5, "num_samples": 32}
"""They suit the tiny model."""


def run(argv: list[str]) -> None:
    data, model, options = parse_job("demo", argv, DEFAULTS)
    own_task = data.task == "ads"
    if own_task and options.reward == ["click_rate"]:
        say(
            "A synthetic task: write an advertisement for a product record. The reward is a made-up click model.",
            margin=0,
        )
        say()
    if model.model is None and not own_task and options.reward:
        raise UserError(
            f"--task {data.task} needs --model: the tiny built-in model knows the words of the synthetic task only"
        )
    if model.model is None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # more would wait for each other, for minutes where the cores have other work, too

    def build(folder: Path, adapter: Any) -> Policy:
        return tiny_policy(options.seed, adapter)

    load = build if model.model is None else None
    options = in_folder(options, "demo")
    result = run_and_report(data, model, options, list(options.reward), load, about=about("demo", argv))
    if result is not None and own_task and options.reward == ["click_rate"]:
        _print_check(data, options, result, Path(str(options.output_dir)))


def _print_check(data: DataOptions, options: JobOptions, result: JobResult, folder: Path) -> None:
    """Print an output of both models, and the gain of the best single wording for all records."""
    from semioffline.tasks.ads import best_single_wording

    test = data.load_task().load(data.source(options.seed), "test")
    for name in (MFT, RL):
        if name in result.models:
            [first, *_] = read_log(folder / name / "predictions.jsonl")
            say(f"{result.models[name].label:>15}: {one_line(first['prediction'])}", margin=17)
    if MFT in result.models:
        before, after = (result.models[name].metrics["reward"].mean for name in (MFT, RL))
        single = best_single_wording(test["category"])
        counted = f"{after / before:.2f} times M-FT; one best wording for all records: {single / before:.2f} times."
        say(f"Clicks: {counted}", margin=8)


def tiny_policy(seed: int, adapter: Any = None) -> Policy:
    """Build the model of the synthetic task, with random weights."""
    from semioffline.tasks import ads

    return Policy(ads.build_model(seed), ads.build_tokenizer(), peft_config=adapter)


def initial_policy(model: ModelOptions, seed: int) -> Policy:
    return tiny_policy(seed) if model.model is None else model.load()
