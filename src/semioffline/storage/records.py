"""Store results in JSON files, as dataclasses whose fields are the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from semioffline.errors import UserError, short
from semioffline.storage.files import read_json


@dataclass(frozen=True)
class Record:
    """Base of dataclasses that are stored in JSON files.

    A file of an older version may lack fields, which then have their defaults. Keys that are not fields are ignored.
    """

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """Make a record of a JSON object. Raises TypeError if a field is missing or has a value of another type."""
        kinds, items = get_type_hints(cls), fields(cls)
        needed = [item.name for item in items if item.default is MISSING and item.default_factory is MISSING]
        if missing := [name for name in needed if name not in data]:
            raise TypeError(f"there is no {', '.join(missing)}")
        found = {item.name: _read(kinds[item.name], data[item.name], item.name) for item in items if item.name in data}
        return cls(**found)

    def to_json(self) -> dict[str, object]:
        return {item.name: _write(getattr(self, item.name)) for item in fields(self)}


R = TypeVar("R", bound=Record)


def read_record(kind: type[R], path: Path, what: str = "a file that semioffline has written") -> R:
    """Read the record in a JSON file, which may be damaged, or written by someone else. what: the expected file, for
    the error."""
    try:
        return kind.from_json(read_json(path))
    except (TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{path} is not {what}: {error}") from error


_NOUNS: dict[Any, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def _read(kind: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to its declared type, also records inside lists, maps and optional fields.

    name: of the value, for errors.
    """
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    if origin in (Union, UnionType):
        return None if value is None else _read(parts[0], value, name) if len(parts) == 1 else value
    if kind in _NOUNS:
        return _check(_fits(kind, value), value, name, _NOUNS[kind])
    if origin is list:
        return [_read(parts[0], each, name) for each in _check(isinstance(value, list), value, name, "a list")]
    is_map = origin in (dict, Mapping) or is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, Record))
    _check(not is_map or isinstance(value, Mapping), value, name, "a map")
    if origin in (dict, Mapping):
        return {key: _read(parts[1], each, f"{name}.{key}") for key, each in value.items()}
    return kind.from_json(value) if is_map and not is_typeddict(kind) else value


def _fits(kind: Any, value: object) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, float):
        return kind is float or (kind is int and value.is_integer())
    return isinstance(value, kind) or (kind is float and isinstance(value, int))


def _check(fits: bool, value: Any, name: str, noun: str) -> Any:
    if not fits:
        raise TypeError(f"{name}={short(repr(value))} must be {noun}")
    return value


def _write(value: object) -> object:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, list):
        return [_write(each) for each in value]
    return {name: _write(each) for name, each in value.items()} if isinstance(value, dict) else value
