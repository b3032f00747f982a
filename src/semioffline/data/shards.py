"""The rows of a split in shards: they are read part by part, and never held all at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semioffline.data.conversations import said_texts
from semioffline.data.examples import check_columns, row_columns
from semioffline.errors import UserError
from semioffline.tasks.registry import Source, Task

DIGEST = "digest"
"""The name under which settings hold the digest of the rows."""


@dataclass(frozen=True)
class Table:
    """Some rows in memory, read as a dataset is."""

    columns: dict[str, list[Any]]

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, what: str | slice) -> Any:
        if isinstance(what, str):
            return self.columns[what]
        return {name: values[what] for name, values in self.columns.items()}


@dataclass(frozen=True)
class RowShard:
    """Consecutive rows of a split."""

    number: int
    first: int
    """The number of its first row in the split."""
    rows: Table
    stored: Table
    """The same rows as they are stored."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Content:
    """What a split holds, without its texts."""

    rows: int
    digest: str
    """Of everything that outputs and rewards are made from: see `digest_columns`."""
    columns_digest: str
    """Of the columns as they are."""


class Split:
    """The rows of one split of a task. Where the task can read parts, only a part is in memory."""

    def __init__(self, task: Task, source: Source, split: str) -> None:
        self._task, self._source, self._split = task, source, split
        self._parts: Iterable[tuple[Any, Any]] | None = None
        if task.parts is not None:
            self._parts = task.parts(source, split)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Parts: the rows, and the same rows as they are stored."""
        if self._parts is None:
            rows = self._task.load(self._source, self._split)
            self._parts = [(rows, self._task.load(replace(self._source, raw=True), self._split))]
        yield from self._parts

    def check(self) -> Content:
        """Read all rows once: they are checked before anything slow begins."""
        own, as_they_are, number = RowDigest(), RowDigest(), 0
        for rows, _ in self:
            if not len(rows):
                continue
            check_columns(rows, first=number)
            number += len(rows)
            for start in range(0, len(rows), 1000):
                columns = plain_columns(rows[start : start + 1000])
                as_they_are.add(dict(zip(columns, values, strict=True)) for values in zip(*columns.values()))
                said = columns | {"completion": said_texts(columns["completion"])}
                own.add(row_columns(said, i) for i in range(len(said["prompt"])))
        if not number:
            raise UserError(f"the {self._split} split has no row with a prompt and a completion")
        return Content(number, own.value, as_they_are.value)

    def shards(self, size: int, wanted: Collection[int]) -> Iterator[RowShard]:
        """The wanted shards, in order."""
        last, at = max(wanted, default=-1), 0
        held: list[tuple[dict[str, list[Any]], dict[str, list[Any]]]] = []
        count = number = 0
        for rows, stored in self:
            at = 0
            while at < len(rows) and number <= last:
                end = min(len(rows), at + size - count)
                is_wanted = number in wanted
                held += [(plain_columns(rows[at:end]), plain_columns(stored[at:end]))] if is_wanted else []
                count, at = count + end - at, end
                if count == size:
                    if is_wanted:
                        yield _shard(number, size, held)
                    held, count, number = [], 0, number + 1
        if held:
            yield _shard(number, size, held)


def _shard(number: int, size: int, held: list[tuple[dict[str, list[Any]], dict[str, list[Any]]]]) -> RowShard:
    rows, stored = (_joined([part[side] for part in held]) for side in (0, 1))
    return RowShard(number, number * size, rows, stored)


def _joined(parts: list[dict[str, list[Any]]]) -> Table:
    return Table({name: [value for part in parts for value in part[name]] for name in parts[0]})


def plain_columns(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A slice of a dataset as lists."""
    return {name: list(values) for name, values in columns.items()}


class RowDigest:
    """A digest of rows that come one after the other. Of a value that is neither text nor number its type alone counts,
    because how it prints may change from one process to the next."""

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(default=lambda value: type(value).__name__).encode
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        for columns in rows:
            self._digest.update(self._encode([[name, columns[name]] for name in sorted(columns)]).encode())

    @property
    def value(self) -> str:
        return self._digest.hexdigest()


def digest_columns(rows: Iterable[Mapping[str, object]]) -> str:
    """The digest of all rows, in their order."""
    digest = RowDigest()
    digest.add(rows)
    return digest.value
