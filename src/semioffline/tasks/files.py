"""Your own data: files, a folder, or a dataset on the Hub, with a prompt and a completion in each row."""

from typing import TYPE_CHECKING

from semioffline.errors import UserError
from semioffline.tasks.reading.rows import load_rows
from semioffline.tasks.registry import Source, Task

if TYPE_CHECKING:
    from datasets import Dataset


def load_split(source: Source, split: str) -> "Dataset":
    where = source.where(split)
    if where is None:
        raise UserError(f"no data for the {split} split: name a file for it, a folder, or a dataset.")
    if source.raw:
        most = source.max_row_mb
        return load_rows(where, split, limit=source.limit, require=(), allow_empty=True, max_row_mb=most)
    return load_rows(where, split, source.columns, source.prompt_template, source.limit, max_row_mb=source.max_row_mb)


TASK = Task(load=load_split)
