"""semioffline demo: M-FT, then semi-offline RL, side by side on held-out records."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from semioffline.cli.options import parse
from semioffline.cli.results import Output, StageResult
from semioffline.config import MethodConfig
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.evaluation.results import write_predictions
from semioffline.methods.registry import config_class
from semioffline.policy.policy import Policy
from semioffline.printing import one_line, say, show_table
from semioffline.scoring.reward_set import check_names
from semioffline.storage.files import make_folder
from semioffline.tasks.registry import Task
from semioffline.training.initial_outputs import BEFORE
from semioffline.training.run_folder import open_folder, write_result, write_settings
from semioffline.validation import BATCH, NOT_NEGATIVE, SAMPLES, SEED, STEPS, Options, setting

if TYPE_CHECKING:
    from datasets import Dataset

    from semioffline.training.trainer import SemiOfflineTrainer


@dataclass
class DemoOptions(Options):
    seed: int = setting(0, "Seed of the data, the model and the training.", allowed=SEED)
    output_dir: str | None = setting(None, "Run folder; runs/demo-DATE when not given.", place=True)
    reward: list[str] = setting([], "What to train for; the task's own reward when not given.")
    mft_steps: int = setting(300, "Steps of fine-tuning with masks.", allowed=STEPS)
    rl_steps: int = setting(150, "Steps of semi-offline RL.", allowed=STEPS)
    mft_learning_rate: float = setting(
        2e-3, "Learning rate of M-FT (the default suits the tiny model).", allowed=NOT_NEGATIVE
    )
    rl_learning_rate: float = setting(1e-3, "Learning rate of semi-offline RL.", allowed=NOT_NEGATIVE)
    rl_weight: float = setting(0.5, "Lambda, the weight of the RL loss.", allowed=NOT_NEGATIVE)
    num_samples: int = setting(32, "K, samples drawn from each forward pass.", allowed=SAMPLES)
    batch_size: int = setting(32, "Inputs in one step.", allowed=BATCH)


def run(argv: list[str]) -> None:
    types = [DataOptions, ModelOptions, DemoOptions]
    data, model, options = parse("demo", types, argv, {"task": "ads"})
    if data.task == "ads" and not options.reward:
        say("A synthetic task: write an advertisement for a product record; the reward is a made-up click model.\n")
    if model.model is None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # more would wait for each other, for minutes where the cores have other work, too
    demo(data, model, options)


def demo(data: DataOptions, model: ModelOptions, options: DemoOptions) -> dict[str, StageResult]:
    """Both stages, one after the other; method -> its result."""
    from semioffline.training.trainer import SemiOfflineTrainer

    device = model.checked_device()
    task = data.load_task()
    reward = options.reward or ([task.reward] if task.reward else [])
    if not reward:
        raise UserError(f"the task {data.task} has no reward of its own: give --reward")
    if model.model is None and data.task != "ads":
        raise UserError(f"--task {data.task} needs --model: the tiny built-in model only speaks the synthetic task")
    check_names(reward)
    path = Path(options.output_dir or f"runs/demo-{time.strftime('%Y%m%d-%H%M%S')}")
    stages = [_settings(method, task, options, path, device == "cpu") for method in ("mft", "semi_offline")]
    source = data.source(options.seed)
    rows, dev, test = (task.load(source, split) for split in ("train", "validation", "test"))
    policy = initial_policy(model, options.seed)
    folder = open_folder(path)
    write_settings(folder, data, model, options)

    results: dict[str, StageResult] = {}
    for args in stages:
        trainer = SemiOfflineTrainer(policy, reward if args.method == "semi_offline" else None, args, rows, dev)
        following = folder / "semi_offline" if args.method == "mft" else None
        results[args.method] = _train(trainer, test, folder / args.method, following)
        write_result(folder, {method: stage.to_json() for method, stage in results.items()})
    _print(results, list(task.metrics))
    if data.task == "ads" and reward == ["click_rate"]:
        _print_check(results, test["category"])
    say(f"Run folder: {folder}")
    return results


def _settings(method: str, task: Task, options: DemoOptions, folder: Path, on_cpu: bool) -> MethodConfig:
    """Of one stage."""
    first = method == "mft"
    steps = options.mft_steps if first else options.rl_steps
    own = {} if first else {"rl_weight": options.rl_weight, "num_samples": options.num_samples}
    return config_class(method).of(
        {
            **task.settings,
            **own,
            "output_dir": str(folder / method),
            "seed": options.seed,
            "max_steps": steps,
            "learning_rate": options.mft_learning_rate if first else options.rl_learning_rate,
            "warmup_steps": min(20, steps),
            "per_device_train_batch_size": options.batch_size,
            "per_device_eval_batch_size": 100,
            "logging_steps": 10,
            "eval_strategy": "steps",
            "eval_steps": 50,
            "save_strategy": "no",
            "eval_metrics": list(task.metrics),
            "report_to": "none",
            "use_cpu": on_cpu,
        }
    )


def _train(trainer: SemiOfflineTrainer, test: Dataset, folder: Path, following: Path | None) -> StageResult:
    """One stage: train, decode the held-out records, save. following: the folder of the stage that starts from it."""
    policy = trainer.policy
    policy.meter.counts.clear()
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    held_out = trainer.prepare(test)
    evaluation = trainer.evaluate_outputs(held_out)
    write_predictions(folder / "predictions.jsonl", evaluation, held_out)
    if following is not None:
        make_folder(following)
        write_predictions(following / BEFORE, evaluation, held_out)
    trainer.save_model(str(folder / "model"))
    return StageResult(
        metrics=evaluation.result(seed=trainer.args.seed),
        cost_per_input=policy.meter.per_input(),
        inputs=policy.meter.counts["inputs"],
        seconds=seconds,
        example=Output(test[0]["prompt"], evaluation.predictions[0]),
    )


def _print_check(results: dict[str, StageResult], categories: list[str]) -> None:
    """That the synthetic task is not rigged: ignoring the record buys nothing."""
    from semioffline.tasks.ads import best_single_wording

    before, after = (results[m].metrics["click_rate"].mean for m in ("mft", "semi_offline"))
    single = best_single_wording(categories)
    say(f"Clicks: {after / before:.2f} times M-FT; one best wording for all records: {single / before:.2f} times.")


def initial_policy(model: ModelOptions, seed: int) -> Policy:
    if model.model is not None:
        return model.load()
    from semioffline.tasks import ads

    return Policy(ads.build_model(seed), ads.build_tokenizer())


def _print(results: dict[str, StageResult], metrics: list[str]) -> None:
    for method, result in results.items():
        say(f"{method:>13}: {one_line(result.example.output)}")
    names = [*metrics, "distinct", "repetition", "length"]
    columns = ["", *(name.replace("_", " ") for name in [*names, "forward passes", "seconds"])]
    rows = []
    for method, result in results.items():
        values = [f"{result.metrics[name].mean:.3f}" for name in names]
        passes = f"{result.cost_per_input['forward_passes']:g} / input"
        rows.append([method, *values, passes, f"{result.seconds:.1f}"])
    inputs = next(iter(results.values())).metrics["length"].inputs
    show_table(f"held-out records ({inputs})", columns, rows, width=110)
