"""Results that are kept in JSON files: dataclasses whose fields are the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Record:
    """Base of the dataclasses that are kept in JSON files.

    A file of an older version may lack fields, which then have their defaults. Keys that are not fields are ignored.
    """

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        kinds = get_type_hints(cls)
        return cls(**{item.name: _read(kinds[item.name], data[item.name]) for item in fields(cls) if item.name in data})

    def to_json(self) -> dict[str, object]:
        return {item.name: _write(getattr(self, item.name)) for item in fields(self)}


def _read(kind: Any, value: Any) -> Any:
    """A value of a JSON file as its type says: records inside lists, maps and optional fields are made, too."""
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    if value is None:
        return None
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json(value)
    if origin in (Union, UnionType) and len(parts) == 1:
        return _read(parts[0], value)
    if origin is list:
        return [_read(parts[0], each) for each in value]
    if origin is dict:
        return {name: _read(parts[1], each) for name, each in value.items()}
    return value


def _write(value: object) -> object:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, list):
        return [_write(each) for each in value]
    return {name: _write(each) for name, each in value.items()} if isinstance(value, dict) else value
