"""Read data files. Each format yields its rows one by one, with their place in the file for messages.

Files may come from anyone. They are read as a stream, the length of a row is limited, and a compressed file whose
content is many times larger than the file is rejected.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from semioffline.errors import UserError
from semioffline.storage.untrusted import DEEPEST, JSON, check_escapes, in_words, parse_json

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
PACKINGS = (".gz", ".bz2", ".xz", ".zst")
ENDINGS = f"{', '.join(KINDS)} (and {', '.join(PACKINGS)} after it)"

MAX_ROW_MB = 64.0
"""Default limit of the length of a row. SQuAD's original file, 30 MB, is one row."""
MOST_COLUMNS = 1000
WINDOW = 2**21
"""Bytes of content between two checks of the expansion of a compressed file."""
SLICE = 2**13
"""Bytes that are read of a compressed file at a time: small compared with a window, so that few bytes are read and not
yet decompressed."""
MOST_EXPANSION = 100
"""Largest ratio of content to compressed size, in any window. Text has a ratio of 3 to 20."""
ANY_PARQUET = 2**26
"""Bytes of content that every Parquet file may have, because a small file often repeats one value."""
ROW_OVERHEAD = 64
"""Bytes that a row of a Parquet file counts for in addition to its values."""

DataRow = dict[str, Any]
"""A row as it is in a file, with the user's columns and values."""
Located = tuple[str, int, DataRow]  # ("line", 3, {...}): a row after where it stands in its file


