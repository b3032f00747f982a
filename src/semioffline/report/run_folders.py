"""Read run folders for the report. If files are missing, old or incomplete, a part of the report is left out; there is
no error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from semioffline.errors import UserError
from semioffline.evaluation.metrics import SURFACE
from semioffline.experiments.job_results import INITIAL, MFT, JobResult
from semioffline.experiments.plan import START
from semioffline.experiments.results import Comparison
from semioffline.storage.files import read_content, read_json, read_log
from semioffline.storage.records import read_record
from semioffline.storage.untrusted import parse_yaml
from semioffline.training.diagnostics import Finding, Line, find_problems
from semioffline.training.initial_outputs import BEFORE
from semioffline.training.run_log import LOG

PREDICTIONS = "predictions.jsonl"
_NOT_METRICS = ("prompt", "prediction", "references")
OutputRow = dict[str, Any]
"""One line of predictions.jsonl."""


@dataclass(frozen=True)
class Run:
    """One run: a model, how it was trained, and its outputs."""

    label: str
    """Its unique name on the page."""
    folder: Path
    method: str = ""
    seed: int | None = None
    log: list[Line] = field(default_factory=list)
    """metrics.jsonl: numbers only."""
    before: list[OutputRow] = field(default_factory=list)
    """Outputs of its initial model: before.jsonl, or the predictions of the run that is the initial model."""
    start: str = "initial checkpoint"
    """The name of its initial model on the page."""
    after: list[OutputRow] = field(default_factory=list)
    """predictions.jsonl"""
    result: Mapping[str, Any] = field(default_factory=dict)
    """result.json"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """config.yaml or settings.json"""

    @property
    def findings(self) -> list[Finding]:
        return find_problems(self.log)

    @property
    def rewards(self) -> list[str]:
        """The names of the reward functions that it was trained on."""
        parts = [name.split("/") for line in self.log for name in line if name.startswith("rewards/")]
        return list(dict.fromkeys("/".join(words[1:-1]) for words in parts if words[-1] == "mean"))

    @property
    def metrics(self) -> list[str]:
        """The metrics of its outputs: rewards first, text statistics last."""
        names = [name for row in self.after[:1] for name in row if name not in _NOT_METRICS]
        rewards = self.rewards
        return sorted(names, key=lambda name: (name in SURFACE, name not in rewards))


@dataclass(frozen=True)
class Folder:
    """A folder given to `semioffline report`: one run, or a command with several runs."""

    path: Path
    runs: list[Run]
    comparison: Comparison | None = None
    job: JobResult | None = None


def read_folder(path: Path) -> Folder:
    """Read the runs in a folder of `train`, `evaluate`, `demo`, `compare` or `run`."""
    if not path.is_dir():
        raise UserError(f"there is no run folder {path}")
    result = _object(path / "result.json")
    if (path / "comparison.json").exists():
        found = Folder(path, _runs_of_comparison(path), comparison=_read_comparison(path / "comparison.json"))
    elif result.get("kind") == "job":
        job = read_record(JobResult, path / "result.json")
        found = Folder(path, _runs_of_job(path, job), job=job)
    elif (path / LOG).exists() or (path / PREDICTIONS).exists():
        found = Folder(path, [_read_run(path, path.resolve().name)])
    else:
        parts = sorted(part.parent for part in path.glob(f"*/{LOG}"))
        in_order = [path / name for name in result if path / name in parts]  # as demo writes its stages
        parts = in_order + [part for part in parts if part not in in_order]
        found = Folder(path, [_of_stage(_read_run(part, part.name), path, result) for part in parts])
    if not found.runs and found.comparison is None:
        raise UserError(
            f"there is no run in {path}: expected {LOG} or {PREDICTIONS}, which train, demo, evaluate and compare write"
        )
    return found


def _read_comparison(path: Path) -> Comparison:
    found = read_record(Comparison, path)
    for name, method in found.methods.items():
        if missing := [metric for metric in found.metrics if metric not in method.metrics]:
            raise UserError(f"{path}: the method {name} has no {', '.join(missing)}")
    if not found.metrics:
        raise UserError(f"{path} has no metrics")
    return found


def _of_stage(run: Run, path: Path, results: Mapping[str, Any]) -> Run:
    """Return a stage of a command with the command's settings and result."""
    result = results.get(run.label)
    return replace(
        run, result=result if isinstance(result, dict) else run.result, settings=run.settings or _settings(path)
    )


