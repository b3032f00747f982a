"""The formats of data files: each gives its rows one by one, with the words that say where a row stands."""

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

from semioffline.errors import UserError

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
PACKINGS = (".gz", ".bz2", ".xz", ".zst")
ENDINGS = f"{', '.join(KINDS)} (and {', '.join(PACKINGS)} after it)"

DataRow = dict[str, Any]
"""A row as it is in a file: its columns are the user's, with whatever is in them."""
Located = tuple[str, DataRow]  # ("line 3", {...}): a row after where it stands in its file


def file_kind(path: Path) -> tuple[str, str] | None:
    """The format and the compression in a file's name, e.g. (".jsonl", ".xz"); None for a format we do not read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in PACKINGS else ""
    kind = suffixes[-1] if suffixes else ""
    return (kind, packing) if kind in KINDS else None


def read_file(path: Path, limit: int | None) -> list[Located]:
    if not path.exists():
        raise UserError(f"there is no file or folder '{path}'.")
    if (kind := file_kind(path)) is None:
        raise UserError(f"cannot read '{path}': data files end in {ENDINGS}.")
    try:
        with _unpack(path, kind[1]) as stream:
            return list(islice(_READERS[kind[0]](stream, path), limit))
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read '{path}': {error}.") from error


def _unpack(path: Path, packing: str) -> IO[bytes]:
    if packing == ".zst":
        import pyarrow as pa  # reads zstandard, which the standard library of Python 3.11 does not

        return cast(IO[bytes], io.BufferedReader(pa.input_stream(str(path), compression="zstd")))
    openers: dict[str, Callable[[Path, str], object]] = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    return cast(IO[bytes], openers[packing](path, "rb"))


def _read_json_lines(stream: Iterable[bytes], path: Path) -> Iterator[Located]:
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            row = json.loads(text) if text else {}
        except ValueError as error:  # JSON that is malformed, or bytes that are no UTF-8
            raise UserError(f"{path}, line {number}: not valid JSON (one object per line): {error}.") from error
        if text:
            yield f"line {number}", row


def _read_json(stream: IO[bytes], path: Path) -> Iterator[Located]:
    """A .json file: one array of objects, one object, or JSON lines."""
    content = stream.read()
    text = content.decode("utf-8-sig")
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("["):
            raise UserError(f"{path}, line {error.lineno}: not valid JSON: {error}.") from error
        yield from _read_json_lines(io.BytesIO(content), path)
        return
    rows = rows if isinstance(rows, list) else [rows]
    yield from ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _read_table(stream: IO[bytes], path: Path, delimiter: str) -> Iterator[Located]:
    """A .csv or .tsv file with a header. Every cell stays text."""
    csv.field_size_limit(2**31 - 1)  # for the whole process: the default of 131,072 characters is a short document
    reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise UserError(f"{path}, line 1: a column name occurs twice: {', '.join(header)}.")
        for cells in filter(None, reader):  # a blank line is no row
            if len(cells) != len(header):
                raise UserError(f"{path}, line {reader.line_num}: {len(cells)} cells, but {len(header)} columns.")
            yield f"line {reader.line_num}", dict(zip(header, cells))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not a valid table: {error}.") from error


def _read_parquet(stream: IO[bytes], path: Path) -> Iterator[Located]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(pa.BufferReader(stream.read())).iter_batches()
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        yield from ((f"row {number}", row) for number, row in enumerate(rows, start=1))
    except pa.ArrowException as error:
        raise UserError(f"cannot read '{path}' as Parquet: {error}.") from error


_READERS: dict[str, Callable[[IO[bytes], Path], Iterator[Located]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": lambda stream, path: _read_table(stream, path, ","),
    ".tsv": lambda stream, path: _read_table(stream, path, "\t"),
    ".parquet": _read_parquet,
}
