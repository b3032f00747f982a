"""Print everything that the commands print. Texts of users and data reach the terminal and Markdown only through this
module."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = {"\\": "\\\\", "&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "\\`", "](": "]\\("}


def plain(text: object) -> str:
    """Return a text without characters that control a terminal: control characters (escape sequences begin with one)
    and marks that change the direction of writing are shown as \\x1b or \\u202e. Tabs and line ends stay."""
    return _ACTIVE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """Return a plain text in one line: all white space becomes single spaces."""
    return plain(" ".join(str(text).split()))


_NARROWEST = 20
"""The fewest characters that must remain next to the margin for a text to be broken into lines."""


def say(text: object = "", error: bool = False, strong: bool = False, margin: int | None = None) -> None:
    """Print a text literally: markup in it is not interpreted, and nothing in it controls the terminal.

    Args:
        strong: Bold in a terminal.
        margin: In a terminal a long line is broken between words, and goes on in this column.
    """
    stream = sys.stderr if error else sys.stdout
    if margin is not None:
        text = _broken(plain(text), margin)
    with _naming(stream):
        if error or (_LINE.live is None and not (strong and is_terminal())):
            print(plain(text), file=stream, flush=True)
        else:
            _LINE.print_above(plain(text), strong)


def _broken(text: str, margin: int) -> str:
    width = shutil.get_terminal_size().columns
    if not is_terminal() or width - margin < _NARROWEST:
        return text
    return textwrap.fill(text, width, subsequent_indent=" " * margin, break_on_hyphens=False, break_long_words=False)


def _print(console: Any, table: Any) -> None:
    with _naming(sys.stdout):
        console.print(table)


@contextmanager
def _naming(stream: object) -> Iterator[None]:
    """Name the stream in an error of writing to it, as other errors name a file."""
    try:
        yield
    except OSError as problem:
        problem.filename = getattr(stream, "name", "<output>")
        raise


WHOLE = 18
"""Maximum width of a cell of a table that is not broken into lines."""


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int = 0,
    note: str = "",
    marked: Sequence[int] = (),
) -> None:
    """Print a table: the first column left, the others right.

    Args:
        width: At least this many characters, where there is no terminal that would break the lines.
        note: A text below it.
        marked: The numbers of the rows that are bold in a terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not is_terminal():
        console.width = max(width, console.width)
    head, below = Text(one_line(title)), Text(one_line(note)) if note else None
    for is_narrow in (False, True):
        shape, padding = (box.SIMPLE_HEAD, 0) if is_narrow else (box.HEAVY_HEAD, 1)
        table: Any = Table(title=head, caption=below, box=shape, padding=(0, padding))
        for n, name in enumerate(columns):
            longest = max((len(one_line(row[n])) for row in rows), default=0)
            side = "right" if n else "left"
            table.add_column(Text(one_line(name)), justify=side, no_wrap=n == 0, min_width=min(longest, WHOLE))
        for n, row in enumerate(rows):
            table.add_row(*(Text(one_line(cell)) for cell in row), style="bold" if n in marked else None)
        if console.measure(table, options=console.options.update(max_width=10_000)).minimum <= console.width:
            return _print(console, table)
    if len(columns) < 3:
        return _print(console, table)
    half = (len(columns) + 1) // 2
    for part, told in ((slice(1, half), ""), (slice(half, None), note)):
        cells = [[row[0], *row[part]] for row in rows]
        show_table(title, [columns[0], *columns[part]], cells, width, told, marked)


# ---- what goes on now ----

REDRAWN = 0.1
"""Seconds between two drawings of the live line."""
TOLD = 30.0
"""Seconds between two lines of a long loop, if there is no terminal."""


def is_terminal() -> bool:
    """Return whether output goes to a terminal that can redraw a line."""
    try:
        return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # not a file, or closed
        return False


def terminal_width() -> int:
    from rich.console import Console

    return Console().width


class Activity:
    """One activity of the live line. `show` shows its progress in a terminal."""

    def __init__(self, is_told: bool) -> None:
        self.is_told = is_told
        self.parts: tuple[str, ...] = ()
        self.told = time.monotonic()

    def show(self, *parts: str) -> None:
        """Show parts in the live line. The first one stays visible while an inner activity runs. The last ones are
        dropped if there is no room."""
        is_first, self.parts = not self.parts, tuple(map(one_line, parts))
        if _LINE.live is not None:
            _LINE.draw(now=is_first)
        elif self.is_told and time.monotonic() - self.told >= TOLD:
            self.told = time.monotonic()
            say("  ".join(parts))


