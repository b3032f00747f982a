"""Write src/semioffline/cli/help.json: the settings of every command, so that `--help` imports nothing slow.

python -m benchmarks.help_lines
"""

from __future__ import annotations

import json
from contextlib import suppress
from unittest.mock import patch

from semioffline.cli import COMMANDS, command
from semioffline.cli.help import KNOWN, HelpLine, transformers_version
from semioffline.methods.shared.registry import method_names

WITHOUT_SETTINGS = {"recipes"}


def all_help() -> dict[str, object]:
    """transformers: the version; lines: every line that is different; commands: usage and the numbers of its lines."""
    numbers: dict[HelpLine, int] = {}
    commands: dict[str, object] = {}
    asked = [[name] for name in COMMANDS if name not in WITHOUT_SETTINGS | {"train"}]
    for words in asked + [["train", name] for name in method_names()]:
        usage, lines = _lines_of_command(words)
        found = [numbers.setdefault(line, len(numbers)) for line in lines]
        commands[" ".join(words)] = {"usage": usage, "lines": found}
    return {"transformers": transformers_version(), "lines": list(map(list, numbers)), "commands": commands}


def _lines_of_command(words: list[str]) -> tuple[str, list[HelpLine]]:
    with patch("semioffline.cli.options.print_help") as shown, suppress(SystemExit):
        command(words[0])([*words[1:], "--help"])
    usage, lines = shown.call_args.args
    return usage, lines


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(all_help(), indent=None, separators=(",", ":")).replace('],["', '],\n["') + "\n")
    print(f"{KNOWN}: {KNOWN.stat().st_size:,} bytes")
