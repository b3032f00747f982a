"""What Markdown pages show, for tests that it works."""

import re

from semioffline.cli import COMMANDS
from semioffline.cli.train import parse_training


def blocks(page: str, kind: str) -> list[str]:
    """The code blocks of a kind: "python", or "" for command lines."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == kind]


def check_commands(page: str) -> None:
    """Every command line has a known command, and known flags where it trains."""
    lines = [line for block in blocks(page, "") for line in block.replace("\\\n", " ").splitlines()]
    lines = [line.split() for line in lines if line.startswith("semioffline ")]
    assert len(lines) >= 4
    for _, command, *words in lines:
        assert command in COMMANDS
        if command == "train":
            parse_training(words[0], [*words[1:], "--device", "cpu"])
