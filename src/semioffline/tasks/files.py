"""Rows from where people have them: files, folders, the Hugging Face Hub, or memory.

`load_rows` gives a `datasets.Dataset` with our columns; all others are kept, for the reward functions. Whatever is
wrong with a file is told with its name and line: rows are never dropped, and text is never guessed.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from reprlib import repr as short
from string import Formatter
from typing import IO, TYPE_CHECKING, Any, cast

from semioffline.errors import UserError, unknown
from semioffline.tasks import Source, Task

if TYPE_CHECKING:
    from datasets import Dataset

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
PACKINGS = (".gz", ".bz2", ".xz", ".zst")
_ENDINGS = f"{', '.join(KINDS)} (and {', '.join(PACKINGS)} after it)"
VALIDATION = ("validation", "valid", "val", "dev")  # in folders, all these mean the validation split

Row = dict[str, Any]
Located = tuple[str, Row]  # ("line 3", {...}): a row after where it stands in its file
Place = Callable[[int], str]  # from a row's index to the words that say where the user finds it


def load_rows(
    source: "str | Path | Sequence[str | Path] | Dataset",
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    prompt_template: str | None = None,
    limit: int | None = None,
    require: Sequence[str] = ("prompt", "completion"),
    allow_empty: bool = False,
) -> "Dataset":
    """Load rows, name their columns as we do, and check them.

    source: a file (.jsonl, .json, .csv, .tsv, .parquet, also with .gz, .bz2, .xz or .zst after it), a list of files,
        a folder, a name on the Hugging Face Hub (`name` or `name:config`; never with remote code), or a Dataset.
    split: which files of a folder (`train.jsonl`, or else all `train*`) or which split on the Hub. Else unused.
    columns: our name -> their name, e.g. `{"prompt": "dialogue", "completion": "summary"}`.
    prompt_template: e.g. `"Dialogue:\\n{prompt}\\nSummary:"`; a field is any column, after renaming.
    limit: only the first rows. require: columns that must exist.
    allow_empty: let prompts and completions be missing in some rows (None stays None) or empty.
    """
    dataset, place = _open_source(source, split, limit)
    dataset = _rename(dataset, columns or {})
    if prompt_template is not None:
        dataset = _fill_template(dataset, prompt_template, place, allow_empty)
    for name in require:
        if name not in dataset.column_names:
            known = ", ".join(dataset.column_names)
            raise UserError(f"no column '{name}'. Columns: {known}. Map one of them with columns {name}=THEIR_NAME.")
    texts = [name for name in _TEXTS if name in require]
    checked = [*texts, *(name for name in _LISTS if name in dataset.column_names)]
    for index, row in enumerate(_iterate(dataset, checked)):
        if problem := (not allow_empty and _missing(row, texts)) or _wrong_type(row, texts):
            raise UserError(f"{place(index)}: {problem}")
    return dataset


def parse_columns(pairs: Iterable[str]) -> dict[str, str]:
    """Column names as typed on the command line: `["prompt=dialogue"]` -> `{"prompt": "dialogue"}`."""
    columns: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        if not (ours and equals and theirs):
            raise UserError(f"cannot read column mapping '{pair}': write OURS=THEIRS, for example prompt=dialogue.")
        if ours in columns:
            raise UserError(f"column '{ours}' is mapped twice: to '{columns[ours]}' and to '{theirs}'.")
        columns[ours] = theirs
    return columns


def group_references(dataset: "Dataset") -> "Dataset":
    """Merge rows with the same prompt into one whose `references` are all their completions, in order.

    `completion` and every other column come from the first of the rows. A row's own references join the list.
    """
    if absent := [name for name in _TEXTS if name not in dataset.column_names]:
        raise unknown("column", absent[0], dataset.column_names)
    first: dict[str, int] = {}
    references: dict[str, list[str]] = {}
    names = [*_TEXTS, *({"references"} & set(dataset.column_names))]
    for index, row in enumerate(_iterate(dataset, names)):
        prompt, completion = row["prompt"], row["completion"]
        first.setdefault(prompt, index)
        texts = [completion, *(text for text in row.get("references") or [] if text != completion)]
        references.setdefault(prompt, []).extend(text for text in texts if text is not None)
    column: list[list[str]] = [[] for _ in range(len(dataset))]  # set before selecting: datasets copies all rows else
    for prompt, index in first.items():
        column[index] = references[prompt]
    return _set_column(dataset, "references", column).select(list(first.values()))


def _open_source(source: Any, split: str | None, limit: int | None) -> "tuple[Dataset, Place]":
    from datasets import Dataset

    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, got {limit}.")
    if isinstance(source, Dataset):
        dataset, name = source, "dataset"
    else:
        files = _find_files(source, split)
        if files is not None:
            return _load_files(files, limit)
        dataset, name = _load_hub(source, split), source
    if limit is not None and limit < len(dataset):
        dataset = dataset.select(range(limit))
    return dataset, lambda index: f"{name}, index {index}"


def _find_files(source: Any, split: str | None) -> list[Path] | None:
    """The files meant by a path, a folder or a list; None for what must be a name on the Hub."""
    if isinstance(source, str | Path):
        path, text = Path(source).expanduser(), str(source)
        written_as_path = isinstance(source, Path) or text.startswith(("/", "./", "../", "~")) or text.endswith("/")
        if path.is_dir():
            return _split_files(path, split)
        return [path] if written_as_path or _kind(path) or path.exists() else None
    if isinstance(source, Sequence) and source and all(isinstance(item, str | Path) for item in source):
        return [Path(item).expanduser() for item in source]
    raise UserError(f"rows come from a file, some files, a folder, a dataset name or a Dataset, not {short(source)}.")


def _kind(path: Path) -> tuple[str, str] | None:
    """The format and the compression in a file's name, e.g. (".jsonl", ".xz"); None for a format we do not read."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in PACKINGS else ""
    kind = suffixes[-1] if suffixes else ""
    return (kind, packing) if kind in KINDS else None


