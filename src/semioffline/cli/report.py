"""semioffline report: write one HTML page about runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from semioffline.cli.help import wants_help
from semioffline.cli.options import parse
from semioffline.errors import UserError
from semioffline.printing import say
from semioffline.storage.files import open_for_writing
from semioffline.validation import Options, setting


@dataclass
class ReportOptions(Options):
    output_file: str | None = setting(
        None, "File to write. Default: RUN/report.html; report.html for several runs.", place=True
    )


def run(argv: list[str]) -> None:
    folders, flags = leading_folders(argv)
    [options] = parse("report RUN [RUN ...]", [ReportOptions], flags)
    if not folders:
        raise UserError(
            "no run given: semioffline report RUN [RUN ...], with the --output_dir of train, demo or compare"
        )
    from semioffline.report.page import write_report

    path = Path(options.output_file) if options.output_file else None
    if path is not None and path.is_dir():
        raise UserError(f"--output_file {path} is a folder: name a file")
    if path is not None or len(folders) > 1:
        open_for_writing(path.parent if path is not None else Path())
    say(f"Report: {write_report(folders, path)}")


def leading_folders(argv: list[str]) -> tuple[list[Path], list[str]]:
    """Split a command line into the folders before the first flag, and the flags."""
    words = [] if wants_help(argv) else list(takewhile(lambda word: not word.startswith("-"), argv))
    for word in words:
        if "://" in word:
            raise UserError(f"{word} must be a folder of this machine, not an address: download it first")
    return [Path(word) for word in words], argv[len(words) :]
