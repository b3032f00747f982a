"""Find rows: in files, in folders with one file for each split, on the Hugging Face Hub, or in memory."""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, cast

from semioffline.errors import UserError
from semioffline.storage.untrusted import DEEPEST
from semioffline.tasks.reading.formats import ENDINGS, MAX_ROW_MB, MOST_COLUMNS, DataRow, file_kind, read_file

if TYPE_CHECKING:
    from datasets import Dataset

VALIDATION = ("validation", "valid", "val", "dev")  # in folders, all these mean the validation split
CONVERTED = "refs/convert/parquet"
"""The Hub's Parquet copy of a dataset, in which a config is a folder. Without it some datasets need a script to be
read, and scripts never run."""
Place = Callable[[int], str]  # from a row's index to the words that say where the user finds it


def open_rows(
    source: Any, split: str | None, limit: int | None = None, max_row_mb: float = MAX_ROW_MB
) -> "tuple[Dataset, Place]":
    """Return the rows as they are stored, each with a description of its place for messages."""
    from datasets import Dataset

    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, got {limit}.")
    if isinstance(source, Dataset):
        dataset, name = source, "dataset"
    else:
        files = _find_files(source, split)
        if files is not None:
            return _load_files(files, limit, max_row_mb)
        dataset, name = _load_hub(source, split), source
    if limit is not None and limit < len(dataset):
        dataset = dataset.select(range(limit))
    return dataset, lambda index: f"{name}, index {index}"


def as_path(where: str | Path) -> Path:
    """Return the path that a user has given. Raises an error if it cannot be a path."""
    try:
        path = Path(where).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~ of nobody, a NUL
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot look for {short(str(where))}: {reason}") from error
    return path


def has_split(where: str | Path, split: str) -> bool:
    """Return whether the split exists. A folder may lack one, a single file is the train split, datasets on the Hub are
    not checked."""
    path = as_path(where)
    if path.is_dir():
        stems = _stems(path)
        return any(_choose_files(stems, prefix) for prefix in _prefixes(split))
    return split == "train" or not path.is_file()


def _find_files(source: Any, split: str | None) -> list[Path] | None:
    """Return the files of a path, a folder or a list; None for a name on the Hub."""
    if isinstance(source, str | Path):
        path, text = as_path(source), str(source)
        if "://" in text:
            raise UserError(f"'{text}' is a URL: download it first, and give the file or folder.")
        written_as_path = isinstance(source, Path) or text.startswith(("/", "./", "../", "~")) or text.endswith("/")
        if path.is_dir():
            return _split_files(path, split)
        return [path] if written_as_path or file_kind(path) or path.exists() else None
    if isinstance(source, Sequence) and source and all(isinstance(item, str | Path) for item in source):
        return [as_path(item) for item in source]
    raise UserError(
        f"data must be a file, a list of files, a folder, a dataset name or a Dataset, not {short(source)}."
    )


def _split_files(folder: Path, split: str | None) -> list[Path]:
    """Return the files of one split in a folder."""
    stems = _stems(folder)
    holds = f"It holds: {', '.join(path.name for path in stems) or 'no data files'}."
    if split is None:
        raise UserError(f"'{folder}' is a folder: say which split to read, for example split train. {holds}")
    for prefix in _prefixes(split):
        chosen = _choose_files(stems, prefix)
        if len({stems[path] for path in chosen}) < len(chosen):
            names = ", ".join(path.name for path in chosen)
            raise UserError(f"'{folder}' has the {split} split more than once ({names}): name the file you want.")
        if chosen:
            return chosen
    looked = ", ".join(f"{prefix}*" for prefix in _prefixes(split))
    raise UserError(f"'{folder}' has no {split} split: looked for {looked} ending in {ENDINGS}. {holds}")


def _prefixes(split: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((split, *VALIDATION))) if split in VALIDATION else (split,)


def _stems(folder: Path) -> dict[Path, str]:
    """Return the data files of a folder, each with its name without the endings."""
    try:
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    except OSError as error:
        raise UserError(f"cannot look into the folder '{folder}': {error.strerror}") from error
    return {path: path.name.lower().removesuffix("".join(kind)) for path in files if (kind := file_kind(path))}


def _choose_files(stems: dict[Path, str], prefix: str) -> list[Path]:
    """Return the file with exactly this name (train.csv), or else all whose name starts with it (train-0.csv), or has
    it as a part (dialogsum.train.csv)."""
    ways: tuple[Callable[[str], bool], ...] = (
        lambda stem: stem == prefix,
        lambda stem: stem.startswith(prefix),
        lambda stem: prefix in re.split(r"[^a-z0-9]+", stem),
    )
    return next((chosen for way in ways if (chosen := [path for path, stem in stems.items() if way(stem)])), [])


def _load_hub(source: str, split: str | None) -> "Dataset":
    import datasets
    from datasets.exceptions import DatasetsError

    if split is None:
        raise UserError(f"'{source}' is no file or folder here; as a dataset name it needs a split, for example train.")
    name, _, revision = source.partition("@")
    name, _, config = name.partition(":")
    options = {"revision": revision} if revision else {}
    if revision == CONVERTED and config:
        options, config = options | {"data_dir": config}, ""
    try:
        return cast("Dataset", datasets.load_dataset(name, config or None, split=split, **options))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"'{source}' is no file or folder here, nor a dataset that can be loaded: {reason}") from error


def _load_files(files: Sequence[Path], limit: int | None, max_row_mb: float) -> "tuple[Dataset, Place]":
    import pyarrow as pa
    from datasets import Dataset

    rows: list[DataRow] = []
    words: list[str] = []
    numbers, starts = array("q"), []
    columns = _Columns()
    for path in files:
        if limit is not None and len(rows) >= limit:
            break
        starts.append(len(rows))
        for word, number, row in read_file(path, None if limit is None else limit - len(rows), max_row_mb):
            try:
                columns.add(row)
            except ValueError as error:
                raise UserError(f"{path}, {word} {number}: {error}.") from error
            rows.append(row)
            words.append(word)
            numbers.append(number)
        if len(rows) == starts[-1]:
            raise UserError(f"'{path}' is empty: it has no rows.")

    def place(index: int) -> str:
        return f"{files[bisect_right(starts, index) - 1]}, {words[index]} {numbers[index]}"

    return Dataset(
        pa.table({name: _to_arrow(name, [row.get(name) for row in rows], place) for name in columns.tree})
    ), place


class _Columns:
    """The names of all columns and of the fields inside them. They are limited, because a file with new names in each
    row would need memory by the square of its size."""

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


def _to_arrow(name: str, values: list[Any], place: Place) -> Any:
    """Convert one column. If its values have different types, the error names the first row that does not fit."""
    import pyarrow as pa

    def convert(count: int) -> Any:
        try:
            return pa.array(values[:count])
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
