"""Rows of files as tables: columns of one type each, whole or part by part."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

from semioffline.errors import UserError
from semioffline.storage.untrusted import DEEPEST
from semioffline.tasks.reading.formats import MOST_COLUMNS, DataRow, Located, read_file

if TYPE_CHECKING:
    from datasets import Dataset

PART = 1000
"""Rows that are read at a time."""
Place = Callable[[int], str]  # from a row's index to the words that say where the user finds it


class FileColumns:
    """The names of all columns and of what is inside them. A file with names of its own in each row would need memory
    by the square of its size."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.number = 0

    def add(self, row: Any) -> None:
        """Add a row. Raises a ValueError if it is not a valid row."""
        if not isinstance(row, dict):
            raise ValueError(f"expected an object with columns, got {short(row)}")
        self._add(self.tree, row, 1)

    def _add(self, tree: dict[str, Any], value: dict[str, Any] | list[Any], depth: int) -> None:
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        if isinstance(value, list):
            for part in value:
                if isinstance(part, dict | list):
                    self._add(tree, part, depth + 1)
            return
        for name, part in value.items():
            if name not in tree:
                if "\0" in name:
                    raise ValueError(f"the name {short(name)} of a column or field has a NUL in it")
                tree[name] = {}
                self.number += 1
                if self.number > MOST_COLUMNS:
                    raise ValueError(f"there are more than {MOST_COLUMNS:,} names of columns and fields")
            if isinstance(part, dict | list):
                self._add(tree[name], part, depth + 1)


def load_table(files: Sequence[Path], limit: int | None, max_row_mb: float) -> "tuple[Dataset, Place]":
    """The rows of files as one table."""
    import pyarrow as pa
    from datasets import Dataset

    rows: list[DataRow] = []
    words: list[str] = []
    numbers, starts = array("q"), []
    columns = FileColumns()
    for path in files:
        if limit is not None and len(rows) >= limit:
            break
        starts.append(len(rows))
        for word, number, row in _read_checked(path, columns, None if limit is None else limit - len(rows), max_row_mb):
            rows.append(row)
            words.append(word)
            numbers.append(number)

    def place(index: int) -> str:
        return f"{files[bisect_right(starts, index) - 1]}, {words[index]} {numbers[index]}"

    return Dataset(
        pa.table({name: _to_arrow(name, [row.get(name) for row in rows], place) for name in columns.tree})
    ), place


def _read_checked(path: Path, columns: FileColumns, limit: int | None, max_row_mb: float) -> Iterator[Located]:
    """The rows of a file, whose columns are added to the others."""
    is_empty = True
    for word, number, row in read_file(path, limit, max_row_mb):
        try:
            columns.add(row)
        except ValueError as error:
            raise UserError(f"{path}, {word} {number}: {error}.") from error
        is_empty = False
        yield word, number, row
    if is_empty:
        raise UserError(f"'{path}' is empty: it has no rows.")


class FileParts:
    """The rows of files, part by part. All parts have the columns and types of the whole, which are found first."""

    def __init__(self, files: Sequence[Path], limit: int | None, max_row_mb: float):
        self._files, self._limit, self._max_row_mb = files, limit, max_row_mb
        self._types = self._find_types()

    def __iter__(self) -> "Iterator[tuple[Dataset, Place]]":
        import pyarrow as pa
        from datasets import Dataset

        for rows, place in self._read():
            table = {
                name: _to_arrow(name, [row.get(name) for row in rows], place, kind)
                for name, kind in self._types.items()
            }
            yield Dataset(pa.table(table)), place

    def _read(self, columns: FileColumns | None = None) -> Iterator[tuple[list[DataRow], Place]]:
        columns, left = columns or FileColumns(), self._limit
        for path in self._files:
            if left is not None and left <= 0:
                break
            found = _read_checked(path, columns, left, self._max_row_mb)
            while part := list(islice(found, PART)):
                left = None if left is None else left - len(part)
                yield [row for _, _, row in part], _place_in(path, part)

    def _find_types(self) -> dict[str, Any]:
        import pyarrow as pa

        columns = FileColumns()
        types: dict[str, Any] = {}
        for rows, place in self._read(columns):
            for name in columns.tree:
                values = [row.get(name) for row in rows]
                own = _to_arrow(name, values, place).type
                types[name] = _joined(name, types.get(name, pa.null()), own, values, place)
        return types


def _place_in(path: Path, part: Sequence[Located]) -> Place:
    return lambda index: f"{path}, {part[index][0]} {part[index][1]}"


def _joined(name: str, before: Any, own: Any, values: list[Any], place: Place) -> Any:
    """The type that both parts of a column have. The error names the first row that does not fit."""
    import pyarrow as pa

    def join(kind: Any) -> Any:
        schemas = [pa.schema([(name, one)]) for one in (before, kind)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type

    if before == own:
        return own
    try:
        return join(own)
    except (pa.ArrowException, ValueError, TypeError) as error:
        for count in range(1, len(values) + 1):
            try:
                join(pa.array(values[:count]).type)
            except (pa.ArrowException, ValueError, TypeError):
                break
        told = " ".join(str(error).split())
        raise UserError(f"{place(count - 1)}: column '{name}' does not fit the rows before it: {told}.") from error


def _to_arrow(name: str, values: list[Any], place: Place, kind: Any = None) -> Any:
    """One column. When its values are of different types, the error names the first row that does not fit."""
    import pyarrow as pa

    def convert(count: int) -> Any:
        try:
            return pa.array(values[:count], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            return error

    if not isinstance(column := convert(len(values)), Exception):
        return column
    index = bisect_left(range(1, len(values)), True, key=lambda count: isinstance(convert(count), Exception))
    error = convert(index + 1)
    if isinstance(error, OverflowError):
        raise UserError(f"{place(index)}: column '{name}' has a number that does not fit into 64 bits.")
    others = "does not fit the rows before it" if index else "cannot be stored"
    raise UserError(f"{place(index)}: column '{name}' {others}: {' '.join(str(error).split())}.")
