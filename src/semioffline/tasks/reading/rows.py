"""Load rows with our column names, and check them.

Errors name the file and the line. No row is dropped, and no text is guessed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from reprlib import repr as short
from string import Formatter
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from semioffline.errors import UserError, unknown
from semioffline.tasks.reading.formats import MAX_ROW_MB, DataRow
from semioffline.tasks.reading.messages import is_blank, text_problem
from semioffline.tasks.reading.places import Place, open_rows

if TYPE_CHECKING:
    from datasets import Dataset


def load_rows(
    source: "str | Path | Sequence[str | Path] | Dataset",
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    prompt_template: str | None = None,
    limit: int | None = None,
    require: Sequence[str] = ("prompt", "completion"),
    allow_empty: bool = False,
    max_row_mb: float = MAX_ROW_MB,
) -> "Dataset":
    """Load rows, name their columns as we do, and check them.

    source: a file (.jsonl, .json, .csv, .tsv, .parquet, also with .gz, .bz2, .xz or .zst after it), a list of files,
        a folder, a name on the Hugging Face Hub (`name`, `name:config`, either with
        `@revision` after it; never with remote code), or a Dataset.
    split: which files of a folder (`train.jsonl`, or else all `train*`) or which split on the Hub. Else unused.
    columns: our name -> their name, e.g. `{"prompt": "dialogue", "completion": "summary"}`.
    prompt_template: e.g. `"Dialogue:\\n{prompt}\\nSummary:"`; a field is any column, after renaming.
    limit: only the first rows. require: columns that must exist.
    allow_empty: let prompts and completions be missing in some rows (None stays None) or empty.
    max_row_mb: the longest row of a file, in MB.
    """
    dataset, place = open_rows(source, split, limit, max_row_mb)
    dataset = rename(dataset, columns or {})
    if prompt_template is not None:
        dataset = fill_template(dataset, prompt_template, place, allow_empty)
    check_rows(dataset, place, require, allow_empty)
    return dataset


def check_rows(
    dataset: "Dataset", place: Place, require: Sequence[str] = ("prompt", "completion"), allow_empty: bool = False
) -> None:
    for name in require:
        if name not in dataset.column_names:
            known = ", ".join(dataset.column_names)
            raise UserError(f"no column '{name}'. Columns: {known}. Map one of them with columns {name}=THEIR_NAME.")
    texts = [name for name in TEXTS if name in require]
    checked = [*texts, *(name for name in LISTS if name in dataset.column_names)]
    for index, row in enumerate(iterate(dataset, checked)):
        if problem := (not allow_empty and missing(row, texts)) or _wrong_type(row, texts):
            raise UserError(f"{place(index)}: {problem}")


def parse_columns(pairs: Iterable[str]) -> dict[str, str]:
    """Parse column names of the command line: `["prompt=dialogue"]` -> `{"prompt": "dialogue"}`."""
    columns: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        if not (ours and equals and theirs):
            raise UserError(f"cannot read column mapping '{pair}': write OURS=THEIRS, for example prompt=dialogue.")
        if ours in columns:
            raise UserError(f"column '{ours}' is mapped twice: to '{columns[ours]}' and to '{theirs}'.")
        columns[ours] = theirs
    for ours in columns.keys() - set(TEXTS):
        near = get_close_matches(ours, set(TEXTS) - columns.keys(), n=1, cutoff=0.8)
        if near:  # any other name is a column for the reward
            raise UserError(f"--columns {ours}={columns[ours]}: did you mean {near[0]}={columns[ours]}?")
    return columns


def group_references(dataset: "Dataset") -> "Dataset":
    """Merge rows with the same prompt into one whose `references` are all their completions, in order.

    `completion` and every other column come from the first of the rows. A row's own references join the list.
    """
    groups = find_groups(dataset)
    return set_references(dataset, groups).select(list(groups))


def find_groups(dataset: "Dataset") -> dict[int, list[str]]:
    """Return, for each prompt, the index of its first row and the references of all its rows."""
    if absent := [name for name in TEXTS if name not in dataset.column_names]:
        raise unknown("column", absent[0], dataset.column_names)
    first: dict[str, int] = {}
    groups: dict[int, list[str]] = {}
    names = [*TEXTS, *({"references"} & set(dataset.column_names))]
    for index, row in enumerate(iterate(dataset, names)):
        completion, own = row["completion"], row.get("references") or []
        texts = [completion, *(text for text in own if text != completion)]
        group = groups.setdefault(first.setdefault(str(row["prompt"]), index), [])
        group.extend(text for text in texts if text is not None)
    return groups


def share_references(dataset: "Dataset") -> list[list[str]]:
    """Return, for each row, its completion first and then all other answers to its prompt, from any row."""
    rows = list(iterate(dataset, TEXTS))
    answers = {str(rows[index]["prompt"]): dict.fromkeys(texts) for index, texts in find_groups(dataset).items()}
    return [
        [row["completion"], *(text for text in answers[str(row["prompt"])] if text != row["completion"])]
        for row in rows
    ]


def set_references(dataset: "Dataset", references: Mapping[int, list[str]]) -> "Dataset":
    """Set the column `references`, by index. Do this before rows are selected, or datasets copies them all."""
    return set_column(dataset, "references", [references.get(index, []) for index in range(len(dataset))])


def iterate(dataset: "Dataset", names: Sequence[str]) -> Iterator[DataRow]:
    """Yield the rows as plain Python values, with the given columns only."""
    if names:
        for batch in dataset.with_format(None).select_columns(list(names)).iter(batch_size=1000):
            for values in zip(*(batch[name] for name in names), strict=True):
                yield dict(zip(names, values, strict=True))


def set_column(dataset: "Dataset", name: str, values: list[Any]) -> "Dataset":
    """Add or replace a column, without the fingerprint that datasets would compute from all values: it takes longer
    than everything else."""
    if name in dataset.column_names:
        dataset = dataset.remove_columns(name)
    return cast("Dataset", dataset.add_column(name, values, new_fingerprint=uuid4().hex))


def rename(dataset: "Dataset", columns: Mapping[str, str]) -> "Dataset":
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
    """Parse a template into (text, column after it). Only `{column}` is allowed: no attributes, indices, conversions or
    formats."""
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
        raise UserError(f"prompt_template contains no column: add one, for example {{{columns[0]}}} in it.")
    return [part[:2] for part in parsed]


def fill_template(dataset: "Dataset", template: str, place: Place, allow_empty: bool) -> "Dataset":
    parts = _parse_template(template, dataset.column_names)
    fields = list(dict.fromkeys(field for _, field in parts if field is not None))
    prompts = []
    for index, row in enumerate(iterate(dataset, fields)):
        if not allow_empty and (problem := missing(row, fields)):
            raise UserError(f"{place(index)}: {problem}")
        for field, value in row.items():
            if not isinstance(value, str | int | float | None):
                raise UserError(f"{place(index)}: prompt_template needs text or numbers, {field} is {short(value)}.")
        texts = {field: "" if value is None else str(value) for field, value in row.items()}
        prompts.append("".join(literal + (texts[field] if field else "") for literal, field in parts))
    return set_column(dataset, "prompt", prompts)


TEXTS = ("prompt", "completion")
LISTS: dict[str, tuple[type, ...]] = {"references": (str,), "candidates": (str,), "candidate_rewards": (float, int)}


def missing(row: DataRow, names: Sequence[str]) -> str | None:
    for name in names:
        if row[name] is None or (name in TEXTS and is_blank(row[name])):
            return f"the {name} is missing or empty."
    return None


def _wrong_type(row: DataRow, texts: Sequence[str]) -> str | None:
    for name in texts:
        if row[name] is not None and (problem := text_problem(name, row[name])):
            return problem
    return lists_problem(row)


def lists_problem(row: DataRow) -> str | None:
    """Return the problem with the list columns, each of which may be missing; None if there is none."""
    for name, kinds in LISTS.items():
        values = row.get(name)
        fits = isinstance(values, list) and all(isinstance(v, kinds) and not isinstance(v, bool) for v in values)
        if values is not None and not fits:
            return f"{name} must be a list of {'texts' if kinds == (str,) else 'numbers'}, got {short(values)}."
    rewards, count = row.get("candidate_rewards"), len(row.get("candidates") or [])
    if rewards is not None and len(rewards) != count:
        return f"{count} candidates but {len(rewards)} candidate_rewards: there must be one for each."
    if rewards is not None and not all(map(isfinite, rewards)):
        return f"candidate_rewards must be finite numbers, got {short(rewards)}."
    return None