def _read_run(folder: Path, label: str, before: Sequence[OutputRow] = (), with_outputs: bool = True) -> Run:
    """Read one run. before: outputs of the initial checkpoint, if the run itself has none."""
    result = _object(folder / "result.json")
    settings = _settings(folder)
    own = list(_rows(folder / BEFORE)) if with_outputs else []
    return Run(
        label=label,
        folder=folder,
        method=str(settings.get("method") or result.get("method") or ""),
        seed=seed if isinstance(seed := result.get("seed"), int) else None,
        log=[_numbers(line) for line in read_log(folder / LOG)],
        before=own or list(before),
        after=list(_rows(folder / PREDICTIONS)) if with_outputs else [],
        result=result,
        settings=settings,
    )


def _runs_of_comparison(path: Path) -> list[Run]:
    """Return every run of a comparison. Outputs are read for the first seed of each method only, which is enough for a
    reader."""
    folders = sorted(part.parent for part in path.glob("runs/*/result.json"))
    names = {folder: folder.name.rpartition("-seed") for folder in folders}
    first = {method: folder for folder in reversed(folders) for method, _, _ in [names[folder]]}
    seeds = {method: sum(names[folder][0] == method for folder in folders) for method in first}
    initial = list(_rows(first[START] / PREDICTIONS)) if START in first else []
    runs = []
    for folder in folders:
        method, _, seed = names[folder]
        label = method if seeds[method] == 1 else f"{method}, seed {seed}"
        is_first = folder == first[method]
        runs.append(_read_run(folder, label, initial if is_first and method != START else (), is_first))
    return [run for run in runs if run.log or run.after]


def _runs_of_job(path: Path, job: JobResult) -> list[Run]:
    """Return every run of a job with its initial model: RL and more M-FT begin with M-FT if there is one."""
    folders = {name: path / model.folder for name, model in job.models.items() if _is_inside(model.folder)}
    found = []
    for name, folder in folders.items():
        start = INITIAL if name == MFT or MFT not in folders else MFT
        before = list(_rows(folders[start] / PREDICTIONS)) if name != INITIAL and start in folders else []
        run = _read_run(folder, job.models[name].label, before)
        found.append(replace(run, start=job.models[start].label if start in job.models else run.start))
    return [run for run in found if run.log or run.after]


def _is_inside(folder: str) -> bool:
    return bool(folder) and not Path(folder).is_absolute() and ".." not in Path(folder).parts


def _settings(folder: Path) -> dict[str, Any]:
    if (folder / "settings.json").exists():
        return _object(folder / "settings.json")
    path = folder / "config.yaml"
    try:
        found = parse_yaml(read_content(path)) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    return found if isinstance(found, dict) else {}


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _rows(path: Path) -> Iterator[OutputRow]:
    for line in read_log(path):
        if isinstance(line.get("prompt"), str) and isinstance(line.get("prediction"), str):
            yield line


def _numbers(line: Mapping[str, object]) -> Line:
    """Return the numbers in a log line. NaN stays, because diagnostics report it."""
    kept = {name: value for name, value in line.items() if isinstance(value, (int, float))}
    return {name: float(value) for name, value in kept.items()}


def finite(value: object) -> float | None:
    """Return a number that JSON can hold, or None."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def named_apart(folders: Iterable[Folder]) -> list[Folder]:
    """Give the runs of all folders unique labels."""
    made = list(folders)
    labels = [run.label for folder in made for run in folder.runs]
    several = len(made) > 1 and len(set(labels)) < len(labels)
    taken: dict[str, int] = {}

    def label(folder: Folder, run: Run) -> str:
        name = run.label if not several or run.folder == folder.path else f"{folder.path.resolve().name}/{run.label}"
        taken[name] = taken.get(name, 0) + 1
        return name if taken[name] == 1 else f"{name} ({taken[name]})"

    return [replace(folder, runs=[replace(run, label=label(folder, run)) for run in folder.runs]) for folder in made]
