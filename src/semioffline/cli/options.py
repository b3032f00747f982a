"""Parse command lines and recipes."""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from semioffline.cli.help import lines_of, print_help, wants_help
from semioffline.cli.recipes import Recipe, take_recipe
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError, short, unknown
from semioffline.methods.shared.registry import readers
from semioffline.rewards import meteor
from semioffline.tasks.registry import Task


class _Parser(HfArgumentParser):
    def error(self, message: str) -> Any:
        told = re.sub(r"^argument (--\w+)(/--\w+)*: (?='.* must be )", r"\1 ", message, flags=re.DOTALL)
        raise UserError(told)

    @staticmethod
    def _parse_dataclass_field(parser: Any, field: Any) -> None:
        """Pass only `help` to argparse, because Transformers hands over all metadata of a field. Values of a wrong type
        get an error of this library."""
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
_FLAG = re.compile(r"--?\w")


def parse(
    command: str,
    types: Sequence[Any],
    argv: list[str],
    defaults: Recipe | None = None,
    unread: Unread = "reject",
    shared_recipe: bool = False,
) -> tuple[Any, ...]:
    """Parse flags into dataclasses. `--config recipe.yaml` gives defaults that flags override.

    Args:
        unread: what to do with flags and keys that none of the dataclasses has.
        shared_recipe: the recipe may also hold settings of other methods, which are not used.
    """
    if wants_help(argv):
        print_help(command, lines_of(types), everything="--help-all" in argv)
        raise SystemExit(0)
    parser = _Parser(types, prog=f"semioffline {command}", allow_abbrev=False, add_help=False)
    names = {action.dest for action in parser._actions}
    recipe, argv = take_recipe(argv)
    lists = {action.dest for action in parser._actions if action.nargs in ("+", "*")}
    for key, value in recipe.items():
        if isinstance(value, list) and len(value) > 1 and key in names - lists:
            raise UserError(f"{key} in the recipe must be one value, not a list")
        parts = value if isinstance(value, list) else ()
        if isinstance(value, dict) and key == "columns":
            parts = list(value.values())
        if any(part is None or isinstance(part, (list, dict)) for part in parts):
            raise UserError(f"{key} in the recipe must hold plain values, not {short(str(value))}")
    if shared_recipe:
        recipe.pop("method", None)
    for key in sorted(map(str, recipe.keys() - names)) if unread == "reject" else ():
        if not (shared_recipe and readers(key)):
            raise unread_setting("key in the recipe", key, names)
    given = (defaults or {}) | {key: value for key, value in recipe.items() if key in names}
    *parsed, rest = parser.parse_args_into_dataclasses(
        args=as_flags(given) + argv, return_remaining_strings=True, look_for_args_file=False
    )
    if rest and not _FLAG.match(rest[0]):
        raise UserError(f"{short(repr(rest[0]))} is not an option: write every setting as --name value")
    if rest and unread == "reject":
        raise unread_setting("option", rest[0].split("=")[0].lstrip("-"), names)
    for data in (options for options in parsed if isinstance(options, DataOptions)):
        data.read_by(next((options.model for options in parsed if isinstance(options, ModelOptions)), None))
    return tuple(parsed[: len(types)])


def unread_setting(kind: str, name: str, names: Iterable[str]) -> UserError:
    """Return the error for a setting that the command or its method does not read, with the nearest one that it
    does."""
    error, others = unknown(kind, name, names), readers(name)
    return UserError(f"{error} '{name}' is a setting of {', '.join(others)}.") if others else error


def as_flags(settings: Mapping[str, object]) -> list[str]:
    """Return settings as the words of a command line."""
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


def default_metrics(task: Task) -> list[str]:
    """Return the metrics of a task, for tests without --metrics."""
    return [*task.metrics, *(task.java_metrics if task.java_metrics and meteor.is_there() else ())]
