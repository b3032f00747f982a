"""Declare the allowed values of settings with their fields, and check them in Python and on the command line."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from semioffline.errors import UserError, short, unknown

LARGEST = 1e30
"""Largest float of a setting. Its product with numbers up to 1e8 still fits into float32."""
_INT = 2**31 - 1
_LONGEST_NAME, _LONGEST_PATH = 255, 4096
"""Maximum number of bytes of one name and of a whole path, as in file systems."""


class Range(NamedTuple):
    """A range of numbers that a setting allows. Infinity and NaN are outside every range."""

    low: float = -LARGEST
    high: float = LARGEST
    open_low: bool = False
    """Whether `low` itself is outside the range."""
    open_high: bool = False
    also: float | None = None
    """One more allowed number, with a meaning of its own."""

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, Real):
            return False
        given: Any = value  # of Python, NumPy, ...
        if self.also is not None and given == self.also:
            return True
        above = given > self.low if self.open_low else given >= self.low
        return bool(above and (given < self.high if self.open_high else given <= self.high))

    def __str__(self) -> str:
        low, high = number(self.low), number(self.high)
        if self.open_high:
            return f"in {'(' if self.open_low else '['}{low}, {high})"
        if not self.open_low and (self.low < 0 or self.high < 10):
            return f"between {low} and {high}"
        other = "" if self.also is None else f", or {number(self.also)}"
        return f"{'above' if self.open_low else 'at least'} {low} and at most {high}{other}"


FINITE = Range()
POSITIVE = Range(0, open_low=True)
NOT_NEGATIVE = Range(0)
SHARE = Range(0, 1)
SEED = Range(0, 2**32 - 1)
STEPS = Range(1, 10**9)
BATCH = Range(1, 2**16)
TOKENS = Range(2, 10**6)
NEW_TOKENS = Range(1, 10**6)
PENALTY = Range(-10, 10)
SAMPLES = Range(2, 2**16)
BEAMS = Range(1, 2**12)
TEMPERATURE = Range(1e-4, 10**4)
SECONDS = Range(0, 10**7, open_low=True)
PROCESSES = Range(0, 1024)


def setting(
    default: Any,
    help: str,
    group: str = "",
    allowed: Range | None = None,
    free: bool = False,
    choices: Iterable[str] = (),
    place: bool = False,
) -> Any:
    """Return a dataclass field that declares a setting. The type of the setting is that of the field.

    Args:
        group: The heading under which `--help` lists it.
        allowed: The numbers that it allows.
        free: Whether it may change when a run is resumed: the result of training does not depend on it.
        choices: The names that it allows. A field of type Literal has them in its type.
        place: Whether it is a file or folder of this machine.
    """
    metadata: dict[str, Any] = {"help": help, "group": group, "allowed": allowed, "free": free}
    metadata |= {"choices": tuple(choices), "place": place}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Description:
    """The values that one setting allows."""

    name: str
    kinds: frozenset[type]
    """bool, int, float or str: the types that the value, or each value of a list, may have. Empty: any type."""
    is_single: bool = True
    is_list: bool = False
    """Whether the value is one value, a list of values, or either."""
    optional: bool = False
    allowed: Range = FINITE
    choices: tuple[str, ...] = ()
    blank: bool = False
    """Whether an empty text is allowed."""
    place: bool = False

    def type_problem(self, value: Any) -> str | None:
        """Return the problem with the type of a value, such as "must be a whole number"; None if there is none."""
        if not self.kinds or (value is None and self.optional):
            return None
        in_list = self.is_list and isinstance(value, (list, tuple)) and all(map(self._fits, value))
        fits = in_list or (self.is_single and self._fits(value))
        return None if fits else f"must be {self._noun()}"

    def range_problem(self, value: Any) -> str | None:
        """Return the problem with a value of the right type; None if there is none."""
        for one in value if isinstance(value, (list, tuple)) else [value]:
            problem = self._text_problem(one) if isinstance(one, str) else self._number_problem(one)
            if problem:
                return problem
        return None

    def _number_problem(self, value: Any) -> str | None:
        if not isinstance(value, Real) or isinstance(value, bool):
            return None
        return None if value in self.allowed else f"must be {self.allowed}".replace("be in", "lie in")

    def _text_problem(self, value: str) -> str | None:
        if self.choices:
            plain = value.value if isinstance(value, Enum) else value
            return None if plain in self.choices else f"must be one of {_near(plain, self.choices)}"
        if not value.strip() and not self.blank:
            return "must not be empty"
        if "\0" in value:
            return "must not have a NUL character"
        if not self.place:
            return None
        if "://" in value:
            return "must be a file or folder of this machine, not an address: download it first"
        data = value.encode("utf-8", "surrogateescape")
        longest = max(map(len, data.split(b"/")))
        if longest > _LONGEST_NAME or len(data) > _LONGEST_PATH:
            return f"must be a path of at most {_LONGEST_PATH} bytes, and {_LONGEST_NAME} a name"
        return None

    def _fits(self, value: Any) -> bool:
        """Return whether a value has the type. An int is accepted as a float; a bool is never accepted as a number."""
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, Integral):
            return bool(self.kinds & {int, float})
        if isinstance(value, Real):
            return float in self.kinds and math.isfinite(value)
        return isinstance(value, str) and str in self.kinds

    def _noun(self) -> str:
        names = {bool: "True or False", int: "a whole number", float: "a finite number", str: "text"}
        noun = " or ".join(name for kind, name in names.items() if kind in self.kinds)
        if self.choices:
            noun = f"one of {_near('', self.choices)}"
        elif self.kinds & {int, float}:
            noun += f" {self.allowed}"
        if self.is_list:
            noun = f"{noun} or a list" if self.is_single else f"a list, each part {noun}"
        return noun + (", or None" if self.optional else "")


def describe(item: Field[Any], hint: Any, allowed: Range | None = None, place: bool = False) -> Description:
    """Return the description of a field with this type. allowed, place: for fields that do not declare them
    themselves."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    lists = [part for part in parts if part in (list[bool], list[int], list[float], list[str])]
    inside = [get_args(part)[0] for part in lists]
    kinds, choices, is_known = _kinds([part for part in parts if part not in lists] + inside)
    allowed = item.metadata.get("allowed") or allowed or FINITE
    if kinds == {int}:
        low, high = (_INT * (-1 if end < 0 else 1) if abs(end) == LARGEST else end for end in allowed[:2])
        allowed = allowed._replace(low=low, high=high)
    return Description(
        name=item.name,
        kinds=frozenset(kinds if is_known else ()),
        is_single=len(parts) - len(lists) - (type(None) in parts) > 0,
        is_list=bool(lists),
        optional=type(None) in parts or item.default is None,
        allowed=allowed,
        choices=tuple(item.metadata.get("choices") or choices),
        blank=item.default == "",
        place=place or item.metadata.get("place", False),
    )


