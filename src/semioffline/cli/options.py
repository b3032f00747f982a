"""Options that several commands share, and how command lines and recipes are read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from transformers import HfArgumentParser

from semioffline.cli.help import print_help
from semioffline.cli.recipes import Recipe, take_recipe
from semioffline.config import Range, setting
from semioffline.errors import UserError, unknown
from semioffline.methods.registry import readers
from semioffline.tasks.reading.formats import MAX_ROW_MB
from semioffline.tasks.reading.rows import parse_columns
from semioffline.tasks.registry import Source, Task, load_task

if TYPE_CHECKING:
    from semioffline.policy.policy import Policy


@dataclass
class DataOptions:
    task: str = setting("files", "Task by name; `files` is any data with a prompt and a completion.", "Data")
    data_dir: str | None = setting(
        None, "Folder with train/validation/test files, or a Hugging Face dataset; else the task's own.", "Data"
    )
    train_file: str | None = setting(None, "File of the train split: JSON lines, CSV or Parquet.", "Data")
    validation_file: str | None = setting(None, "File of the validation split.", "Data", free=True)
    test_file: str | None = setting(None, "File of the test split.", "Data", free=True)
    columns: list[str] = setting([], "Column map, ours=theirs: prompt=dialogue completion=summary.", "Data")
    prompt_template: str | None = setting(None, "For instance 'Dialogue:\\n{prompt}\\nSummary:'.", "Data")
    limit: int | None = setting(None, "Rows to take of each split.", "Data")
    eval_limit: int | None = setting(None, "Rows to take of the validation split.", "Data", free=True)
    max_row_mb: float = setting(
        MAX_ROW_MB,
        "Longest row of a data file, in MB; a longer one stops.",
        "Data",
        Range(0, 2000, True),
        free=True,
    )

    def __post_init__(self) -> None:
        self.model: str | None = None  # the model that reads the prompts: `parse` fills it in, from ModelOptions

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
            max_row_mb=self.max_row_mb,
            seed=seed,
            model=self.model,
        )

    def made_with(self) -> Recipe:
        """What is noted of the data where something is made of it: not what only guards the reading."""
        return {name: value for name, value in asdict(self).items() if name != "max_row_mb"}

    def has(self, split: str) -> bool:
        """Whether there is such a split: a folder may lack one; a hub dataset is not asked."""
        return self.load_task().has(self.source(), split)


@dataclass
class ModelOptions:
    model: str | None = setting(None, "Hub name or folder of the model.", "Model")
    device: str = setting("auto", "auto | cpu | cuda | cuda:N | mps", "Model")
    dtype: str = setting("float32", "Precision of the weights: float32 | bfloat16 | float16.", "Model")

    def checked_device(self) -> str:
        """The device to use. One that does not exist is an error, not a silent fallback."""
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

    def load(self, **kwargs: Any) -> Policy:
        import torch

        from semioffline.policy.policy import Policy

        if self.model is None:
            raise UserError("which model? give --model NAME_OR_FOLDER")
        types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        if self.dtype not in types:
            raise unknown("dtype", self.dtype, types)
        return Policy.load(self.model, dtype=types[self.dtype], **kwargs)


def wants_help(argv: list[str]) -> bool:
    return bool({"-h", "--help", "--help-all"} & set(argv))


class _Parser(HfArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(message)

    @staticmethod
    def _parse_dataclass_field(parser: Any, field: Any) -> None:
        """Transformers hands all metadata of a field to argparse, which knows `help` alone."""
        field = copy.copy(field)
        field.metadata = {"help": field.metadata.get("help")}
        HfArgumentParser._parse_dataclass_field(parser, field)


Unread = Literal["reject", "ignore"]


def parse(
    command: str,
    types: Sequence[Any],
    argv: list[str],
    defaults: Recipe | None = None,
    unread: Unread = "reject",
    shared_recipe: bool = False,
) -> tuple[Any, ...]:
    """Flags to dataclasses. `--config recipe.yaml` gives defaults that flags override.

    Args:
        unread: what to do with flags and keys that none of the dataclasses has.
        shared_recipe: the recipe may also hold settings of other methods, which are not used.
    """
    if wants_help(argv):
        print_help(command, types, everything="--help-all" in argv)
        raise SystemExit(0)
    parser = _Parser(types, prog=f"semioffline {command}", allow_abbrev=False, add_help=False)
    names = {action.dest for action in parser._actions}
    recipe, argv = take_recipe(argv)
    if shared_recipe:
        recipe.pop("method", None)
    for key in sorted(map(str, recipe.keys() - names)) if unread == "reject" else ():
        if not (shared_recipe and readers(key)):
            raise unread_setting("key in the recipe", key, names)
    given = (defaults or {}) | {key: value for key, value in recipe.items() if key in names}
    *parsed, rest = parser.parse_args_into_dataclasses(
        args=as_flags(given) + argv, return_remaining_strings=True, look_for_args_file=False
    )
    if rest and unread == "reject":
        if not rest[0].startswith("-"):
            raise UserError(f"'{rest[0]}' is not an option: every setting is --name value")
        raise unread_setting("option", rest[0].split("=")[0].lstrip("-"), names)
    for data in (options for options in parsed if isinstance(options, DataOptions)):
        data.model = next((options.model for options in parsed if isinstance(options, ModelOptions)), None)
    return tuple(parsed[: len(types)])


def unread_setting(kind: str, name: str, names: Iterable[str]) -> UserError:
    """The error for a setting that the command or its method does not read, with the nearest one that it does."""
    error, others = unknown(kind, name, names), readers(name)
    return UserError(f"{error} '{name}' is a setting of {', '.join(others)}.") if others else error


def at_least(least: int, options: Any, *names: str) -> None:
    """Reject numbers of these options that are smaller; those that are not given are allowed."""
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not number >= least:
                raise UserError(f"--{name} {number} must be at least {least}")


def as_flags(settings: Mapping[str, object]) -> list[str]:
    """Settings as the words of a command line."""
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
        elif str(value).startswith("-"):  # a text that is no option
            flags.append(f"--{key}={value}")
        else:
            flags += [f"--{key}", str(value)]
    return flags
