"""A public dataset as a task reads it: where it is, its columns, and how its rows become prompts."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

from semioffline.errors import UserError
from semioffline.tasks.reading.formats import DataRow
from semioffline.tasks.reading.kinds import model_kind
from semioffline.tasks.reading.places import VALIDATION, Place, as_path, has_split, open_rows
from semioffline.tasks.reading.rows import (
    TEXTS,
    check_rows,
    fill_template,
    find_groups,
    iterate,
    missing,
    rename,
    set_column,
    set_references,
    share_references,
)
from semioffline.tasks.registry import Source

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOut:
    """A split that the dataset does not have: it gets this share of another split's inputs, which are removed there."""

    split: str
    of: str
    share: float


@dataclass(frozen=True)
class Corpus:
    """A public dataset. Called with (source, split), it returns rows with prompt, completion, references and every
    other column.

    Rows come from the source's files or folder, or by default from `name` on the Hub. In the prompt's column, a list of
    texts is joined by spaces; in the completion's column, it is a list of references. Rows without a prompt or a
    completion, which public datasets have, are left out and counted in the log.

    A file that already has the columns prompt and completion is used as it is.
    """

    name: str | None
    """Name on the Hugging Face Hub: name or name:config, optionally with @revision after it."""
    prompt: tuple[str, ...]
    """Columns that may hold the source. The first existing one is used."""
    completion: tuple[str, ...]
    """Columns that may hold the target."""
    references: tuple[str, ...] = ()
    """Columns that may hold further correct answers."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """kind of model -> prompt template. Other kinds read the plain source."""
    grouped: bool = False
    """Whether several rows share an input. Each gets the references of all; in validation and test they become one
    row."""
    held_out: HeldOut | None = None
    unpack: Callable[[DataRow], Iterable[DataRow]] | None = None
    """Converts a stored row to the rows that it contains."""
    unpacks: str = ""
    """What `unpack` makes the prompt from, in words, for an error."""

    def __call__(self, source: Source, split: str) -> "Dataset":
        if source.limit is not None and source.limit < 1:
            raise UserError(f"limit must be at least 1, got {source.limit}.")
        split = "validation" if split in VALIDATION else split
        held = self._held_out(source, split)
        stored, place = self._open(source, split, held)
        shaped, formed = self._shape(stored, source.columns, place)
        chosen = _with_text(shaped, place)
        if held is not None:
            chosen = _choose_inputs(shaped["prompt"], chosen, held, split)
        check_rows(shaped.select(chosen), lambda index: place(chosen[index]))
        if self.grouped:
            groups = _groups(shaped, chosen, one_row_each=split != "train")
            shaped, chosen = set_references(shaped, groups), list(groups)
        chosen = chosen[: source.limit]
        if source.raw:
            return (set_references(stored, groups) if self.grouped else stored).select(chosen)
        form = source.prompt_template or self.form(source)
        if formed and form is not None and source.prompt_template is None:
            _say(f"{place(0)}: the rows have a column 'prompt', so they are taken as they are, not as '{form}'")
        elif form is not None:
            shaped = fill_template(shaped, form, place, allow_empty=True)
        return shaped.select(chosen)

    def has(self, source: Source, split: str) -> bool:
        """Return whether the split exists. Datasets on the Hub are not checked."""
        where = self._where(source, split)
        if where is None or split in source.files:
            return where is not None
        return has_split(where, split) or self._held_out(source, split) is not None

    def form(self, source: Source) -> str | None:
        """Return the prompt template for the model that will read the prompts."""
        return self.forms.get(model_kind(source.model)) if self.forms and source.model else None

    # ---- where the rows are ----

    def _where(self, source: Source, split: str) -> str | None:
        return source.where(split) or (None if source.files else self.name)

    def _held_out(self, source: Source, split: str) -> HeldOut | None:
        """Return the HeldOut that concerns this split, if any. On the Hub it always applies, because the split is
        missing there or has no answers. In a folder it applies if there is no file for the split."""
        held, where = self.held_out, self._where(source, split)
        if held is None or where is None or split not in (held.split, held.of):
            return None
        path = as_path(where)
        there = path.is_file() or (path.is_dir() and has_split(path, held.split))
        return None if there or {split, held.split} & source.files.keys() else held

    def _open(self, source: Source, split: str, held: HeldOut | None) -> "tuple[Dataset, Place]":
        where = self._where(source, split)
        if where is None:
            columns = f"{' or '.join(self.prompt)}, and {' or '.join(self.completion)}"
            raise UserError(
                f"no data for the {split} split: give --{split}_file FILE, or --data_dir FOLDER with files train*, "
                f"validation* and test* (columns: {columns})"
            )
        in_full = held is not None or self.grouped
        try:
            limit = None if in_full else source.limit
            stored, place = open_rows(where, held.of if held else split, limit, source.max_row_mb)
        except UserError as error:
            if where == source.where(split):
                raise
            reason = " ".join(str(error.__cause__ or error).split())
            raise UserError(
                f"no --data_dir was given, and the public dataset '{where}' cannot be loaded: {reason}. "
                "Give --data_dir FOLDER with files train*, validation* and test*."
            ) from error
        if self.unpack is None or "prompt" in source.columns or set(TEXTS) <= set(stored.column_names):
            return stored, place
        return _unpack(stored, place, self.unpack)

    # ---- columns ----

    def _shape(self, stored: "Dataset", given: Mapping[str, str], place: Place) -> "tuple[Dataset, bool]":
        """Return the rows with our column names, and whether they had these names already."""
        stored = rename(stored, {ours: name for ours, name in given.items() if ours not in TEXTS})
        names = stored.column_names
        if set(TEXTS) <= set(names) and not set(TEXTS) & given.keys():
            return stored, True
        theirs = {"prompt": self.prompt, "completion": self.completion}
        also = {"prompt": self.unpacks, "completion": ""}
        chosen = {ours: _find(ours, given.get(ours), theirs[ours], also[ours], names, place) for ours in TEXTS}
        more = [name for name in (*self.references, "references") if name in names]
        used = list(dict.fromkeys([*chosen.values(), *more]))
        rows = list(iterate(stored, used))
        columns: dict[str, list[Any]] = {
            "prompt": [_join(row[chosen["prompt"]]) for row in rows],
            "completion": [_first(row[chosen["completion"]]) for row in rows],
        }
        if more or any(isinstance(row[chosen["completion"]], list) for row in rows):
            columns["references"] = [_merge(*(row[name] for name in (chosen["completion"], *more))) for row in rows]
        for name, values in columns.items():
            stored = set_column(stored, name, values)
        return stored.remove_columns([name for name in used if name not in columns]), False


def _find(ours: str, given: str | None, usual: tuple[str, ...], also: str, names: list[str], place: Place) -> str:
    """Return the name of one of our columns in the data."""
    looked_for = (given,) if given else usual
    for name in looked_for:
        if name in names:
            return name
    looked, known = " or ".join((*looked_for, *([also] if also and not given else []))), ", ".join(names)
    raise UserError(
        f"{place(0)}: no column for the {ours}: looked for {looked}; there are {known}. "
        f"Name yours with --columns {ours}=THEIRS."
    )


def _join(value: Any) -> Any:
    """Join the sentences or words of a list to one text. Anything else stays as it is."""
    return " ".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else value


def _first(value: Any) -> Any:
    return (value[0] if value else None) if isinstance(value, list) else value


def _merge(*values: Any) -> list[Any]:
    """Return all texts, each once, in order. Anything else stays for the check of the rows."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    merged: list[Any] = [text for texts in lists for text in texts if text is not None]
    return list(dict.fromkeys(merged)) if all(isinstance(text, str) for text in merged) else merged


