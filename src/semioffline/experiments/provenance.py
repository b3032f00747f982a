"""How a result was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semioffline.storage.records import Record

ABOUT = "about.json"
Versions = Mapping[str, str | int | list[str] | None]
"""Packages and the machine: name -> version, `cores` -> their number, `gpus` -> their names."""


@dataclass(frozen=True)
class Provenance(Record):
    """The command, commit and versions behind a result, as result files have them under `about`."""

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
    """A split, so that it can be recognised: another row, or another order, has another digest."""

    rows: int
    digest: str


@dataclass(frozen=True)
class RunProvenance(Record):
    """about.json: how a run was made, for its report."""

    about: Provenance
    settings: dict[str, object] = field(default_factory=dict)
    """Those that differ from their defaults."""
    data: dict[str, DataDigest] = field(default_factory=dict)
    """split -> what was read"""
