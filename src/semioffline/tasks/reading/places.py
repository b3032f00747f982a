"""Where rows are: files, folders with one file for each split, the Hugging Face Hub, or memory."""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, cast

from semioffline.errors import UserError
from semioffline.tasks.reading.formats import ENDINGS, DataRow, file_kind, read_file

if TYPE_CHECKING:
    from datasets import Dataset

VALIDATION = ("validation", "valid", "val", "dev")  # in folders, all these mean the validation split
CONVERTED = "refs/convert/parquet"
"""The Hub's own Parquet copy of a dataset, in which a config is a folder. Without it some datasets need a script to be
read, and scripts are not run."""
Place = Callable[[int], str]  # from a row's index to the words that say where the user finds it


def open_rows(source: Any, split: str | None, limit: int | None = None) -> "tuple[Dataset, Place]":
    """The rows as they are stored, and for each the words that say where it stands."""
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


def has_split(where: str | Path, split: str) -> bool:
    """Whether there is such a split: a folder may lack one, a file is the train split, a hub dataset is not asked."""
    path = Path(where).expanduser()
    if path.is_dir():
        stems = _stems(path)
        return any(_choose_files(stems, prefix) for prefix in _prefixes(split))
    return split == "train" or not path.is_file()


def _find_files(source: Any, split: str | None) -> list[Path] | None:
    """The files meant by a path, a folder or a list; None for what must be a name on the Hub."""
    if isinstance(source, str | Path):
        path, text = Path(source).expanduser(), str(source)
        written_as_path = isinstance(source, Path) or text.startswith(("/", "./", "../", "~")) or text.endswith("/")
        if path.is_dir():
            return _split_files(path, split)
        return [path] if written_as_path or file_kind(path) or path.exists() else None
    if isinstance(source, Sequence) and source and all(isinstance(item, str | Path) for item in source):
        return [Path(item).expanduser() for item in source]
    raise UserError(f"rows come from a file, some files, a folder, a dataset name or a Dataset, not {short(source)}.")


def _split_files(folder: Path, split: str | None) -> list[Path]:
    """A folder's files of one split."""
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
    """The data files of a folder, each with its name without the endings."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return {path: path.name.lower().removesuffix("".join(kind)) for path in files if (kind := file_kind(path))}


def _choose_files(stems: dict[Path, str], prefix: str) -> list[Path]:
    """The file named exactly so (train.csv), or else all that start so (train-0.csv), or have that part
    (dialogsum.train.csv)."""
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


def _load_files(files: Sequence[Path], limit: int | None) -> "tuple[Dataset, Place]":
    import pyarrow as pa
    from datasets import Dataset

    rows: list[DataRow] = []
    places: list[tuple[Path, str]] = []
    for path in files:
        left = None if limit is None else limit - len(rows)
        if left == 0:
            break
        for where, row in read_file(path, left):
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
