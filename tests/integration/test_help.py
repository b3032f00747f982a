"""`--help` answers from help.json, without importing torch or Transformers, and says what the code says."""

import json
import subprocess
import sys

import pytest
from benchmarks.help_lines import all_help

from semioffline import printing
from semioffline.cli import COMMANDS, help, main

IMPORTED = """
import contextlib, sys
from semioffline.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print("imported:", *sorted({"torch", "transformers", "datasets", "numpy", "rich"} & set(sys.modules)))
"""


def test_the_file_has_what_the_commands_read():
    assert json.loads(help.KNOWN.read_text()) == json.loads(json.dumps(all_help())), "run: make tables"


@pytest.mark.parametrize("argv", [["train", "--help"], ["train", "gold", "--help-all"], ["run", "-h"], ["--help"]])
def test_nothing_slow_is_imported(argv):
    done = subprocess.run([sys.executable, "-c", IMPORTED, *argv], capture_output=True, text=True, check=True)
    assert "usage: semioffline" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "recipes"])
def test_another_version_of_transformers_is_asked_itself(command, monkeypatch, capsys):
    argv = [command, "ft", "--help-all"] if command == "train" else [command, "--help-all"]
    with pytest.raises(SystemExit):
        main(argv)
    known = capsys.readouterr().out
    monkeypatch.setattr(help, "transformers_version", lambda: "5.99")
    with pytest.raises(SystemExit):
        main(argv)
    assert capsys.readouterr().out == known


def test_a_terminal_breaks_lines_beside_the_flags(monkeypatch, capsys):
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    [at] = [n for n, line in enumerate(lines) if line.startswith("  --max_prompt_length ")]
    first = lines[at].index("Longest")
    assert lines[at + 1][:first].isspace()
    assert not lines[at + 1][first].isspace()
