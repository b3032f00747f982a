"""Record how a result was made."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from semioffline.data.candidates import digest_columns
from semioffline.storage.files import write_atomically
from semioffline.storage.records import Record
from semioffline.training.run_folder import Versions, settings_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from datasets import Dataset

ABOUT = "about.json"
SHOWN = {"--data_dir": "", "--output_dir": "runs/", "--beside": "runs/", "--config": ""}
SHOWN |= dict.fromkeys(("--model", "--train_file", "--validation_file", "--test_file", "--reward"), "")
"""Flags whose paths are shown by their last name, and what stands before it."""
_NOT_SETTINGS = {"output_dir", "logging_dir", "run_name", "report_to", "accelerator_config", "resume", "device"}
_NOT_SETTINGS |= {"hub_token", "dataloader_pin_memory"}
"""Where a run is and what Transformers fills in, for `changed_settings`."""


@dataclass(frozen=True)
class Provenance(Record):
    """The command, commit and versions behind a result, stored under `about`."""

    command: str
    commit: str | None
    versions: Versions
    mixed: bool = False
    """Whether some runs were made on another machine or with other versions."""

    def to_json(self) -> dict[str, object]:
        found = super().to_json()
        return found if self.mixed else {name: value for name, value in found.items() if name != "mixed"}


@dataclass(frozen=True)
class DataDigest(Record):
    """Identifies a split: its digest changes with any row and with the order of the rows."""

    rows: int
    digest: str


@dataclass(frozen=True)
class RunProvenance(Record):
    """The content of about.json: how a run was made, for its report."""

    about: Provenance
    settings: dict[str, object] = field(default_factory=dict)
    """Settings that differ from their defaults."""
    data: dict[str, DataDigest] = field(default_factory=dict)
    """split -> the digest of its rows"""


def write_about(
    folder: Path, made: Provenance, options: Sequence[DataclassInstance], splits: Mapping[str, Dataset | None]
) -> None:
    """Write about.json: command, versions, settings that differ from their defaults, and the digest of each split."""
    data = {
        name: DataDigest(len(rows), digest_columns(cast(Iterable[Mapping[str, object]], rows)))
        for name, rows in splits.items()
        if rows is not None
    }
    found = RunProvenance(made, changed_settings(*options), data)
    write_atomically(folder / ABOUT, json.dumps(found.to_json(), indent=1, default=str))


def changed_settings(*options: DataclassInstance) -> dict[str, object]:
    """Return the settings that differ from their defaults. Paths of folders are shortened to their last part."""
    changed: dict[str, object] = {}
    for option in options:
        values = settings_of(option)
        for item in dataclasses.fields(option):
            default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
            value = values.get(item.name)
            is_setting = item.init and item.name in values and item.name not in _NOT_SETTINGS
            filled_in = getattr(option, f"default_{item.name}", None)  # the value of a setting that was not given
            if is_setting and value not in (default, filled_in, None, [], ""):
                path = Path(value) if isinstance(value, str) and f"--{item.name}" in SHOWN else None
                changed[item.name] = value if path is None or not path.is_absolute() else path.name
    return changed


def commit(checkout: Path = Path(__file__).parents[3]) -> str | None:
    """Return the commit of the checkout that this code runs from, and whether files have changed since; None without a
    checkout."""
    head = _head(checkout / ".git")
    if head is None:
        return None
    try:
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=checkout, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):  # no git to ask
        return head
    return f"{head} with changes" if changed.returncode == 1 else head


def _head(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:12]
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text(encoding="utf-8").strip()[:12]
        packed = (line.split() for line in (git / "packed-refs").read_text(encoding="utf-8").splitlines())
        return next((words[0][:12] for words in packed if words[1:] == [name]), None)
    except OSError:
        return None