def _split_files(folder: Path, split: str | None) -> list[Path]:
    """A folder's files of one split: the one named exactly so (train.csv), or else all that start so (train-0.csv)."""
    stems = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and (kind := _kind(path)):
            stems[path] = path.name.lower().removesuffix("".join(kind))
    holds = f"It holds: {', '.join(path.name for path in stems) or 'no data files'}."
    if split is None:
        raise UserError(f"'{folder}' is a folder: say which split to read, for example split train. {holds}")
    prefixes = tuple(dict.fromkeys((split, *VALIDATION))) if split in VALIDATION else (split,)
    for prefix in prefixes:
        exact = [path for path, stem in stems.items() if stem == prefix]
        chosen = exact or [path for path, stem in stems.items() if stem.startswith(prefix)]
        if len({stems[path] for path in chosen}) < len(chosen):
            names = ", ".join(path.name for path in chosen)
            raise UserError(f"'{folder}' has the {split} split more than once ({names}): name the file you want.")
        if chosen:
            return chosen
    looked = ", ".join(f"{prefix}*" for prefix in prefixes)
    raise UserError(f"'{folder}' has no {split} split: looked for {looked} ending in {_ENDINGS}. {holds}")


def _load_hub(source: str, split: str | None) -> "Dataset":
    import datasets
    from datasets.exceptions import DatasetsError

    if split is None:
        raise UserError(f"'{source}' is no file or folder here; as a dataset name it needs a split, for example train.")
    name, _, config = source.partition(":")
    try:
        return cast("Dataset", datasets.load_dataset(name, config or None, split=split))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"'{source}' is no file or folder here, nor a dataset that can be loaded: {reason}") from error


def _load_files(files: Sequence[Path], limit: int | None) -> "tuple[Dataset, Place]":
    import pyarrow as pa
    from datasets import Dataset

    rows: list[Row] = []
    places: list[tuple[Path, str]] = []
    for path in files:
        left = None if limit is None else limit - len(rows)
        if left == 0:
            break
        for where, row in _read_file(path, left):
            if not isinstance(row, dict):
                raise UserError(f"{path}, {where}: expected an object with columns, got {short(row)}.")
            rows.append(row)
            places.append((path, where))
        if not places or places[-1][0] != path:
            raise UserError(f"'{path}' is empty: it has no rows.")

    def place(index: int) -> str:
        path, where = places[index]
        return f"{path}, {where}"

    names = dict.fromkeys(name for row in rows for name in row)
    return Dataset(pa.table({name: _to_arrow(name, [row.get(name) for row in rows], place) for name in names})), place


def _to_arrow(name: str, values: list[Any], place: Place) -> Any:
    """One column. When its values are of different types, the error names the first row that does not fit."""
    import pyarrow as pa

    def convert(count: int) -> Any:
        try:
            return pa.array(values[:count])
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            return error

    if not isinstance(array := convert(len(values)), Exception):
        return array
    index = bisect_left(range(1, len(values)), True, key=lambda count: isinstance(convert(count), Exception))
    raise UserError(f"{place(index)}: column '{name}' does not fit the rows before it: {convert(index + 1)}.")


def _read_file(path: Path, limit: int | None) -> list[Located]:
    if not path.exists():
        raise UserError(f"there is no file or folder '{path}'.")
    if (kind := _kind(path)) is None:
        raise UserError(f"cannot read '{path}': data files end in {_ENDINGS}.")
    try:
        with _unpack(path, kind[1]) as stream:
            return list(islice(_READERS[kind[0]](stream, path), limit))
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read '{path}': {error}.") from error


