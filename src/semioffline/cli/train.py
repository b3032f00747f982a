"""semioffline train METHOD: run one training stage, from a model and data to a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint

from semioffline.cli.help import DEFAULT_METHOD, wants_help
from semioffline.cli.options import parse
from semioffline.cli.recipes import Recipe, take_recipe
from semioffline.cli.run_folder import about, print_changes, print_metrics
from semioffline.config import MethodConfig, defining_settings
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError, changes, told_in_one_line
from semioffline.experiments.provenance import Provenance, write_about
from semioffline.methods.shared.registry import config_class, load_method, method_names
from semioffline.policy.loading import lora_config
from semioffline.printing import say
from semioffline.storage.files import read_content
from semioffline.storage.untrusted import parse_yaml
from semioffline.training.console import Console
from semioffline.training.run_folder import RunFolder, open_folder, settings_of
from semioffline.training.trainer import SemiOfflineTrainer
from semioffline.validation import BATCH, Options, setting


@dataclass
class TrainOptions(Options):
    reward: list[str] = setting(
        [], "Reward by name, file.py:function, module:function or model:NAME; several are added.", "Reward"
    )
    resume: bool = setting(
        False, "Continue from the last complete checkpoint in --output_dir, if there is one.", "Training", free=True
    )
    lora_r: int | None = setting(None, "Train LoRA adapters of this rank instead of all weights.", "Model", BATCH)
    lora_alpha: int = setting(32, "LoRA alpha: scale of the adapters.", "Model", BATCH)

    def adapter(self) -> Any:
        return None if self.lora_r is None else lora_config(self.lora_r, self.lora_alpha)


def run(argv: list[str]) -> None:
    if argv and wants_help(argv[:1]):
        argv = [DEFAULT_METHOD, argv[0]]
    if not argv or argv[0].startswith("-"):
        raise UserError(
            f"no method given: semioffline train METHOD, where METHOD is one of {', '.join(method_names())}"
        )
    method, argv = argv[0], argv[1:]
    data, model, options, args = parse_training(method, argv)
    folder = open_folder(str(args.output_dir), options.resume, can_resume=True)
    train(data, model, options, args, folder, about("train", [method, *argv]))


def parse_training(method: str, argv: list[str]) -> tuple[DataOptions, ModelOptions, TrainOptions, MethodConfig]:
    """Parse the options of a training stage. A task's settings are the defaults; the recipe and the flags override
    them."""
    types = [DataOptions, ModelOptions, TrainOptions, config_class(method)]
    command = f"train {method}"
    named = method if wants_help(argv) else take_recipe(argv)[0].get("method", method)
    if named != method:
        raise UserError(f"the recipe says method={named}, the command says {method}")
    first_data, first_model = parse(command, types[:2] if not wants_help(argv) else types, argv, unread="ignore")[:2]
    task, on_cpu = first_data.load_task(), first_model.checked_device() == "cpu"
    defaults = {**task.settings, "eval_metrics": list(task.metrics), "reward": [task.reward] if task.reward else None}
    defaults |= {"use_cpu": True} if on_cpu else {}
    data, model, options, args = parse(command, types, argv, defaults, shared_recipe=True)
    if args.resume_from_checkpoint is not None:
        raise UserError(
            "--resume_from_checkpoint is not supported: use --resume, which continues from the last complete "
            "checkpoint in --output_dir"
        )
    return data, model, options, args


def _check_same_run(folder: Path, now: Recipe, names: set[str]) -> None:
    """Reject resuming a run with different settings. Its length, evaluation and hardware may change."""
    path = folder / "config.yaml"
    with told_in_one_line(ValueError, before=f"{path} is not YAML: "):
        before = parse_yaml(read_content(path)) if path.exists() else None
    kept = get_last_checkpoint(str(folder)) is not None or (folder / "result.json").exists()
    if not kept or not isinstance(before, dict):  # there is nothing to go on with
        return
    told = changes(_whole_paths(before), _whole_paths(now), names & before.keys())
    if told:
        raise UserError(f"--resume: {folder} is a run with other settings ({told}): name another folder")


def _whole_paths(settings: Recipe) -> Recipe:
    return settings | {
        name: str(Path(str(settings[name])).resolve())
        for name in ("model", "data_dir", "train_file")
        if settings.get(name) and Path(str(settings[name])).exists()
    }


def train(
    data: DataOptions,
    model: ModelOptions,
    options: TrainOptions,
    args: MethodConfig,
    folder: Path,
    made: Provenance | None = None,
) -> None:
    """Train, save folder/model, print the result, and write report.html. made: the command and versions, for the
    report."""
    if options.resume:
        names = defining_settings(DataOptions, TrainOptions, type(args)) | {"model", "dtype", "method"}
        _check_same_run(folder, settings_of(data, model, options, args), names)
    task = data.load_task()
    rows = task.load(data.source(args.seed), "train")
    dev = task.load(data.source(args.seed, data.eval_limit), "validation") if data.has("validation") else None
    set_seed(args.seed)  # an adapter's weights are drawn when it is added
    policy = model.load(peft_config=options.adapter(), share_prompt=args.share_prompt)
    needs_reward = load_method(args).needs_reward
    if needs_reward and not options.reward:
        raise UserError(f"the method {args.method} needs --reward: a name, file.py:function or model:NAME")
    console = Console(data.called)
    trainer = SemiOfflineTrainer(policy, options.reward or None, args, rows, dev, callbacks=[console])
    trainer.run_folder.describe(data, model, options)
    if trainer.accelerator.is_main_process and made is not None:
        write_about(folder, made, (data, model, options, args), {"train": rows, "validation": dev})
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model(str(folder / "model"))
    result = trainer.run_folder.result
    if result is None or not trainer.accelerator.is_main_process:  # --write_result false
        return
    _print_metrics(trainer.run_folder, list(trainer.reward_set.functions))
    say(f"{result.steps} steps in {result.seconds:.1f} s; model in {folder / 'model'}")
    from semioffline.report.page import write_report  # not needed before

    say(f"Report: {write_report([folder])}")


def _print_metrics(run: RunFolder, rewards: list[str]) -> None:
    """Print how training changed the validation metrics. If before.jsonl has fewer inputs, also print the metrics of
    all inputs."""
    metrics = None if run.result is None else run.result.metrics
    if metrics is None:
        return
    inputs = max(metric.inputs for metric in metrics.values())
    if run.compared < inputs:
        print_metrics(f"validation: {inputs:,} inputs", metrics)
    if run.changes:
        print_changes(f"validation: {run.compared:,} inputs, before and after training", run.changes, rewards)