def _kinds(parts: Iterable[Any]) -> tuple[set[type], tuple[str, ...], bool]:
    """Return the types and the allowed names in a type annotation, and whether the names are the only values."""
    kinds: set[type] = set()
    names: tuple[str, ...] = ()
    is_known = True
    for part in parts:
        if part in (bool, int, float, str):
            kinds.add(part)
        elif get_origin(part) is Literal and all(isinstance(one, str) for one in get_args(part)):
            kinds, names = kinds | {str}, get_args(part)
        elif isinstance(part, type) and issubclass(part, Enum):
            kinds, names = kinds | {str}, tuple(one.value for one in part)
        elif part is not type(None):
            is_known = False
    return kinds, names, is_known


@cache
def descriptions(kind: Any) -> dict[str, Description]:
    """Return setting -> what it allows, for a dataclass whose fields are declared with `setting`."""
    hints = get_type_hints(kind)
    return {item.name: describe(item, hints[item.name]) for item in fields(kind) if item.init}


def wrong_settings(given: Any, described: dict[str, Description], shown: str = "{name}={value}") -> Iterator[str]:
    """Yield the problems of the settings of an object: wrong types, or if there are none, values out of range."""
    for problem in (Description.type_problem, Description.range_problem):
        found = False
        for name, description in described.items():
            value = getattr(given, name)
            told = problem(description, value)
            if told:
                found = True
                yield f"{shown.format(name=name, value=show(value))} {told}"
        if found:
            return


class Options:
    """Base class of the options of commands, which are checked on construction."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        wrong = list(wrong_settings(self, descriptions(kind), "--{name} {value}"))
        if wrong:
            raise UserError("; ".join(wrong))


def show(value: Any) -> str:
    """Format a value for a message, shortened to one line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Real):
        return number(value)
    if isinstance(value, (list, tuple)):
        more = ", ..." if len(value) > 5 else ""
        return f"[{', '.join(show(one) for one in value[:5])}{more}]"
    return short(repr(value) if isinstance(value, str) else f"{value!r}")


def number(value: Any) -> str:
    """Format a number for a message. Python refuses to write integers of more than 4300 digits."""
    if isinstance(value, Integral) and abs(int(value)) >= 10**20:
        return f"{'-' if int(value) < 0 else ''}1e{int(math.log10(abs(int(value))))}"
    return f"{value:g}" if isinstance(value, float) and value in (LARGEST, -LARGEST) else str(value)


def _near(given: str, choices: tuple[str, ...]) -> str:
    """Return all names, or only the nearest if there are many."""
    if len(choices) > 12:
        return str(unknown("", short(given), choices)).partition("Known: ")[2].rstrip(".")
    nearest = get_close_matches(given, choices, n=1, cutoff=0.5)
    return ", ".join(choices) + (f" (did you mean '{nearest[0]}'?)" if nearest else "")
