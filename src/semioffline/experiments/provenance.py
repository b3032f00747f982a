"""How a result was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semioffline.storage.records import Record

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
