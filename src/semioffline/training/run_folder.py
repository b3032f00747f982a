"""Write the files of every run folder, from Python and from the command line: settings, versions, results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from semioffline import __version__
from semioffline.config import MethodConfig
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.evaluation.paired import Change, Predictions, paired_changes
from semioffline.evaluation.results import MetricResult, write_predictions
from semioffline.evaluation.statistics import Difference
from semioffline.storage.files import is_unused, lock_folder, make_folder, open_for_writing, read_json, write_atomically
from semioffline.storage.records import Record
from semioffline.training.initial_outputs import BEFORE, write_initial_outputs
from semioffline.validation import show

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from semioffline.training.trainer import SemiOfflineTrainer

RESULT, PREDICTIONS = "result.json", "predictions.jsonl"
Versions = Mapping[str, str | int | list[str] | None]
"""Packages and the machine: name -> version, `cores` -> their number, `gpus` -> their names."""
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "peft", "sacrebleu", "rapidfuzz", "nltk")


@dataclass(frozen=True)
class TrainResult(Record):
    """The result.json of a run that trains."""

    method: str
    steps: int
    seconds: float
    """Seconds of training, including those before a resume."""
    cost_per_input: dict[str, float]
    truncation: str
    metrics: dict[str, MetricResult] | None = None
    """Metrics on the validation split; None if there is none."""
    differences: dict[str, Difference] | None = None
    """Differences from the outputs of the initial checkpoint (before.jsonl), over the same inputs; None if there are
    none."""

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in super().to_json().items() if value is not None}


def versions(system: bool = True) -> Versions:
    """Return the versions of this library and its dependencies, and the machine. The operating system is left out in
    files for others."""
    import torch

    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "gpus": gpus}
    os_name = {"system": platform.platform(terse=True)} if system else {}
    return {"semioffline": __version__, **found, **machine, **os_name}


def open_folder(folder: str | Path, resume: bool = False, can_resume: bool = False, lock: bool = True) -> Path:
    """Open a new folder, or with `resume` one that may hold an earlier part of this run. can_resume: whether the
    command has --resume. lock: whether to refuse it to all other processes until the command ends."""
    path = Path(folder)
    if not str(folder).strip():
        raise UserError("--output_dir must not be empty: name a folder")
    if path.is_file():
        raise UserError(f"--output_dir {path} is a file")
    first = process_rank() == 0  # the other processes may find what the first has written already
    if first and not resume and path.is_dir() and not is_unused(path):
        go_on = "add --resume to go on with it, or " if can_resume else ""
        raise UserError(f"--output_dir {path} is not empty: {go_on}name another folder")
    open_for_writing(path)
    if first and lock:
        lock_folder(path)
    return path


def process_rank() -> int:
    """Return the rank of this process, as set by torchrun."""
    given = os.environ.get("RANK", "0")
    if not given.isdigit():
        raise UserError(f"the environment variable RANK={show(given)} must be a whole number: torchrun sets it")
    return int(given)


def write_settings(folder: Path, *options: DataclassInstance) -> None:
    """Write config.yaml with all resolved settings, defaults included, and versions.json."""
    write_atomically(folder / "config.yaml", yaml.safe_dump(settings_of(*options), sort_keys=True))
    write_atomically(folder / "versions.json", json.dumps(versions(), indent=1))


def settings_of(*options: DataclassInstance) -> dict[str, object]:
    """Return the settings in the form that config.yaml stores."""
    settings: dict[str, object] = {}
    for option in options:
        values = option.to_dict() if isinstance(option, MethodConfig) else dataclasses.asdict(option)
        settings |= {key: value for key, value in values.items() if not key.startswith("_")}
    return json.loads(json.dumps(settings, default=str))


def write_result(folder: Path, result: Mapping[str, object]) -> None:
    write_atomically(folder / RESULT, json.dumps(result, indent=1))


class RunFolder:
    """Writes the files of a trainer's run folder, unless write_result is off."""

    def __init__(self, trainer: SemiOfflineTrainer) -> None:
        self.trainer = trainer
        self.result: TrainResult | None = None
        """The content of result.json, after training."""
        self.changes: dict[str, Change] = {}
        """metric -> before and after training, over the inputs of before.jsonl"""
        self.compared = 0
        """Number of these inputs."""
        self._described: tuple[DataclassInstance, ...] = ()
        self._started = 0.0

    def describe(self, *options: DataclassInstance) -> None:
        """Add further entries to config.yaml, such as where data and model come from."""
        self._described = options

    def begin(self) -> None:
        """Write settings and versions, and the outputs of the initial checkpoint for the validation split. Called
        before training."""
        args = self.trainer.args
        if args.write_result:
            folder = Path(str(args.output_dir))
            if self.trainer.accelerator.is_main_process:
                make_folder(folder)
                write_settings(folder, *self._described, args)
            write_initial_outputs(self.trainer, folder)
        self._started = time.perf_counter()

    def finish(self) -> None:
        """Write predictions.jsonl of the validation split, if there is one, and result.json. Called after training. If
        the run was complete before, its seconds stay."""
        trainer, folder = self.trainer, Path(str(self.trainer.args.output_dir))
        if not trainer.args.write_result:
            return
        result = TrainResult(
            method=trainer.args.method,
            steps=trainer.state.global_step,
            seconds=time.perf_counter() - self._started + trainer.run_log.before,
            cost_per_input=trainer.policy.meter.per_input(),
            truncation=str(trainer.train_dataset.truncation),
        )
        if trainer.run_log.found_all and (folder / RESULT).exists():
            result = replace(result, seconds=read_json(folder / RESULT)["seconds"])
        if isinstance(trainer.eval_dataset, Examples):
            evaluation = trainer.evaluate_outputs(trainer.eval_dataset)
            result = replace(result, metrics=evaluation.result(seed=trainer.args.seed))
            if trainer.accelerator.is_main_process:
                write_predictions(folder / PREDICTIONS, evaluation, trainer.eval_dataset)
                result = replace(result, differences=self._compare_with_start(folder))
        if trainer.accelerator.is_main_process:
            write_result(folder, result.to_json())
        self.result = result

    def _compare_with_start(self, folder: Path) -> dict[str, Difference] | None:
        if not (folder / BEFORE).exists():
            return None
        rewards = self.trainer.reward_set
        weights = dict(zip(rewards.functions, rewards.weights, strict=True))
        before = Predictions.read(folder / BEFORE).with_reward(weights)
        self.compared = len(before.predictions)
        after = Predictions.read(folder / PREDICTIONS).with_reward(weights).first(self.compared)
        self.changes = paired_changes(before, after)
        return {name: change.difference for name, change in self.changes.items()}