def _unpack(stored: "Dataset", place: Place, unpack: Callable[[DataRow], Iterable[DataRow]]) -> "tuple[Dataset, Place]":
    from datasets import Dataset

    rows, origins = [], []
    for index, row in enumerate(iterate(stored, stored.column_names)):
        try:
            unpacked = list(unpack(row))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            what = f"{type(error).__name__}: {short(str(error))}"
            raise UserError(
                f"{place(index)}: not the nested form that this task expects ({what}): {short(row)}."
            ) from error
        rows += unpacked
        origins += [index] * len(unpacked)
    return Dataset.from_list(rows), lambda index: place(origins[index])


def _with_text(shaped: "Dataset", place: Place) -> list[int]:
    """Return the indices of the rows that have a prompt and a completion."""
    empty = {index for index, row in enumerate(iterate(shaped, TEXTS)) if missing(row, TEXTS)}
    if len(empty) == len(shaped):
        raise UserError(f"{place(0)}: no row has both a prompt and a completion.")
    if empty:
        count = f"{len(empty)} of {len(shaped):,} rows"
        _say(f"{count} have no prompt or no completion and are left out: {place(min(empty))}")
    return [index for index in range(len(shaped)) if index not in empty]


def _groups(shaped: "Dataset", chosen: list[int], one_row_each: bool) -> dict[int, list[str]]:
    """Return row -> the references of its input; only the first row of each input, or every one."""
    rows = shaped.select(chosen)
    if one_row_each:
        return {chosen[index]: texts for index, texts in find_groups(rows).items()}
    return dict(zip(chosen, share_references(rows), strict=True))


def _choose_inputs(prompts: Sequence[str], rows: list[int], held: HeldOut, split: str) -> list[int]:
    """Return the rows of one of two splits. The hash of an input decides, so the choice does not depend on the other
    rows."""
    _say(f"there is no {held.split} split: {held.share:.0%} of the inputs of {held.of} are held out for it")
    texts = list(prompts)
    return [index for index in rows if (_share(str(texts[index])) < held.share) == (split == held.split)]


def _share(text: str) -> float:
    """Return a number in [0, 1) that depends on the text only."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") / 2**64


@cache
def _say(message: str) -> None:
    """Print a message only once: a split may be read more than once."""
    logger.warning("%s", message)
