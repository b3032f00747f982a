"""Options for data and model, shared by all commands and by the whole job in Python."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semioffline.errors import UserError, unknown
from semioffline.tasks.reading.formats import MAX_ROW_MB
from semioffline.tasks.reading.rows import parse_columns
from semioffline.tasks.registry import Source, Task, load_task
from semioffline.validation import STEPS, Options, Range, setting

if TYPE_CHECKING:
    from semioffline.policy.policy import Policy

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class DataOptions(Options):
    task: str = setting("files", "Name of a task. `files`: your own data, with prompts and completions.", "Data")
    data_dir: str | None = setting(
        None,
        "Folder with train/validation/test files, or a dataset on the Hub. Default: the task's dataset.",
        "Data",
        place=True,
    )
    train_file: str | None = setting(None, "File of the train split: JSON lines, CSV or Parquet.", "Data", place=True)
    validation_file: str | None = setting(None, "File of the validation split.", "Data", free=True, place=True)
    test_file: str | None = setting(None, "File of the test split.", "Data", free=True, place=True)
    columns: list[str] = setting([], "Names of your columns: prompt=YOURS completion=YOURS.", "Data")
    prompt_template: str | None = setting(
        None, "Text around each prompt, for example 'Dialogue:\\n{prompt}\\nSummary:'.", "Data"
    )
    limit: int | None = setting(None, "Use only this many rows of each split.", "Data", STEPS)
    eval_limit: int | None = setting(None, "Use only this many rows of the validation split.", "Data", STEPS, free=True)
    max_row_mb: float = setting(
        MAX_ROW_MB,
        "Longest row of a data file, in MB. A longer row is an error.",
        "Advanced",
        Range(0, 2000, open_low=True),
        free=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model: str | None = None  # that reads the prompts: filled in from ModelOptions

    def read_by(self, model: str | None) -> None:
        """Set the model that reads the prompts, because a task may have a prompt form for its kind."""
        self.model = model

    @property
    def called(self) -> str:
        """A name of the data for people: the task, or for your own files the folder or the file."""
        given = self.data_dir or self.train_file
        return self.task if self.task != "files" or not given else Path(given).resolve().name

    def load_task(self) -> Task:
        return load_task(self.task)

    def source(self, seed: int = 0, limit: int | None = None) -> Source:
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return Source(
            data_dir=self.data_dir,
            files={split: path for split, path in files.items() if path},
            columns=parse_columns(self.columns),
            prompt_template=self.prompt_template,
            limit=limit if limit is not None else self.limit,
            max_row_mb=self.max_row_mb,
            seed=seed,
            model=self.model,
        )

    def made_with(self) -> dict[str, object]:
        """Return the data options that results depend on, without limits that only protect the reading."""
        return {name: value for name, value in asdict(self).items() if name != "max_row_mb"}

    def has(self, split: str) -> bool:
        """Return whether the split exists. A folder may lack one; datasets on the Hub are not checked."""
        return self.load_task().has(self.source(), split)


@dataclass
class ModelOptions(Options):
    model: str | None = setting(None, "Hub name or folder of the model.", "Model", place=True)
    device: str = setting("auto", "Device: auto | cpu | cuda | cuda:N | mps", "Model")
    dtype: str = setting("float32", "Precision of the weights: float32 | bfloat16 | float16.", "Model", choices=_DTYPES)

    def checked_device(self) -> str:
        """Return the device to use. A device that does not exist is an error: there is no silent fallback."""
        import torch

        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        if self.device == "auto":
            return next(name for name, there in available.items() if there)
        kind, numbered, number = self.device.partition(":")
        if kind not in available:
            raise unknown("device", self.device, ["auto", *available])
        known = map(str, range(torch.cuda.device_count() if kind == "cuda" else 0))
        no_such = numbered and number not in known
        if not available[kind] or no_such:
            there = [name for name, is_there in available.items() if is_there]
            raise UserError(f"--device {self.device}: this machine has no such device (it has: {', '.join(there)})")
        return self.device

    def load(self, **kwargs: Any) -> Policy:
        import torch

        from semioffline.policy.policy import Policy

        if self.model is None:
            raise UserError("no model given: add --model NAME_OR_FOLDER")
        return Policy.load(self.model, dtype=getattr(torch, self.dtype), **kwargs)
