"""Texts of users are shown as text, wherever they are on a page, in the terminal and in Markdown; none is run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.synthetic_run import write_run

from browser.conftest import Visitor
from browser.hostile import HOSTILE, LONG
from report.comparisons import comparison_of
from semioffline.printing import plain
from semioffline.report import table
from semioffline.report.page import write_report
from semioffline.report.rating import write_rating_page

pytestmark = pytest.mark.xdist_group("browser")
TEXTS = [*HOSTILE, LONG]
IDS = [f"{n:02}" for n in range(len(TEXTS))]
SHOWN = """() => {
  const copy = document.body.cloneNode(true);
  copy.querySelectorAll("script, style").forEach((each) => each.remove());
  return copy.textContent;
}"""
EVERY_MORE = """() => { for (let n = 0; n < 50 && !document.getElementById("output-more").hidden; n += 1)
  document.getElementById("output-more").click(); }"""


def hostile_folder(folder: Path) -> Path:
    """A run whose texts, metrics, tokens, settings and command are all hostile."""
    texts = iter(TEXTS * 1000)
    write_run(folder, rows=80, before=80, steps=2, output_words=3, change=lambda text: f"{text} {next(texts)}")
    for name in ("before.jsonl", "predictions.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        rows = [row | dict.fromkeys(HOSTILE, 0.5) for row in rows]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = {"command": " ; ".join(HOSTILE), "commit": HOSTILE[0], "versions": {HOSTILE[1]: HOSTILE[2]}}
    settings = dict(zip(HOSTILE, reversed(HOSTILE), strict=True))
    data = {HOSTILE[3]: {"rows": 1, "digest": HOSTILE[4]}}
    (folder / "about.json").write_text(json.dumps({"about": about, "settings": settings, "data": data}))
    log = [{"step": n, "loss": 0.1 * n} | {text: float(n) for text in HOSTILE} for n in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    return folder


@pytest.fixture(scope="module")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What each page shows, after everything on it was opened, hovered and clicked; and what it must not have done."""
    folder = tmp_path_factory.mktemp("hostile")
    run = hostile_folder(folder / "<img src=x onerror=window.hacked=1>")
    others = folder / "comparison"
    (others / "runs" / "start-seed0").mkdir(parents=True)
    (others / "comparison.json").write_text(json.dumps(comparison_of(HOSTILE).to_json()))
    (others / "runs" / "start-seed0" / "result.json").write_text("{}")
    write_rating_page([run], folder, "criteria", ["grammar"], 80)
    files = {"report": write_report([run]), "comparison": write_report([others]), "rating": folder / "rate.html"}
    visitor, shown = Visitor(browser), {}
    for name, path in files.items():
        page = visitor.open(path)
        page.wait_for_selector("html[data-ready]")
        shown[name] = page.evaluate(SHOWN)
        if name == "report":
            page.evaluate(EVERY_MORE)
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
            page.evaluate("document.querySelectorAll('.token').forEach((each) => each.focus())")
            shown[name] += page.evaluate(SHOWN)
        if name == "rating":
            for _ in range(80):
                page.keyboard.press("ArrowRight")
                shown[name] += page.evaluate(SHOWN)
        assert page.evaluate("window.hacked") is None, f"{name}: a text was run"
        assert page.evaluate("getComputedStyle(document.body).display") != "none"
    yield {"shown": shown, "problems": visitor.problems}
    for context in visitor.contexts:
        context.close()


@pytest.mark.parametrize("text", TEXTS, ids=IDS)
@pytest.mark.parametrize("page", ["report", "rating"])
def test_a_page_shows_the_text_as_it_is(pages, page, text):
    assert plain(text) in pages["shown"][page]


@pytest.mark.parametrize("text", HOSTILE, ids=IDS[:-1])
def test_names_of_methods_are_shown_as_they_are(pages, text):
    assert plain(text) in pages["shown"]["comparison"]


def test_no_page_did_anything_else(pages):
    assert pages["problems"] == []


@pytest.mark.parametrize("text", HOSTILE, ids=IDS[:-1])
def test_tables_of_the_terminal_and_of_markdown_are_not_changed_by_names(text, capsys):
    comparison = comparison_of([text, "plain"])
    table.show(comparison)
    assert not set(capsys.readouterr().out) & set("\x1b\x00\x07\u202e\u200f\u2028")
    written = table.markdown(comparison)
    lines = written.splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines[:4]}) == 1  # no column of its own
    assert "<" not in written.replace("p < 0.05", "")
    assert "](" not in written
    assert "\x1b" not in written