def file_kind(path: Path) -> tuple[str, str] | None:
    """Return the format and the compression in a file's name, e.g. (".jsonl", ".xz"); None for an unknown format."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in PACKINGS else ""
    kind = suffixes[-1] if suffixes else ""
    return (kind, packing) if kind in KINDS else None


def read_file(path: Path, limit: int | None, max_row_mb: float = MAX_ROW_MB) -> Iterator[Located]:
    """Yield the rows of a file. max_row_mb: limit of the length of a row."""
    if not path.exists():
        raise UserError(f"there is no file or folder '{path}'.")
    if (kind := file_kind(path)) is None:
        raise UserError(f"cannot read '{path}': data files end in {ENDINGS}.")
    if not path.is_file():
        raise UserError(f"cannot read '{path}': it is no regular file.")
    if not 0 < max_row_mb <= 2000:
        raise UserError(f"max_row_mb={max_row_mb} must be above 0 and at most 2000")
    try:
        with _open(path, kind[1]) as stream:
            yield from islice(_READERS[kind[0]](stream, path, int(max_row_mb * 1e6)), limit)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"cannot read '{path}': {error}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read '{path}': it is not UTF-8 ({error}): save it as UTF-8.") from error


def _open(path: Path, packing: str) -> IO[bytes]:
    if not packing:
        return open(path, "rb")
    return io.BufferedReader(_Unpacked(path, packing), 2**16)


class _Unpacked(io.RawIOBase):
    """The content of a compressed file. Raises an error if it is many times larger than the file (a decompression
    bomb)."""

    def __init__(self, path: Path, packing: str):
        self.path, self.packed = path, _Slices(path)
        self.content = _unpack(self.packed, packing)
        self.read_before, self.since = 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.content.read(len(buffer))
        buffer[: len(data)] = data
        self.since += len(data)
        if self.since >= WINDOW:
            if (self.packed.read_so_far - self.read_before) * MOST_EXPANSION < self.since:
                raise _bomb(self.path)
            self.read_before, self.since = self.packed.read_so_far, 0
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.content.close()
            self.packed.close()
        super().close()


class _Slices(io.RawIOBase):
    """A file that is read in small pieces, and counts its bytes."""

    def __init__(self, path: Path):
        self.file = open(path, "rb")  # noqa: SIM115
        self.read_so_far = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        number = self.file.readinto(memoryview(buffer)[:SLICE])
        self.read_so_far += number
        return number

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()


def _unpack(packed: Any, packing: str) -> Any:
    if packing == ".zst":
        import pyarrow as pa  # reads zstandard, which the standard library of Python 3.11 does not

        return pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd")
    if packing == ".gz":
        return gzip.GzipFile(fileobj=packed)
    return bz2.BZ2File(packed) if packing == ".bz2" else lzma.LZMAFile(packed)


def _bomb(path: Path) -> UserError:
    return UserError(
        f"cannot read '{path}': its content is more than {MOST_EXPANSION} times larger than the file, as in a "
        "decompression bomb. If you trust it, unpack it and give the unpacked file (of Parquet: write it as .jsonl)."
    )


def _too_long(path: Path, where: str, longest: int) -> UserError:
    return UserError(
        f"{path}, {where}: longer than {longest / 1e6:g} MB, the limit of a row: raise it with --max_row_mb, or check "
        "the file."
    )


def _read_json_lines(stream: IO[bytes], path: Path, longest: int) -> Iterator[Located]:
    for number, line in enumerate(iter(lambda: stream.readline(longest + 1), b""), start=1):
        if len(line) > longest:
            raise _too_long(path, f"line {number}", longest)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            row = parse_json(text) if text else {}
        except ValueError as error:  # JSON that is malformed, or bytes that are no UTF-8
            raise UserError(f"{path}, line {number}: not valid JSON (one object per line): {error}.") from error
        if text:
            yield "line", number, row


def _read_json(stream: IO[bytes], path: Path, longest: int) -> Iterator[Located]:
    """Read a .json file: one array of objects, one object, or objects one after the other."""
    values = _Values(io.TextIOWrapper(stream, "utf-8-sig"), path, longest)
    is_array = values.next() == "["
    values.skip(is_array)
    number = 0
    while values.next() != ("]" if is_array else ""):
        if is_array and number:
            if values.next() != ",":
                raise values.malformed("Expecting ',' delimiter")
            values.skip()
        number += 1
        yield "row", number, values.take(number)
    values.skip(is_array)
    if values.next():
        raise values.malformed("Extra data")


class _Values:
    """JSON values of a stream, one by one."""

    def __init__(self, text: IO[str], path: Path, longest: int):
        self.text, self.path, self.longest = text, path, longest
        self.part, self.at, self.ended = "", 0, False
        self.lines = 1
        """Number of the first line of `part`."""

    def next(self) -> str:
        """Return the next character that is not a space; an empty text at the end."""
        while True:
            while self.at < len(self.part):
                if not self.part[self.at].isspace():
                    return self.part[self.at]
                self.at += 1
            if self.ended:
                return ""
            self._read_on()

    def skip(self, characters: int = 1) -> None:
        self.at += characters

    def take(self, number: int) -> Any:
        """Return the next value, which is row `number`."""
        self.next()
        while True:
            try:
                value, end = JSON.raw_decode(self.part, self.at)
                if end < len(self.part) or self.ended:  # else a number may go on
                    check_escapes(self.part[self.at : end])
                    self.at = end
                    return value
            except json.JSONDecodeError as error:
                inside = error.pos < len(self.part) - 16 and not error.msg.startswith("Unterminated string")
                if inside or self.ended:
                    self.at = error.pos
                    raise self.malformed(error.msg) from error
            except (ValueError, RecursionError) as error:
                deep = f"it is nested more than {DEEPEST} levels deep"
                raise self.malformed(deep if isinstance(error, RecursionError) else in_words(error)) from error
            if len(self.part) - self.at > self.longest:
                raise _too_long(self.path, f"row {number}", self.longest)
            self._read_on()

    def malformed(self, message: str) -> UserError:
        line = self.lines + self.part.count("\n", 0, self.at)
        return UserError(f"{self.path}, line {line}: not valid JSON: {message}.")

    def _read_on(self) -> None:
        """Read twice as many bytes of a long value at each attempt, so it is not decoded many times."""
        self.lines += self.part.count("\n", 0, self.at)
        self.part, self.at = self.part[self.at :], 0
        more = self.text.read(max(2**16, len(self.part)))
        self.part, self.ended = self.part + more, not more


def _read_table(stream: IO[bytes], path: Path, longest: int, delimiter: str) -> Iterator[Located]:
    """Read a .csv or .tsv file with a header. Every cell stays text."""
    csv.field_size_limit(longest)  # for the whole process: the default of 131,072 characters is a short document
    reader = csv.reader(_table_lines(stream, path, longest), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(header) > MOST_COLUMNS:
            raise UserError(f"{path}, line 1: {len(header):,} columns, but at most {MOST_COLUMNS:,} are allowed.")
        if len(set(header)) < len(header):
            raise UserError(f"{path}, line 1: a column name occurs twice: {', '.join(header)}.")
        for cells in filter(None, reader):  # a blank line is no row
            if len(cells) != len(header):
                raise UserError(f"{path}, line {reader.line_num}: {len(cells)} cells, but {len(header)} columns.")
            yield "line", reader.line_num, dict(zip(header, cells))
    except csv.Error as error:
        if "field limit" in str(error):
            raise _too_long(path, f"line {reader.line_num}", longest) from error
        raise UserError(f"{path}, line {reader.line_num}: not a valid table: {error}.") from error


def _table_lines(stream: IO[bytes], path: Path, longest: int) -> Iterator[str]:
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    for number, line in enumerate(iter(lambda: text.readline(longest + 1), ""), start=1):
        if len(line) > longest:
            raise _too_long(path, f"line {number}", longest)
        yield line


def _read_parquet(stream: IO[bytes], path: Path, longest: int) -> Iterator[Located]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        packed = path.suffix.lower() in PACKINGS
        file = pq.ParquetFile(pa.BufferReader(stream.read()) if packed else path)
        _check_parquet(file, path)
        most = max(ANY_PARQUET, MOST_EXPANSION * path.stat().st_size)
        size = number = 0
        for batch in file.iter_batches(batch_size=100):
            columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
            own = sum(column.nbytes for column in columns)
            size += own + ROW_OVERHEAD * len(batch)
            if size > most:
                raise _bomb(path)
            if own > longest * len(batch):
                raise _too_long(path, f"row {number + 1} and those after it", longest)
            for row in batch.to_pylist():
                number += 1
                yield "row", number, row
    except (pa.ArrowException, OSError, OverflowError) as error:  # a date beyond Python's last
        raise UserError(f"cannot read '{path}' as Parquet: {' '.join(str(error).split())}.") from error


def _check_parquet(file: Any, path: Path) -> None:
    """Check column names and declared sizes before anything is unpacked."""
    names, about = file.schema_arrow.names, file.metadata
    if len(names) > MOST_COLUMNS:
        raise UserError(f"'{path}': {len(names):,} columns, but at most {MOST_COLUMNS:,} are allowed.")
    if len(set(names)) < len(names):
        raise UserError(f"'{path}': a column name occurs twice: {', '.join(names)}.")
    groups = (about.row_group(n) for n in range(about.num_row_groups))
    for column in (group.column(n) for group in groups for n in range(group.num_columns)):
        unpacked = column.total_uncompressed_size
        if unpacked > ANY_PARQUET // 8 and unpacked > MOST_EXPANSION * column.total_compressed_size:
            raise _bomb(path)


_READERS: dict[str, Callable[[IO[bytes], Path, int], Iterator[Located]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": lambda stream, path, longest: _read_table(stream, path, longest, ","),
    ".tsv": lambda stream, path, longest: _read_table(stream, path, longest, "\t"),
    ".parquet": _read_parquet,
}
