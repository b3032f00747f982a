"""One table at the end: what was tried, handled, lost and hung."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

COLUMNS = ("tried", "handled", "lost", "hung")
Tally = Callable[[str, str], None]


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """tally(what was done, outcome): the outcome is one of handled, lost and hung."""

    def add(what: str, outcome: str) -> None:
        assert outcome in COLUMNS[1:]
        request.node.user_properties.append(("campaign", (what, outcome)))

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, value in report.user_properties:
                if name == "campaign":
                    rows.setdefault(value[0], Counter()).update(["tried", value[1]])
    if rows:
        width = max(map(len, rows))
        terminalreporter.write_line(f"{'':<{width}}" + "".join(f"{name:>9}" for name in COLUMNS))
        for what, counts in rows.items():
            terminalreporter.write_line(f"{what:<{width}}" + "".join(f"{counts[name]:>9}" for name in COLUMNS))
