"""Everything that the commands print. Texts of users and data reach the terminal and Markdown through here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = {"\\": "\\\\", "&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "\\`", "](": "]\\("}


def plain(text: object) -> str:
    """A text without what acts on a terminal: control characters (escape sequences begin with one) and marks that turn
    the direction of writing are shown as \\x1b or \\u202e. Tabs and ends of lines stay."""
    return _ACTIVE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """A plain text with all white space in it made one space."""
    return plain(" ".join(str(text).split()))


def say(text: object = "", error: bool = False) -> None:
    """Print a text as it is: no markup is read in it, and nothing in it acts on the terminal."""
    stream = sys.stderr if error else sys.stdout
    with _naming(stream):
        print(plain(text), file=stream, flush=True)


@contextmanager
def _naming(stream: object) -> Iterator[None]:
    """An error says which stream could not be written, as others say which file."""
    try:
        yield
    except OSError as problem:
        problem.filename = getattr(stream, "name", "<output>")
        raise


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0, note: str = ""
) -> None:
    """Print a table: the first column left, the others right. width: at least this many characters; note: below it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table: Any = Table(title=Text(one_line(title)), caption=Text(one_line(note)) if note else None)
    for n, name in enumerate(columns):
        table.add_column(Text(one_line(name)), justify="right" if n else "left")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(highlight=False)
    console.width = max(width, console.width)
    with _naming(sys.stdout):
        console.print(table)


def markdown_text(text: object) -> str:
    """A text in Markdown: no line, tag, code or link of its own."""
    told = one_line(text)
    for char, escaped in _MARKDOWN.items():
        told = told.replace(char, escaped)
    return told


def markdown_cell(text: object) -> str:
    """A text as a cell of a Markdown table: no column of its own either."""
    return markdown_text(text).replace("|", "\\|")


def markdown_code(text: object) -> str:
    """A text as inline code, between more backticks than it has in a row."""
    told = one_line(text)
    runs = [len(run) for run in re.findall("`+", told)]
    if not runs:
        return f"`{told}`"
    marks = "`" * (max(runs) + 1)
    return f"{marks} {told} {marks}"


def fill_descriptors() -> None:
    """Give standard streams that are closed to the null device: else the next file that is opened takes the number, and
    what a library prints lands in it."""
    for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)


def prepare_streams() -> None:
    """Characters that a terminal's encoding does not have are printed as \\u2013 instead of ending the command."""
    fill_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
