"""Fill the tables of Markdown pages from JSON results, so that no number is written by hand.

    python -m benchmarks.pages README.md docs

In a page, this script writes the lines between `<!-- table: results/e2e.json -->` and `<!-- end -->`.
A folder stands for all pages in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    call_tables,
    campaign,
    claims,
    job_tables,
    overview,
    report_tables,
    sample_tables,
    speed_tables,
)
from semioffline.bench.results import BenchResult
from semioffline.errors import UserError, unknown
from semioffline.experiments.provenance import Provenance
from semioffline.experiments.results import Comparison
from semioffline.report import bench, table

BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)
WHEN_RUN = re.compile(r"<!-- table when run: (\S+) -->")
"""Where a table will be when its result is there."""
RENDERERS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "comparison": lambda result, folder: _comparison(Comparison.from_json(result)),
    "rouge": lambda result, folder: f"{speed_tables.rouge_markdown(result)}\n{_about(result)}",
    "peer": lambda result, folder: f"{speed_tables.peer_markdown(result)}\n{_about(result)}",
    "samples": lambda result, folder: f"{sample_tables.markdown(result)}\n{_about(result)}",
    "bench": lambda result, folder: f"{bench.markdown(BenchResult.from_json(result).rows)}\n{_about(result)}",
    "campaign": lambda result, folder: f"{campaign.markdown(result)}\n{_about(result)}",
    "report": lambda result, folder: f"{report_tables.page_markdown(result)}\n{_about(result)}",
    "token_log": lambda result, folder: f"{report_tables.token_log_markdown(result)}\n{_about(result)}",
    "estimator_errors": lambda result, folder: f"{call_tables.errors_markdown(result)}\n{_about(result)}",
    "calls": call_tables.markdown,
    "jobs": job_tables.jobs_markdown,
    "defaults": lambda result, folder: f"{job_tables.defaults_markdown(result)}\n{_about(result)}",
    "claims": claims.markdown,
    "overview": overview.markdown,
}
"""kind of result -> its Markdown; folder: of the result, which paths to other results are relative to"""


def _comparison(comparison: Comparison) -> str:
    return f"{table.markdown(comparison)}\n{table.about_comparison(comparison)}"


def _about(result: dict[str, Any]) -> str:
    return table.about(Provenance.from_json(result["about"]))


def fill(page: Path) -> str:
    """The text of a page with its tables made from the results."""

    def render(match: re.Match[str]) -> str:
        path = page.parent / match[2]
        result = table.read_result(path)
        kind = result.get("kind") if isinstance(result, dict) else None
        if kind not in RENDERERS:
            raise unknown(f"kind of result in {path}", str(kind), RENDERERS)
        return f"{match[1]}{RENDERERS[kind](result, path.parent)}{match[4]}"

    def begin(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n<!-- end -->" if (page.parent / match[1]).exists() else match[0]

    if not page.is_file():
        raise UserError(f"there is no page {page}")

    return BLOCK.sub(render, WHEN_RUN.sub(begin, page.read_text()))


def pages_of(paths: list[str]) -> list[Path]:
    """The pages that these are; of a folder, those in it."""
    return [page for path in map(Path, paths) for page in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]


def main(paths: list[str]) -> int:
    """Fill the tables of these pages or folders of pages in place; errors are one line on stderr and exit code 2."""
    try:
        if not paths:
            raise UserError("no pages given: python -m benchmarks.pages README.md docs")
        for page in pages_of(paths):
            text = fill(page)
            page.write_text(text)
            print(f"{page}: {len(BLOCK.findall(text))} tables")
    except UserError as error:
        print(f"pages: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
