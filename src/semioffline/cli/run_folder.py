"""What every command leaves behind: settings, versions, results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from semioffline import __version__
from semioffline.cli.recipes import Recipe
from semioffline.config import MethodConfig
from semioffline.data.candidates import digest_columns
from semioffline.errors import UserError
from semioffline.evaluation.paired import Change, as_rows
from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.scale import shown_value
from semioffline.experiments.provenance import ABOUT, DataDigest, Provenance, RunProvenance, Versions
from semioffline.printing import show_table
from semioffline.storage.files import is_unused, lock_folder, open_for_writing, write_atomically
from semioffline.validation import show

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from datasets import Dataset

_SHOWN = {"--data_dir": "", "--output_dir": "runs/", "--beside": "runs/", "--config": ""}
_SHOWN |= dict.fromkeys(("--model", "--train_file", "--validation_file", "--test_file", "--reward"), "")
"""Flags whose paths are shown by their last name, and what stands before it."""
_INSIDE = ("model", "start", "candidates", "candidates.jsonl")
"""Names inside a run folder: they say nothing without the folder's own."""
_NOT_SETTINGS = {"output_dir", "logging_dir", "run_name", "report_to", "accelerator_config", "resume", "device"}
_NOT_SETTINGS |= {"hub_token", "dataloader_pin_memory"}
"""Where a run is and what Transformers fills in, for `changed_settings`."""
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


def shown_command(command: str, argv: list[str]) -> str:
    """A command line to print where others read it: folders of this machine by their last name only."""
    threads = os.environ.get("OMP_NUM_THREADS")
    words, flag = [], ""
    for word in (part for given in argv for part in (given.split("=", 1) if given.startswith("--") else [given])):
        flag = word if word.startswith("--") else flag
        label, is_labelled, folder = word.partition("=") if flag == "--beside" else ("", "", word)
        if flag in _SHOWN and "/" in folder:
            word = f"{label}{is_labelled}{_last_name(Path(folder), _SHOWN[flag])}"
        words.append(f"'{word}'" if any(c in word for c in ' {}*$"') else word)
    return " ".join([*([f"OMP_NUM_THREADS={threads}"] if threads else []), "semioffline", command, *words])


def _last_name(path: Path, before: str) -> str:
    if path.name not in _INSIDE or path.parent.name == "":
        return before + path.name
    return f"{_last_name(path.parent, 'runs/')}/{path.name}"


def about(command: str, argv: list[str]) -> Provenance:
    """How a result was made, for a file that others read."""
    return Provenance(shown_command(command, argv), commit(), versions(system=False))


def open_folder(folder: str | Path, resume: bool = False, can_resume: bool = False, lock: bool = True) -> Path:
    """A new folder, or with `resume` one that may hold an earlier part of this run. can_resume: the command could.
    lock: refuse it to all other processes until the command ends."""
    path = Path(folder)
    if not str(folder).strip():
        raise UserError("--output_dir must not be empty: name a folder")
    if path.is_file():
        raise UserError(f"--output_dir {path} is a file")
    first = process_rank() == 0  # the other processes may find what the first has written already
    if first and not resume and path.is_dir() and not is_unused(path):
        go_on = "add --resume to go on with it, or " if can_resume else ""
        raise UserError(f"--output_dir {path} is not empty: {go_on}name another folder")
    open_for_writing(path)
    if first and lock:
        lock_folder(path)
    return path


def process_rank() -> int:
    """The number of this process among those that torchrun has started."""
    given = os.environ.get("RANK", "0")
    if not given.isdigit():
        raise UserError(f"the environment variable RANK={show(given)} must be a whole number: torchrun sets it")
    return int(given)


def write_settings(folder: Path, *options: DataclassInstance) -> None:
    """config.yaml: the resolved settings, those that differ from nothing included; and versions.json."""
    write_atomically(folder / "config.yaml", yaml.safe_dump(settings_of(*options), sort_keys=True))
    write_atomically(folder / "versions.json", json.dumps(versions(), indent=1))


def write_about(
    folder: Path, made: Provenance, options: Sequence[DataclassInstance], splits: Mapping[str, Dataset | None]
) -> None:
    """about.json: command and versions, settings that differ from their defaults, and what was read of each split."""
    data = {
        name: DataDigest(len(rows), digest_columns(cast(Iterable[Mapping[str, object]], rows)))
        for name, rows in splits.items()
        if rows is not None
    }
    found = RunProvenance(made, changed_settings(*options), data)
    write_atomically(folder / ABOUT, json.dumps(found.to_json(), indent=1, default=str))


def changed_settings(*options: DataclassInstance) -> Recipe:
    """Those that differ from their defaults. Folders of this machine by their last name only."""
    changed: Recipe = {}
    for option in options:
        values = settings_of(option)
        for item in dataclasses.fields(option):
            default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
            value = values.get(item.name)
            if (
                item.init
                and item.name in values
                and value not in (default, None, [], "")
                and item.name not in _NOT_SETTINGS
            ):
                path = Path(value) if isinstance(value, str) and f"--{item.name}" in _SHOWN else None
                changed[item.name] = value if path is None or not path.is_absolute() else path.name
    return changed


def settings_of(*options: DataclassInstance) -> Recipe:
    """As config.yaml has them."""
    settings: Recipe = {}
    for option in options:
        values = option.to_dict() if isinstance(option, MethodConfig) else dataclasses.asdict(option)
        settings |= {key: value for key, value in values.items() if not key.startswith("_")}
    return json.loads(json.dumps(settings, default=str))


def write_result(folder: Path, result: Mapping[str, object]) -> None:
    write_atomically(folder / "result.json", json.dumps(result, indent=1))


def print_changes(
    title: str,
    changes: Mapping[str, Change],
    rewards: Sequence[str] = (),
    note: str = "",
    names: tuple[str, str] = ("before", "after"),
) -> None:
    """One line a metric: both values, and their difference over the same inputs. Rewards come first."""
    columns = ("metric", *names, "difference", "95 % interval", "p")
    rows = as_rows(changes, rewards)
    marked = [n for n, row in enumerate(rows) if row[0].endswith("(reward)")]
    show_table(title, columns, rows, note=note, marked=marked)


def print_metrics(title: str, metrics: Mapping[str, MetricResult]) -> None:
    """One line a metric: mean over inputs (or value over the whole set) and 95 % interval, on the scale of
    `evaluation.scale`. Signatures: result.json."""
    rows = []
    for name, metric in metrics.items():
        value, low, high = (shown_value(name, number) for number in (metric.mean, metric.low, metric.high))
        rows.append((name, value, f"{low} – {high}", str(metric.inputs)))
    show_table(title, ("metric", "value", "95 % interval", "inputs"), rows)
