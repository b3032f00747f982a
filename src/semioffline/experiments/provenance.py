"""How a result was made."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from semioffline.storage.records import Record
from semioffline.training.run_folder import Versions


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


def commit(checkout: Path = Path(__file__).parents[3]) -> str | None:
    """The commit of the checkout that this code runs from, and whether files have changed since; None where it is
    installed without one."""
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
