"""What users and data wrote is printed as it is: it is no markup, and it does nothing to a terminal or a page."""

import ast
import logging
from pathlib import Path

import pytest

import semioffline
from semioffline import printing
from semioffline.cli import main
from semioffline.evaluation.results import MetricResult
from semioffline.experiments.results import Comparison
from semioffline.printing import markdown_cell, markdown_code, markdown_text, one_line, plain, say, show_table
from semioffline.report import plots, table

PACKAGE = Path(semioffline.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "printing.py"]
HOSTILE = ["[/b]", "[bold]x[/bold]", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb"]
HOSTILE += ["\u202egnp.exe", "\x9b31m", "\ud800"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_texts_are_shown_and_do_nothing(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(text)
    show_table(text, [text, "n"], [[text, "1"]], width=100, note=text)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\r", "\u202e", "\x9b", "\ud800"} & set(out)
    shown = one_line(text)
    assert out.startswith(plain(text) + "\n")
    assert out.removeprefix(plain(text)).count(shown) == 4
    assert ("[" in text) == ("[" in shown)


def test_a_terminal_breaks_long_lines_between_words(capsys, monkeypatch) -> None:
    line = "  rows      " + "train 350, " * 9
    say(line, margin=12)
    assert capsys.readouterr().out == line + "\n"  # a pipe gets it whole
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    say(line, margin=12)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "  rows      train 350, train 350, train 350, train"
    assert all(len(one) <= 50 and one.startswith(" " * 12) and one[12] != " " for one in shown[1:])
    assert " ".join(" ".join(shown).split()) == " ".join(line.split())


def test_texts_in_all_languages_stay_as_they_are() -> None:
    text = "Größe – 漢字 עברית नमस्ते می‌خواهم 👩‍🔬 a\tb\nc"
    assert plain(text) == text


def test_a_cell_in_markdown_stays_one_cell() -> None:
    assert markdown_cell("a|b\nc") == "a\\|b c"
    assert markdown_cell("<script>alert(1)</script>") == "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert markdown_text("[x](javascript:y) `z`") == "[x]\\(javascript:y) \\`z\\`"
    assert markdown_code("a`b\nc") == "`` a`b c ``"
    assert markdown_cell("semi_offline@K-8 0.51* (0.4–0.6)") == "semi_offline@K-8 0.51* (0.4–0.6)"


def comparison(name: str) -> Comparison:
    """Of one method, with a hostile name everywhere that a name goes."""
    metric = {"mean": 1.0, "low": 0.0, "high": 2.0, "p": None}
    result: dict[str, object] = {
        "metrics": {name: metric},
        "seeds": [0],
        "forward_passes": 1.0,
        "steps": 1,
        "seconds": None,
        "peak_mb": None,
    }
    result |= {"curve": [{"reward": 1.0, "forward_passes": 1.0, "seconds": 0.0}] * 2, "matched_after": None}
    methods = {name: result}
    made = {"metrics": [name], "percent": {name: False}, "reference": name, "methods": methods, "title": name}
    about = {"command": name, "commit": "0", "versions": {}}
    return Comparison.from_json(made | {"wall_seconds": 0.0, "about": about})


@pytest.mark.parametrize("name", [*HOSTILE[:-1], "$\\frac{", "_x", "a|b\n<script>"], ids=ascii)
def test_a_comparison_with_a_hostile_name_is_written_printed_and_drawn(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = comparison(name)
    lines = table.markdown(found).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines[:3]}) == 1
    assert "<script>" not in "".join(lines)
    table.show(found)
    assert "\x1b" not in capsys.readouterr().out
    assert plots.draw(found, tmp_path)


def test_hostile_names_of_metrics_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from semioffline.cli.run_folder import print_metrics

    print_metrics("[/b] test", {"[/b]": MetricResult(1.0, 0.0, 2.0, 3, "")})
    assert capsys.readouterr().out.count("[/b]") == 2


def test_errors_and_warnings_have_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "\x1b[31m[/b]"]) == 2
    err = capsys.readouterr().err
    assert "unknown method '\\x1b[31m[/b]'" in err
    assert logging.lastResort is not None
    record = logging.LogRecord("x", logging.WARNING, "", 0, "of '%s'", ("\x1b[31m",), None)
    assert logging.lastResort.format(record) == "of '\\x1b[31m'"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_printed_but_by_the_functions_of_printing(path: Path) -> None:
    """What users and data wrote reaches a terminal in no other way. Text files name their encoding, which else depends
    on the machine."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not [name for name in names if name.split(".")[0] == "rich"], f"line {node.lineno}: rich"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.stdout.write", "sys.stderr.write", "tqdm.write"), f"line {node.lineno}"
            if called.endswith((".read_text", ".write_text")) or called == "open":
                binary = any(isinstance(arg, ast.Constant) and "b" in str(arg.value) for arg in node.args[1:2])
                encoding = any(keyword.arg == "encoding" for keyword in node.keywords)
                assert binary or encoding, f"line {node.lineno}: {ast.unparse(node)} without an encoding"
