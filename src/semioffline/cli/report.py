"""semioffline report: make the tables of Markdown pages again, from the JSON files that they name."""

from dataclasses import dataclass
from pathlib import Path

from semioffline.cli.options import parse
from semioffline.config import option
from semioffline.errors import UserError


@dataclass
class ReportOptions:
    pages: list[str] = option([], "Markdown pages with <!-- table: FILE.json --> ... <!-- end -->.")


def run(argv: list[str]) -> None:
    from semioffline.report.page import BLOCK, fill

    (options,) = parse("report", [ReportOptions], argv)
    if not options.pages:
        raise UserError("which pages? give --pages PAGE.md ...")
    for name in options.pages:
        page = Path(name)
        text = fill(page)
        page.write_text(text)
        print(f"{page}: {len(BLOCK.findall(text))} tables")
