"""How a result was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semioffline.evaluation.results import FromJson, JsonObject

Versions = dict[str, Any]
"""Packages and the machine: name -> version, `cores` -> their number, `gpus` -> their names."""


@dataclass(frozen=True)
class Provenance(FromJson):
    """The command, commit and versions behind a result, as result files have them under `about`."""

    command: str
    commit: str | None
    versions: Versions
    mixed: bool = False
    """Whether some runs were made on another machine or with other versions."""

    def to_json(self) -> JsonObject:
        found: JsonObject = {"command": self.command, "commit": self.commit, "versions": self.versions}
        return found | ({"mixed": True} if self.mixed else {})
