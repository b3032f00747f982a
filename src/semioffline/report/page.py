"""Write report.html: one page with the results of runs, from the files in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import semioffline
from semioffline.experiments.provenance import ABOUT, Provenance, RunProvenance
from semioffline.report import comparing
from semioffline.report.curves import curves_of
from semioffline.report.draws import draws_of
from semioffline.report.html import render
from semioffline.report.outputs import changes_of, output_tables, pairs_of
from semioffline.report.rated import RatingTable, read_ratings
from semioffline.report.run_folders import Folder, Run, named_apart, read_folder
from semioffline.report.summary import RunSummary, comparison_sentence, job_rows, summarise_run
from semioffline.storage.files import make_folder, read_json, write_atomically
from semioffline.storage.records import read_record

REPORT = "report.html"
SCRIPTS = ("uplot/uplot.min.js", "base.js", "charts.js", "outputs.js", "tokens.js")


@dataclass(frozen=True)
class Made:
    """Provenance of the runs in a folder."""

    title: str
    command: str
    facts: list[tuple[str, str]]
    settings: list[tuple[str, str]]
    data: list[tuple[str, int, str]]
    """split, rows, digest"""
    signatures: list[tuple[str, str]]


def write_report(folders: Sequence[Path], path: Path | None = None) -> Path:
    """Write the report of these run folders, and return its path.

    Args:
        path: FOLDER/report.html when not given, or report.html in the current folder for several.
    """
    found = named_apart(read_folder(Path(folder)) for folder in folders)
    if path is None:
        path = found[0].path / REPORT if len(found) == 1 else Path(REPORT)
    make_folder(path.parent)
    write_atomically(path, report_page(found))
    return path


def report_page(folders: Sequence[Folder]) -> str:
    """Return the HTML of a report."""
    runs = [run for folder in folders for run in folder.runs]
    shown = [(run, pairs_of(run)) for run in runs]
    changes = {run.label: changes_of(run, pairs) for run, pairs in shown if run.after or not _is_repeat(run, folders)}
    tables = output_tables([(run, pairs) for run, pairs in shown if pairs])
    summaries = [summarise_run(run, changes[run.label], _method_of(run)) for run in runs if run.label in changes]
    draws = draws_of(runs)
    return render(
        "report.html.j2",
        ("base.css", "report.css", "uplot/uplot.min.css"),
        SCRIPTS,
        title=", ".join(folder.path.resolve().name for folder in folders),
        version=semioffline.__version__,
        jobs=[(folder.job, job_rows(folder.job)) for folder in folders if folder.job],
        comparisons=_comparisons(folders),
        summaries=_main_first(summaries),
        findings=[(run.label, run.findings) for run in runs if run.findings],
        has_logs=any(run.log for run in runs),
        ratings=_ratings(folders),
        made=[made for folder in folders for made in _made(folder)],
        shortened=tables.shortened,
        has_outputs=bool(tables.runs),
        has_draws=bool(draws),
        has_curves=any(run.log for run in runs),
        data={
            "curves": curves_of(runs),
            "outputs": {"inputs": tables.inputs, "runs": tables.runs},
            "draws": draws,
            "comparisons": [comparing.plot_data(folder.comparison) for folder in folders if folder.comparison],
        },
    )


def _is_repeat(run: Run, folders: Sequence[Folder]) -> bool:
    """Return whether a run is a further seed of a comparison, which its table already summarises."""
    return any(folder.comparison is not None and run in folder.runs for folder in folders)


def _method_of(run: Run) -> str:
    """Return the method of a run whose settings do not name it: the folder of a stage is named after its method."""
    return run.folder.name if run.folder.name in ("mft", "semi_offline") else ""


def _main_first(summaries: list[RunSummary]) -> list[RunSummary]:
    """Put runs with outputs before training first, because readers look for the change."""
    return sorted(summaries, key=lambda summary: all(row.difference == "–" for row in summary.rows))


def _comparisons(folders: Sequence[Folder]) -> list[tuple[comparing.ComparisonView, str]]:
    found = [folder.comparison for folder in folders if folder.comparison]
    return [(comparing.view(comparison), comparison_sentence(comparison)) for comparison in found]


def _ratings(folders: Sequence[Folder]) -> list[RatingTable]:
    """Return every rating once, whichever of the rated runs it was found with."""
    places = dict.fromkeys(place for folder in folders for place in (folder.path, *(run.folder for run in folder.runs)))
    found = [table for place in places for table in read_ratings(place)]
    return list({table.id: table for table in found}.values())


def _made(folder: Folder) -> list[Made]:
    """Return how the results were made: by the command of the folder, or by the command of each run."""
    if (folder.path / ABOUT).exists():
        return [_made_of(folder, read_record(RunProvenance, folder.path / ABOUT))]
    about = folder.comparison.about if folder.comparison else folder.job.about if folder.job else None
    return [_made_of(folder, RunProvenance(about or Provenance("", None, _versions(folder.path))))]


def _versions(folder: Path) -> dict[str, Any]:
    path = folder / "versions.json"
    return read_json(path) if path.exists() else {}


def _made_of(folder: Folder, noted: RunProvenance) -> Made:
    about = noted.about
    versions = [(name, ", ".join(value) if isinstance(value, list) else str(value)) for name, value in
                about.versions.items() if value not in (None, [], "")]  # fmt: skip
    commit = [("commit", about.commit)] if about.commit else []
    mixed = [("machines", "some runs were made on another machine or with other versions")] if about.mixed else []
    return Made(
        title=folder.path.resolve().name,
        command=about.command,
        facts=[*commit, *versions, *mixed],
        settings=sorted((name, _as_text(value)) for name, value in noted.settings.items()),
        data=[(split, found.rows, found.digest) for split, found in noted.data.items()],
        signatures=_signatures(folder),
    )


def _as_text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _signatures(folder: Folder) -> list[tuple[str, str]]:
    """Return metric -> its signature in any of the results."""
    found: dict[str, str] = {}
    results = [run.result.get("metrics") for run in folder.runs]
    for metrics in results:
        for name, metric in metrics.items() if isinstance(metrics, dict) else ():
            if isinstance(metric, dict) and metric.get("signature"):
                found.setdefault(name, str(metric["signature"]))
    if folder.job is not None:
        for model in folder.job.models.values():
            found |= {name: metric.signature for name, metric in model.metrics.items() if name not in found}
    return list(found.items())
