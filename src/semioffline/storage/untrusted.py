"""Check input from other people: names that become files, JSON, YAML, and models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from reprlib import repr as short
from typing import Any

import yaml

from semioffline.errors import UserError

LONGEST_NAME = 100
MOST_BYTES = 200
"""Maximum number of bytes of a name. File systems allow 255, and names get suffixes such as -seed0."""
_SEPARATORS = '/\\:*?"|'
DEEPEST = 32
"""Maximum number of levels of nested lists and maps."""
LARGEST_NUMBER = 2**63 - 1
MOST_NODES = 10_000
"""Maximum number of values of a YAML file, after its aliases are expanded."""


def check_name(kind: str, name: str) -> str:
    """Return the name if it can be the name of a file or folder on any system; else raise an error. kind: what it
    names, for the error."""
    problem = None
    if not name or not name.strip():
        problem = "must not be empty"
    elif len(name) > LONGEST_NAME:
        problem = f"has {len(name)} characters, but at most {LONGEST_NAME} are allowed"
    elif not name.isprintable() or any(character in _SEPARATORS for character in name):
        problem = f"may hold printable characters only, and none of {' '.join(_SEPARATORS)}"
    elif name[0] in ". " or name[-1] in ". ":
        problem = "must neither begin nor end with a dot or a space"
    elif len(name.encode()) > MOST_BYTES:
        problem = f"has {len(name.encode())} bytes in UTF-8, but at most {MOST_BYTES} are allowed"
    if problem is not None:
        raise UserError(f"the {kind} {short(name)} {problem}: choose another name")
    return name


def parse_json(text: str) -> Any:
    """Parse a JSON text.

    Raises a ValueError if the text is malformed, an object has a key twice, or a string has a lone surrogate.
    """
    try:
        value = JSON.decode(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from error
    except ValueError as error:
        raise ValueError(in_words(error)) from error
    check_escapes(text)
    return value


def in_words(error: ValueError) -> str:
    """Return the problem in JSON or YAML, in words for users."""
    return "a number has thousands of digits" if "set_int_max_str_digits" in str(error) else str(error)


def check_escapes(text: str) -> None:
    r"""Raise a ValueError for a lone surrogate: \ud83d without its second half, which neither files nor tokenizers
    accept."""
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(json.loads(text), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise ValueError(f"{half} is half of a character (a lone surrogate)") from error


def _with_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"the key {short(twice)} occurs twice")
    return found


JSON = json.JSONDecoder(object_pairs_hook=_with_keys_once)


def check_settings(value: Any, depth: int = 0) -> None:
    """Raise a ValueError if settings from a file contain what no setting can be: dates, huge numbers, deep nesting."""
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        for key, own in value.items():
            check_settings(key, depth + 1)
            check_settings(own, depth + 1)
    elif isinstance(value, list):
        for own in value:
            check_settings(own, depth + 1)
    elif isinstance(value, str):
        if "\0" in value or (not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)):
            raise ValueError(f"the text {short(value)} holds a character that no setting takes")
    elif isinstance(value, int):
        if abs(value) > LARGEST_NUMBER:
            raise ValueError(f"a number has {value.bit_length()} bits, but at most 63 are allowed")
    elif value is not None and not isinstance(value, float):
        raise ValueError(f"{short(value)} is a {type(value).__name__}: write it in quotes")


def parse_settings(text: str) -> Any:
    """Parse the value of --settings."""
    try:
        value = parse_json(text)
        check_settings(value)
    except ValueError as error:
        raise UserError(f"--settings must be JSON: {error}") from error
    return value


def parse_yaml(content: bytes) -> Any:
    """Parse a YAML document of plain settings. Raises ValueError for anything else."""
    try:
        value = yaml.load(content, _Loader)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except ValueError as error:
        raise ValueError(in_words(error)) from error
    except (AttributeError, TypeError, LookupError, ArithmeticError) as error:  # PyYAML, of `!!timestamp x`
        raise ValueError(f"a value does not have the type that its tag says ({error})") from error
    check_settings(value)
    return value


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn any problem with the files of a model into a UserError, inside the block."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises nothing more special
        if type(error).__name__ == "OutOfMemoryError":
            raise
        kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        lines = str(error).strip().splitlines() or ["its files cannot be read"]
        if isinstance(error, UnpicklingError):
            kind, lines = "", ["its weights are a pickle with more than numbers in it: ask for model.safetensors"]
        raise UserError(f"cannot load {what}: {kind}{lines[0]}") from error


_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
"""The form of numbers like 1e-5, which PyYAML reads as text, because YAML 1.1 requires a point and a sign."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that counts nodes, with aliases expanded, before it builds any value."""

    def __init__(self, stream: Any):
        super().__init__(stream)
        self.nodes = 0
        self.sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias, before = self.check_event(yaml.AliasEvent), self.nodes
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self.sizes:
            raise ValueError("an alias stands for what it is in")
        self.nodes += self.sizes[id(node)] if is_alias else 1
        if self.nodes > MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES:,} values, with what its aliases stand for")
        self.sizes[id(node)] = self.nodes - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in seen:
                raise ValueError(
                    f"the key {short(key.value)} occurs twice, the second time in line {key.start_mark.line + 1}"
                )
            seen |= set() if name is None else {name}
        return node


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
