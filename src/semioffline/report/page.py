"""Pages whose tables are made from JSON files, so that no number is written by hand.

In a page, `<!-- table: results/e2e.json -->` and `<!-- end -->` enclose what `semioffline report PAGE` writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semioffline.errors import UserError, unknown
from semioffline.report import bench, claims, overview, samples, table

BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)
RENDERERS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "comparison": lambda result, folder: f"{table.markdown(result)}\n{table.about(result)}",
    "rouge": lambda result, folder: f"{bench.rouge_markdown(result)}\n{table.about(result)}",
    "peer": lambda result, folder: f"{bench.peer_markdown(result)}\n{table.about(result)}",
    "samples": lambda result, folder: f"{samples.markdown(result)}\n{table.about(result)}",
    "bench": lambda result, folder: f"{bench.markdown(result)}\n{table.about(result)}",
    "claims": claims.markdown,
    "overview": overview.markdown,
}
"""kind of result -> its Markdown; folder: that of the page, beside which other results lie"""


def fill(page: Path) -> str:
    """The text of a page with all of its tables made again."""

    def render(match: re.Match[str]) -> str:
        path = page.parent / match[2]
        result = table.read_result(path)
        kind = result.get("kind") if isinstance(result, dict) else None
        if kind not in RENDERERS:
            raise unknown(f"kind of result in {path}", str(kind), RENDERERS)
        return f"{match[1]}{RENDERERS[kind](result, page.parent)}{match[4]}"

    if not page.is_file():
        raise UserError(f"there is no page {page}")
    return BLOCK.sub(render, page.read_text())