def _unpack(path: Path, packing: str) -> IO[bytes]:
    if packing == ".zst":
        import pyarrow as pa  # reads zstandard, which the standard library of Python 3.11 does not

        return cast(IO[bytes], io.BufferedReader(pa.input_stream(str(path), compression="zstd")))
    openers: dict[str, Any] = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
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
    """A .json file: one array of objects, or JSON lines."""
    content = stream.read()
    text = content.decode("utf-8-sig")
    if not text.lstrip().startswith("["):
        yield from _read_json_lines(io.BytesIO(content), path)
        return
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON: {error}.") from error
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


def _iterate(dataset: "Dataset", names: Sequence[str]) -> Iterator[Row]:
    """The rows as plain Python values, only the columns asked for."""
    if names:
        for batch in dataset.with_format(None).select_columns(list(names)).iter(batch_size=1000):
            for values in zip(*(batch[name] for name in names), strict=True):
                yield dict(zip(names, values, strict=True))


def _set_column(dataset: "Dataset", name: str, values: list[Any]) -> "Dataset":
    if name in dataset.column_names:
        dataset = dataset.remove_columns(name)
    return cast("Dataset", dataset.add_column(name, values))


def _rename(dataset: "Dataset", columns: Mapping[str, str]) -> "Dataset":
    theirs = list(columns.values())
    for ours, name in columns.items():
        if name not in dataset.column_names:
            raise unknown("column", name, dataset.column_names)
        if theirs.count(name) > 1:
            raise UserError(f"column '{name}' is mapped to two names: each column can be used once.")
        if ours in dataset.column_names and ours not in theirs:
            raise UserError(f"cannot rename column '{name}' to '{ours}': there is a column '{ours}' already.")
    moved = {name: ours for ours, name in columns.items() if name != ours}
    return dataset.rename_columns(moved) if moved else dataset


def _parse_template(template: str, columns: Sequence[str]) -> list[tuple[str, str | None]]:
    """The template as (text, column after it). Only `{column}`: no attributes, indices, conversions or formats."""
    try:
        parsed = list(Formatter().parse(template.replace("\\n", "\n")))  # \n as it is typed on a command line
    except ValueError as error:
        raise UserError(f"cannot read prompt_template: {error}. Write {{{{ or }}}} for a brace.") from error
    for _, field, spec, conversion in parsed:
        if spec or conversion:
            raise UserError(f"prompt_template: write only {{{field}}}, without a format or conversion.")
        if field is not None and field not in columns:
            raise unknown("column in prompt_template", field, columns)
    if all(part[1] is None for part in parsed):
        raise UserError(f"prompt_template uses no column: write for example {{{columns[0]}}} in it.")
    return [part[:2] for part in parsed]


def _fill_template(dataset: "Dataset", template: str, place: Place, allow_empty: bool) -> "Dataset":
    parts = _parse_template(template, dataset.column_names)
    fields = list(dict.fromkeys(field for _, field in parts if field is not None))
    prompts = []
    for index, row in enumerate(_iterate(dataset, fields)):
        if not allow_empty and (problem := _missing(row, fields)):
            raise UserError(f"{place(index)}: {problem}")
        for field, value in row.items():
            if not isinstance(value, str | int | float | None):
                raise UserError(f"{place(index)}: prompt_template needs text or numbers, {field} is {short(value)}.")
        texts = {field: "" if value is None else str(value) for field, value in row.items()}
        prompts.append("".join(literal + (texts[field] if field else "") for literal, field in parts))
    return _set_column(dataset, "prompt", prompts)


_TEXTS = ("prompt", "completion")
_LISTS: dict[str, tuple[type, ...]] = {"references": (str,), "candidates": (str,), "candidate_rewards": (float, int)}


def _missing(row: Row, names: Sequence[str]) -> str | None:
    for name in names:
        if row[name] is None or (name in _TEXTS and not str(row[name]).strip()):
            return f"the {name} is missing or empty."
    return None


def _wrong_type(row: Row, texts: Sequence[str]) -> str | None:
    for name in texts:
        if not isinstance(row[name], str | None):
            return f"the {name} must be text, got {short(row[name])}."
    for name, kinds in _LISTS.items():
        values = row.get(name)
        fits = isinstance(values, list) and all(isinstance(v, kinds) and not isinstance(v, bool) for v in values)
        if values is not None and not fits:
            return f"{name} must be a list of {'texts' if kinds == (str,) else 'numbers'}, got {short(values)}."
    rewards, count = row.get("candidate_rewards"), len(row.get("candidates") or [])
    if rewards is not None and len(rewards) != count:
        return f"{count} candidates but {len(rewards)} candidate_rewards: there must be one for each."
    return None


def _load(source: Source, split: str) -> "Dataset":
    where = source.files.get(split) or source.data_dir
    if where is None:
        raise UserError(f"no data for the {split} split: name a file for it, a folder, or a dataset.")
    if source.raw:
        return load_rows(where, split, limit=source.limit, require=(), allow_empty=True)
    return load_rows(where, split, source.columns, source.prompt_template, source.limit)


TASK = Task(load=_load)
