"""semioffline rate: collect blind human ratings of the outputs of runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from semioffline.cli.options import parse
from semioffline.cli.report import leading_folders
from semioffline.errors import UserError
from semioffline.printing import say, show_table
from semioffline.report.page import REPORT, write_report
from semioffline.report.rated import RatingTable, add_ratings, collect
from semioffline.report.rating import CRITERIA, KEY, PAGE, Key, Protocol, write_rating_page
from semioffline.storage.records import read_record
from semioffline.storage.untrusted import check_name
from semioffline.training.run_folder import open_folder
from semioffline.validation import BATCH, Options, setting


@dataclass
class RateOptions(Options):
    protocol: str = setting(
        "overall",
        "overall: one score from -1 to 1 (SAMSum); criteria: named ones from 1 to 3 (SQuAD); pairwise: preferences.",
        choices=get_args(Protocol),
    )
    criteria: list[str] = setting(list(CRITERIA), "Names of the criteria, for --protocol criteria.")
    inputs: int = setting(50, "Inputs to rate, drawn at random.", allowed=BATCH)
    output_dir: str | None = setting(None, "Folder for rate.html and key.json. Default: runs/rate-DATE.", place=True)
    read: list[str] = setting(
        [], "Rating files that the page exported: print their results and add them to the reports."
    )
    key: str | None = setting(None, "Path of key.json. Default: next to the files of --read.", place=True)


def run(argv: list[str]) -> None:
    folders, flags = leading_folders(argv)
    [options] = parse("rate RUN [RUN ...]", [RateOptions], flags)
    if options.read:
        if folders:
            raise UserError("--read takes rating files only, no run folders: key.json names the runs")
        return read_files([Path(name) for name in options.read], options.key)
    if not folders:
        raise UserError("no runs given: semioffline rate RUN_A RUN_B ..., or semioffline rate --read FILES")
    for name in options.criteria:
        check_name("criterion", name)
    path = Path(options.output_dir or f"runs/rate-{time.strftime('%Y%m%d-%H%M%S')}")
    folder = open_folder(path)
    protocol = cast(Protocol, options.protocol)
    key = write_rating_page(folders, folder, protocol, list(dict.fromkeys(options.criteria)), options.inputs)
    say(f"{len(key.items)} tasks, {len(key.systems)} models: {', '.join(system.label for system in key.systems)}")
    say(f"For raters: {folder / PAGE}. Keep to yourself: {folder / KEY}, which says who wrote what.")


def read_files(files: list[Path], named: str | None) -> None:
    """Print the results, and add them to the folders and reports of the rated runs."""
    path = Path(named) if named else files[0].parent / KEY
    if not path.exists():
        raise UserError(f"there is no {path}: give --key, the key.json that was written with the page")
    key = _read_key(path)
    table = collect(key, files)
    _show(table)
    add_ratings(path.parent, table)
    for folder in [Path(system.folder) for system in key.systems if system.folder]:
        if folder.is_dir():
            add_ratings(folder, table)
    places = dict.fromkeys(place for system in key.systems if system.folder for place in _with_parents(system.folder))
    for folder in [place for place in places if (place / REPORT).exists()]:
        say(f"Report: {write_report([folder])}")


def _read_key(path: Path) -> Key:
    key = read_record(Key, path, "the key of a rating page")
    shown = {number for item in key.items for number in item.systems}
    if key.protocol not in get_args(Protocol) or not shown <= set(range(len(key.systems))):
        raise UserError(f"{path} is not the key of a rating page: its protocol or its items are unknown")
    return key


def _with_parents(folder: str) -> list[Path]:
    """Return the folder of a run, and the folders above it that may belong to a command with several runs."""
    path = Path(folder)
    return [path, path.parent, path.parent.parent]


def _show(table: RatingTable) -> None:
    say(table.sentence)
    for header, lines, caption in table.tables():
        show_table(table.title, header, lines, note=caption)
