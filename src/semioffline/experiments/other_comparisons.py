"""Read other comparisons from the same initial checkpoint, as rows METHOD@LABEL of a table (`--beside`)."""

from __future__ import annotations

from pathlib import Path

from semioffline.errors import UserError
from semioffline.experiments.plan import START, read_run, run_folder
from semioffline.experiments.results import Comparison, OtherComparison, RunResult
from semioffline.storage.files import read_json
from semioffline.storage.untrusted import check_name

Runs = dict[str, list[RunResult]]
"""method -> its runs, one per seed"""


def labelled_folders(words: list[str]) -> dict[str, Path]:
    """Parse LABEL=FOLDER words into label -> folder."""
    found: dict[str, Path] = {}
    for word in words:
        label, _, folder = word.partition("=")
        if not label or not folder:
            raise UserError(f"--beside {word} must be LABEL=FOLDER")
        check_name("label", label)
        if label in found:
            raise UserError(f"--beside {word}: another folder has the label {label}")
        if not (Path(folder) / "comparison.json").is_file():
            raise UserError(f"--beside {word}: the folder has no comparison.json, so it is not a finished comparison")
        _read_comparison(Path(folder), label)
        found[label] = Path(folder)
    return found


def _read_comparison(folder: Path, label: str) -> Comparison:
    try:
        return Comparison.from_json(read_json(folder / "comparison.json"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"--beside {label}={folder} cannot be read as a comparison: {what}") from error


def read_other(folder: Path, label: str, own: Runs) -> tuple[OtherComparison, Runs]:
    """Read another comparison and its runs METHOD@LABEL, without its initial checkpoint. own: the runs of this one.

    Both must start from the same checkpoint and test it in the same way.
    """
    comparison = _read_comparison(folder, label)
    try:
        runs = {
            f"{method}@{label}": [read_run(run_folder(folder, method, seed)) for seed in summary.seeds]
            for method, summary in comparison.methods.items()
            if method.rpartition("@")[2] not in comparison.others  # not the runs that it has from others
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"--beside {label}={folder} cannot be read as a comparison: {what}") from error
    if comparison.missing:
        missing = ", ".join(comparison.missing)
        raise UserError(f"--beside {label}={folder} is not finished: {missing} (method:seed)")
    start, own_start = runs.pop(f"{START}@{label}", None), own.get(START)
    if own_start is None:
        raise UserError(f"--beside {label}: test the initial checkpoint of this comparison first (--only start:SEED)")
    if start is None or start[0].values != own_start[0].values:
        raise UserError(f"--beside {label}: it has another initial checkpoint, or tests in another way")
    taken = sorted(runs.keys() & own.keys())
    if taken:
        raise UserError(f"--beside {label}: {taken[0]} is a method of this comparison, too")
    return OtherComparison(comparison.about, comparison.preparation), runs
