"""One table at the end: what was tried, handled, lost and hung. With --campaign-json FILE it is also written there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COLUMNS = ("tried", "handled", "lost", "hung")
Tally = Callable[..., None]
WITHOUT = "failed before their outcome was known"
"""The row of tests of the campaign that ended in an error and tallied nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign-json", help="write the table of the campaign into this file")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEGAN] = time.time()


BEGAN: pytest.StashKey[float] = pytest.StashKey()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """tally(what was done, outcome, number=1): the outcome is one of handled, lost and hung."""

    def add(what: str, outcome: str, number: int = 1) -> None:
        assert outcome in COLUMNS[1:]
        request.node.user_properties.append(("campaign", (what, outcome, number)))

    return add


def count(reports: list[Any]) -> dict[str, Counter[str]]:
    """what was done -> how often it was tried, handled, lost and hung. reports: of all phases of all tests."""
    rows: dict[str, Counter[str]] = {}
    for report in reports:
        told = [value for name, value in getattr(report, "user_properties", []) if name == "campaign"]
        is_last = getattr(report, "when", None) == "call"
        for what, outcome, number in told if is_last else []:
            rows.setdefault(what, Counter()).update({"tried": number, outcome: number})
        if report.failed and not told and "campaign" in getattr(report, "keywords", {}):
            rows.setdefault(WITHOUT, Counter()).update(["tried", "lost"])
    return dict(sorted(rows.items()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = [report for kind in ("passed", "failed", "error") for report in terminalreporter.stats.get(kind, [])]
    rows = count(reports)
    if not rows:
        return
    total = sum(rows.values(), Counter())
    width = max(map(len, [*rows, "all"]))
    terminalreporter.write_line(f"{'':<{width}}" + "".join(f"{name:>9}" for name in COLUMNS))
    for what, counts in (rows | {"all": total}).items():
        terminalreporter.write_line(f"{what:<{width}}" + "".join(f"{counts[name]:>9}" for name in COLUMNS))
    if config.getoption("campaign_json", None):
        write(Path(config.getoption("campaign_json")), rows, time.time() - config.stash[BEGAN])


def write(path: Path, rows: dict[str, Counter[str]], seconds: float) -> None:
    """For docs/reliability.md, which `make tables` fills."""
    from semioffline.experiments.provenance import Provenance, commit
    from semioffline.training.run_folder import versions

    made = Provenance("make campaign", commit(), versions(system=False))
    table = [{"what": what} | {name: counts[name] for name in COLUMNS} for what, counts in rows.items()]
    date = time.strftime("%Y-%m-%d", time.gmtime())
    result = {"kind": "campaign", "date": date, "seconds": round(seconds), "rows": table, "about": made.to_json()}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
