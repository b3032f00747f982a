"""Flags, and recipes that give their defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from semioffline.config import option
from semioffline.errors import UserError, unknown
from semioffline.tasks import Source, Task, load_task
from semioffline.tasks.files import parse_columns


@dataclass
class DataOptions:
    task: str = option("files", "Task by name; `files` is any data with a prompt and a completion.")
    data_dir: str | None = option(
        None, "Folder with train/validation/test files, or a Hugging Face dataset name; else the task's public dataset."
    )
    train_file: str | None = option(None, "File of the train split (JSON lines, CSV, Parquet; compressed too).")
    validation_file: str | None = option(None, "File of the validation split.")
    test_file: str | None = option(None, "File of the test split.")
    columns: list[str] = option([], "Column map, ours=theirs: prompt=dialogue completion=summary.")
    prompt_template: str | None = option(None, "For instance 'Dialogue:\\n{prompt}\\nSummary:'.")
    limit: int | None = option(None, "Take so many rows of each split only.")
    eval_limit: int | None = option(None, "Take so many rows of the validation split only.")

    def __post_init__(self) -> None:
        self.model: str | None = None  # what reads the prompts: `parse` fills it in, from ModelOptions

    def load_task(self) -> Task:
        return load_task(self.task)

    def source(self, seed: int = 0, limit: int | None = None) -> Source:
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return Source(
            data_dir=self.data_dir,
            files={split: path for split, path in files.items() if path},
            columns=parse_columns(self.columns),
            prompt_template=self.prompt_template,
            limit=limit if limit is not None else self.limit,
            seed=seed,
            model=self.model,
        )

    def has(self, split: str) -> bool:
        """Whether there is such a split: a folder may lack one; a hub dataset is not asked."""
        return self.load_task().has(self.source(), split)


@dataclass
class ModelOptions:
    model: str | None = option(None, "Hub name or folder of the model.")
    device: str = option("auto", "auto | cpu | cuda | cuda:N | mps")
    dtype: str = option("float32", "Precision of the weights: float32 | bfloat16 | float16.")

    def checked_device(self) -> str:
        """The device to use; one that is not there is an error, not a silent fall-back."""
        import torch

        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        if self.device == "auto":
            return next(name for name, there in available.items() if there)
        kind, _, number = self.device.partition(":")
        if kind not in available:
            raise unknown("device", self.device, ["auto", *available])
        no_such = number and not (number.isdigit() and int(number) < torch.cuda.device_count())
        if not available[kind] or no_such:
            there = [name for name, is_there in available.items() if is_there]
            raise UserError(f"--device {self.device}: there is no such device here (there is: {', '.join(there)})")
        return self.device

    def load(self, **kwargs: Any) -> Any:
        import torch

        from semioffline.policy.policy import Policy

        if self.model is None:
            raise UserError("which model? give --model NAME_OR_FOLDER")
        types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        if self.dtype not in types:
            raise unknown("dtype", self.dtype, types)
        return Policy.load(self.model, dtype=types[self.dtype], **kwargs)


class _Parser(HfArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(message)


def parse(
    command: str, types: list[Any], argv: list[str], defaults: dict[str, Any] | None = None, strict: bool = True
) -> tuple[Any, ...]:
    """Flags to dataclasses. `--config recipe.yaml` gives defaults that flags override; unknown keys are refused.

    Not strict: only these dataclasses' settings are read, and what is not theirs is left alone.
    """
    parser = _Parser(types, prog=f"semioffline {command}", allow_abbrev=False)
    parser.add_argument("--config", help="A YAML recipe: the same names as the flags.")
    names = {action.dest for action in parser._actions} - {"help"}
    recipe, argv = _take_config(argv)
    given = dict(defaults or {})
    if recipe is not None:
        for key in recipe.keys() - names if strict else ():
            raise unknown("key in the recipe", str(key), names)
        given |= {key: value for key, value in recipe.items() if key in names}
    *parsed, rest = parser.parse_args_into_dataclasses(
        args=_as_flags(given) + argv, return_remaining_strings=True, look_for_args_file=False
    )
    if rest and strict:
        if not rest[0].startswith("-"):
            raise UserError(f"'{rest[0]}' stands alone: every setting is --name value")
        raise unknown("option", rest[0].split("=")[0].lstrip("-"), names)
    for data in (options for options in parsed if isinstance(options, DataOptions)):
        data.model = next((options.model for options in parsed if isinstance(options, ModelOptions)), None)
    return tuple(parsed[: len(types)])


def at_least(least: int, options: Any, *names: str) -> None:
    """Refuse numbers of these options that are smaller; what is not given is left alone."""
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not number >= least:
                raise UserError(f"--{name} {number} must be at least {least}")


def _take_config(argv: list[str]) -> tuple[dict[str, Any] | None, list[str]]:
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in argv:
        return None, argv
    at = argv.index("--config")
    if at + 1 == len(argv):
        raise UserError("--config needs the path of a recipe")
    path = Path(argv[at + 1])
    try:
        recipe = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise UserError(f"{path} must hold names and values, one setting a line")
    return recipe, argv[:at] + argv[at + 2 :]


def _as_flags(settings: dict[str, Any]) -> list[str]:
    flags = []
    for key, value in settings.items():
        if value is None or value == [] or value == "":
            continue
        if isinstance(value, list):
            flags += [f"--{key}", *map(str, value)]
        elif isinstance(value, dict):
            flags += (
                [f"--{key}", *(f"{k}={v}" for k, v in value.items())]
                if key == "columns"
                else [f"--{key}", json.dumps(value)]
            )
        else:
            flags += [f"--{key}", str(value)]
    return flags
