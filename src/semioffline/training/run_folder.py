"""What every run leaves in its folder, from Python and from the command line: settings, versions, results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from semioffline import __version__
from semioffline.config import MethodConfig
from semioffline.errors import UserError
from semioffline.storage.files import is_unused, lock_folder, open_for_writing, write_atomically

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESULT = "result.json"
Versions = Mapping[str, str | int | list[str] | None]
"""Packages and the machine: name -> version, `cores` -> their number, `gpus` -> their names."""
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "peft", "sacrebleu", "rapidfuzz", "nltk")


def versions(system: bool = True) -> Versions:
    """Of this library, what it stands on, and the machine; without the operating system where others will read it."""
    import torch

    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "gpus": gpus}
    os_name = {"system": platform.platform(terse=True)} if system else {}
    return {"semioffline": __version__, **found, **machine, **os_name}


def open_folder(folder: str | Path, resume: bool = False, can_resume: bool = False, lock: bool = True) -> Path:
    """A new folder, or with `resume` one that may hold an earlier part of this run. can_resume: the command could.
    lock: refuse it to all other processes until the command ends."""
    path = Path(folder)
    if not str(folder).strip():
        raise UserError("--output_dir must not be empty: name a folder")
    if path.is_file():
        raise UserError(f"--output_dir {path} is a file")
    first = int(os.environ.get("RANK", "0")) == 0  # the other processes may find what the first has written already
    if first and not resume and path.is_dir() and not is_unused(path):
        go_on = "add --resume to go on with it, or " if can_resume else ""
        raise UserError(f"--output_dir {path} is not empty: {go_on}name another folder")
    open_for_writing(path)
    if first and lock:
        lock_folder(path)
    return path


def write_settings(folder: Path, *options: DataclassInstance) -> None:
    """config.yaml: the resolved settings, those that differ from nothing included; and versions.json."""
    write_atomically(folder / "config.yaml", yaml.safe_dump(settings_of(*options), sort_keys=True))
    write_atomically(folder / "versions.json", json.dumps(versions(), indent=1))


def settings_of(*options: DataclassInstance) -> dict[str, object]:
    """As config.yaml has them."""
    settings: dict[str, object] = {}
    for option in options:
        values = option.to_dict() if isinstance(option, MethodConfig) else dataclasses.asdict(option)
        settings |= {key: value for key, value in values.items() if not key.startswith("_")}
    return json.loads(json.dumps(settings, default=str))


def write_result(folder: Path, result: Mapping[str, object]) -> None:
    write_atomically(folder / RESULT, json.dumps(result, indent=1))
