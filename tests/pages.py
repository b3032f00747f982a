"""What Markdown pages show, for tests that it works."""

import importlib
import re
import shlex
from collections import Counter
from typing import Any

import pytest

from semioffline.cli import COMMANDS
from semioffline.cli.train import parse_training

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
WITHOUT_FLAGS = {"env", "recipes"}


def blocks(page: str, kind: str) -> list[str]:
    """The code blocks of a kind: "python", or "" for command lines."""
    return [text for name, text in FENCE.findall(page) if name == kind]


def prose(page: str) -> str:
    """The page without code."""
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", page))


def links_of(page: str) -> list[str]:
    """Targets of links and pictures inside the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]


def anchors_of(page: str) -> set[str]:
    """Names of the headings, as code hosts make them."""
    found: Counter[str] = Counter()
    anchors = set()
    for title in re.findall(r"^#+ (.*)$", FENCE.sub("", page), flags=re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
        anchors.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return anchors


def command_lines(page: str) -> list[str]:
    """The commands of this library, each in one line; those in an unclosed quotation go on in the next."""
    lines: list[str] = []
    for block in blocks(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            if lines and lines[-1].startswith("semioffline ") and lines[-1].count("'") % 2:
                lines[-1] += f" {line}"
            else:
                lines.append(line)
    return [line for line in lines if line.startswith("semioffline ") and "error:" not in line]


def check_commands(page: str, least: int = 4) -> None:
    """Every command line is read by the parser of its command, without an error."""
    lines = command_lines(page)
    assert len(lines) >= least
    for line in lines:
        _, command, *words = shlex.split(line, comments=True)
        assert command in COMMANDS, line
        if command == "train" and "--help" not in words:
            parse_training(words[0], [*words[1:], "--device", "cpu"])
        elif command not in WITHOUT_FLAGS and "--help" not in words:
            _parse(command, words)


class _Parsed(Exception):
    """The flags were read, and nothing was done."""


def _parse(command: str, words: list[str]) -> None:
    """Run a command until it has read its flags."""
    module = importlib.import_module(f"semioffline.cli.{command}")
    reader = next(name for name in ("read_command", "parse_job", "parse") if hasattr(module, name))
    read = getattr(module, reader)

    def stop(*args: Any, **kwargs: Any) -> Any:
        read(*args, **kwargs)
        raise _Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, reader, stop)
        with pytest.raises(_Parsed):
            module.run(words)