class _LiveLine:
    """The line at the bottom of a terminal that changes. Nested activities share it."""

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self.live: Any = None
        self.drawn = -math.inf

    def begin(self, is_told: bool) -> Activity:
        from rich.live import Live

        if self.live is None and is_terminal():
            self.live = Live(auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty())
            self.live.start()
        self.activities.append(Activity(is_told and not self.activities))
        return self.activities[-1]

    def end(self, activity: Activity) -> None:
        if activity in self.activities:
            del self.activities[self.activities.index(activity) :]
        if self.activities:
            self.draw(now=True)
        elif self.live is not None:
            live, self.live = self.live, None
            live.stop()

    def draw(self, now: bool = False) -> None:
        if self.live is None or (time.monotonic() - self.drawn < REDRAWN and not now):
            return
        from rich.text import Text

        self.drawn = time.monotonic()
        parts = [activity.parts[0] for activity in self.activities[:-1] if activity.parts]
        parts += self.activities[-1].parts
        self.live.update(Text(fitted(parts, self.live.console.width), no_wrap=True, overflow="ellipsis"), refresh=True)

    def print_above(self, text: str, strong: bool) -> None:
        from rich.console import Console
        from rich.text import Text

        console = Console() if self.live is None else self.live.console
        console.print(Text(text, style="bold" if strong else ""), soft_wrap=True)


_LINE = _LiveLine()


def fitted(parts: Sequence[str], width: int, gap: str = "  ") -> str:
    """Return the first parts that fit into a line, at least one of them."""
    line = parts[0] if parts else ""
    for part in parts[1:]:
        if len(line) + len(gap) + len(part) > width:
            break
        line += gap + part
    return line


@contextmanager
def activity(is_told: bool = False) -> Iterator[Activity]:
    """Show a live line during the block. Without a terminal, show nothing, or with is_told a line from time to time."""
    begun = _LINE.begin(is_told)
    try:
        yield begun
    finally:
        _LINE.end(begun)


def track(starts: Sequence[int], total: int, what: str, shown: bool = True) -> Iterator[int]:
    """Iterate over the starts of batches, and show how many of `total` items are done: `generate 64/200`."""
    if not shown:
        yield from starts
        return
    with activity(is_told=True) as now:
        now.show(f"{what} 0/{total}")
        began, first = time.monotonic(), starts[0] if starts else 0
        for start in starts:
            yield start
            done = min(start + (starts[1] - starts[0] if len(starts) > 1 else total), total)
            now.show(f"{what} {done}/{total}", left(began, done - first, total - done))


def left(began: float, done: float, to_do: float) -> str:
    """Return the remaining time, estimated from the time so far: `12 s left`. began: a value of time.monotonic()."""
    return f"{duration((time.monotonic() - began) / max(done, 1) * to_do)} left"


def duration(seconds: float) -> str:
    """Format seconds: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def figure(value: float) -> str:
    """Format a number with four decimals, unless it is very small or large."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.4g}"


def end_live_line() -> None:
    """End the live line, because an error or an interruption is printed next."""
    while _LINE.activities:
        _LINE.end(_LINE.activities[0])


def markdown_text(text: object) -> str:
    """Escape a text for Markdown: it cannot contain a line break, tag, code or link."""
    told = one_line(text)
    for char, escaped in _MARKDOWN.items():
        told = told.replace(char, escaped)
    return told


def markdown_cell(text: object) -> str:
    """Escape a text for a cell of a Markdown table: it cannot start a new column either."""
    return markdown_text(text).replace("|", "\\|")


def markdown_code(text: object) -> str:
    """Return a text as inline code, between more backticks than it has in a row."""
    told = one_line(text)
    runs = [len(run) for run in re.findall("`+", told)]
    if not runs:
        return f"`{told}`"
    marks = "`" * (max(runs) + 1)
    return f"{marks} {told} {marks}"


def fill_descriptors() -> None:
    """Open the null device for standard streams that are closed. Else the next opened file would get their number, and
    output of a library would be written to it."""
    for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def prepare_streams() -> None:
    """Print characters that a terminal's encoding does not have as \\u2013, instead of ending the command."""
    fill_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
