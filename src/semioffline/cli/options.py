"""Options that several commands share, and how command lines and recipes are read."""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from semioffline.cli.help import print_help
from semioffline.cli.recipes import Recipe, take_recipe
from semioffline.errors import UserError, short, unknown
from semioffline.methods.registry import readers
from semioffline.tasks.reading.formats import MAX_ROW_MB
from semioffline.tasks.reading.rows import parse_columns
from semioffline.tasks.registry import Source, Task, load_task
from semioffline.validation import STEPS, Options, Range, setting

if TYPE_CHECKING:
    from semioffline.policy.policy import Policy

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class DataOptions(Options):
    task: str = setting("files", "Task by name; `files` is any data with a prompt and a completion.", "Data")
    data_dir: str | None = setting(
        None,
        "Folder with train/validation/test files, or a Hugging Face dataset; else the task's own.",
        "Data",
        place=True,
    )
    train_file: str | None = setting(None, "File of the train split: JSON lines, CSV or Parquet.", "Data", place=True)
    validation_file: str | None = setting(None, "File of the validation split.", "Data", free=True, place=True)
    test_file: str | None = setting(None, "File of the test split.", "Data", free=True, place=True)
    columns: list[str] = setting([], "Column map, ours=theirs: prompt=dialogue completion=summary.", "Data")
    prompt_template: str | None = setting(None, "For instance 'Dialogue:\\n{prompt}\\nSummary:'.", "Data")
    limit: int | None = setting(None, "Rows to take of each split.", "Data", STEPS)
    eval_limit: int | None = setting(None, "Rows to take of the validation split.", "Data", STEPS, free=True)
    max_row_mb: float = setting(
        MAX_ROW_MB,
        "Longest row of a data file, in MB; a longer one stops.",
        "Data",
        Range(0, 2000, open_low=True),
        free=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
class ModelOptions(Options):
    model: str | None = setting(None, "Hub name or folder of the model.", "Model", place=True)
    device: str = setting("auto", "auto | cpu | cuda | cuda:N | mps", "Model")
    dtype: str = setting("float32", "Precision of the weights: float32 | bfloat16 | float16.", "Model", choices=_DTYPES)

    def checked_device(self) -> str:
        """The device to use. One that does not exist is an error, not a silent fallback."""
        import torch

        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        if self.device == "auto":
            return next(name for name, there in available.items() if there)
        kind, numbered, number = self.device.partition(":")
        if kind not in available:
            raise unknown("device", self.device, ["auto", *available])
        known = map(str, range(torch.cuda.device_count() if kind == "cuda" else 0))
        no_such = numbered and number not in known
        if not available[kind] or no_such:
            there = [name for name, is_there in available.items() if is_there]
            raise UserError(f"--device {self.device}: there is no such device here (there is: {', '.join(there)})")
        return self.device

    def load(self, **kwargs: Any) -> Policy:
        import torch

        from semioffline.policy.policy import Policy

        if self.model is None:
            raise UserError("which model? give --model NAME_OR_FOLDER")
        return Policy.load(self.model, dtype=getattr(torch, self.dtype), **kwargs)


def wants_help(argv: list[str]) -> bool:
    return bool({"-h", "--help", "--help-all"} & set(argv))


class _Parser(HfArgumentParser):
    def error(self, message: str) -> Any:
        told = re.sub(r"^argument (--\w+)(/--\w+)*: (?='.* must be )", r"\1 ", message, flags=re.DOTALL)
        raise UserError(told)

    @staticmethod
    def _parse_dataclass_field(parser: Any, field: Any) -> None:
        """Transformers hands all metadata of a field to argparse, which knows `help` alone. Values that are not of the
        field's type are told in our words."""
        field = copy.copy(field)
        field.metadata = {"help": field.metadata.get("help")}
        before = len(parser._actions)
        HfArgumentParser._parse_dataclass_field(parser, field)
        for action in parser._actions[before:]:
            if action.choices is not None:  # our check names the nearest
                action.choices, action.type = None, str
            if action.type in _NOUNS:
                action.type = _reader(action.type)


_NOUNS: dict[Any, str] = {int: "a whole number", float: "a number", string_to_bool: "true or false"}


def _reader(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise argparse.ArgumentTypeError(f"{short(repr(text))} must be {_NOUNS[kind]}") from error

    return read


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
    lists = {action.dest for action in parser._actions if action.nargs in ("+", "*")}
    for key, value in recipe.items():
        if isinstance(value, list) and len(value) > 1 and key in names - lists:
            raise UserError(f"{key} in the recipe must be one value, not a list")
    if shared_recipe:
        recipe.pop("method", None)
    for key in sorted(map(str, recipe.keys() - names)) if unread == "reject" else ():
        if not (shared_recipe and readers(key)):
            raise unread_setting("key in the recipe", key, names)
    given = (defaults or {}) | {key: value for key, value in recipe.items() if key in names}
    *parsed, rest = parser.parse_args_into_dataclasses(
        args=as_flags(given) + argv, return_remaining_strings=True, look_for_args_file=False
    )
    if rest and not rest[0].startswith("-"):
        raise UserError(f"'{short(rest[0])}' is not an option: every setting is --name value")
    if rest and unread == "reject":
        raise unread_setting("option", rest[0].split("=")[0].lstrip("-"), names)
    for data in (options for options in parsed if isinstance(options, DataOptions)):
        data.model = next((options.model for options in parsed if isinstance(options, ModelOptions)), None)
    return tuple(parsed[: len(types)])


def unread_setting(kind: str, name: str, names: Iterable[str]) -> UserError:
    """The error for a setting that the command or its method does not read, with the nearest one that it does."""
    error, others = unknown(kind, name, names), readers(name)
    return UserError(f"{error} '{name}' is a setting of {', '.join(others)}.") if others else error


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
