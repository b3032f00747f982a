"""What rewards have in common: the check of their references, options behind a `?`, and the version they sign with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from semioffline.errors import UserError, unknown


def check_references(completions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """One list with one or more strings for each completion."""
    if len(references) != len(completions):
        raise UserError(f"{len(completions)} completions but {len(references)} lists of references: give one for each.")
    for i, row in enumerate(references):
        if isinstance(row, str) or not row:
            raise UserError(f"references[{i}] is {row!r}: give a list with one or more strings.")


@lru_cache(maxsize=1)
def package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("semioffline")
    except PackageNotFoundError:
        return "dev"


def parse_options(given: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """ "NAME?pair=true&dtype=bfloat16" -> ("NAME", {"pair": True, "dtype": "bfloat16"}); `known` reads each value."""
    name, _, tail = given.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, tail.split("&")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"'{part}' in '{given}': options are name=value, joined by &")
        if key not in known:
            raise unknown(f"option in '{given}'", key, known)
        try:
            options[key] = known[key](value)
        except ValueError as error:
            raise UserError(f"{key}={value} in '{given}': {error}") from error
    return name, options


def yes_or_no(text: str) -> bool:
    answers = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answers:
        raise ValueError("expected true or false")
    return answers[text.lower()]


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("expected a whole number from 1 on")
    return int(text)
