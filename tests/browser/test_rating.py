"""Blind rating in a real browser: by keys, exported, read back, and shown in the report."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.synthetic_run import write_run

from semioffline.cli import main

pytestmark = pytest.mark.xdist_group("browser")


def prepare(folder: Path, *flags: str) -> tuple[Path, dict[str, Any]]:
    """A rating page of two runs, and its key. The second run wrote "good" in front of everything."""
    write_run(folder / "first", rows=12, before=0, steps=2, prompt_words=4, output_words=4)
    write_run(folder / "second", rows=12, before=0, steps=2, prompt_words=4, output_words=4)
    path = folder / "second" / "predictions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"prediction": f"good {row['prediction']}"}) + "\n" for row in rows))
    names = [str(folder / "first"), str(folder / "second")]
    assert main(["rate", *names, "--inputs", "6", "--output_dir", str(folder / "rate"), *flags]) == 0
    return folder / "rate" / "rate.html", json.loads((folder / "rate" / "key.json").read_text())


def rate(page: Any, count: int, choose: Any) -> None:
    """Answer by keys: choose(text of the output that is asked about, or of all) -> key."""
    for _ in range(count):
        now = page.locator("fieldset.now")
        card = now.locator("xpath=ancestor::section[1]")
        texts = card.locator(".text") if card.count() else page.locator(".outputs .text")
        page.keyboard.press(choose(texts.all_inner_texts()))


def export(page: Any, name: str, folder: Path) -> Path:
    page.fill("#rater", name)
    with page.expect_download() as waiting:
        page.click("#export")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_scores_by_keys_are_exported_and_read_back_into_the_report(open_page, tmp_path, capsys):
    path, _ = prepare(tmp_path)
    assert main(["report", str(tmp_path / "second")]) == 0
    files = []
    for rater, careful in (("ann", True), ("bo b", False)):
        page = open_page(path, accept_downloads=True)
        page.wait_for_selector("html[data-ready]")
        rate(page, 12, lambda texts, careful=careful: "3" if texts[0].startswith("good") else "1" if careful else "2")
        assert page.inner_text("#place") == "6 of 6; 6 rated"
        files.append(export(page, rater, tmp_path / "rate"))
    assert [file.name for file in files] == ["ratings-ann.json", "ratings-bo_b.json"]
    capsys.readouterr()
    assert main(["rate", "--read", *map(str, files)]) == 0
    told = capsys.readouterr().out
    assert "2 raters gave 24 ratings for 6 inputs" in told
    [table] = json.loads((tmp_path / "second" / "ratings.json").read_text())["tables"]
    means = {score["system"]: score["mean"] for score in table["scores"]}
    assert means == {"first": -0.5, "second": 1.0}
    assert (table["wins"][0]["losses"], table["wins"][0]["rate"]) == (12, 0.0)  # of the first against the second
    assert 0 < table["agreement"][0]["alpha"] < 1
    page = open_page(tmp_path / "second" / "report.html")
    assert "without knowing which model wrote what" in page.inner_text("#ratings")


def test_preferences_and_criteria(open_page, tmp_path):
    path, _ = prepare(tmp_path, "--protocol", "pairwise")
    page = open_page(path, accept_downloads=True)
    page.wait_for_selector("html[data-ready]")
    rate(page, 6, lambda texts: "1" if texts[0].startswith("good") else "3")
    file = export(page, "", tmp_path / "rate")
    assert main(["rate", "--read", str(file)]) == 0
    [table] = json.loads((tmp_path / "first" / "ratings.json").read_text())["tables"]
    assert (table["wins"][0]["wins"], table["wins"][0]["losses"]) == (0, 6)
    assert table["agreement"] == [{"criterion": "preference", "alpha": None}]

    other, _ = prepare(tmp_path / "b", "--protocol", "criteria", "--criteria", "grammar", "facts right")
    page = open_page(other, accept_downloads=True)
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    rate(page, 4, lambda texts: "2")
    assert page.inner_text("#place") == "2 of 6; 1 rated"
    ratings = json.loads(export(page, "c", tmp_path).read_text())["ratings"]
    assert sorted({rating["criterion"] for rating in ratings}) == ["facts right", "grammar"]


def test_answers_stay_in_the_browser_until_they_are_exported(open_page, tmp_path):
    path, _ = prepare(tmp_path)
    page = open_page(path)
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("3")
    page.keyboard.press("1")
    assert page.inner_text("#place") == "2 of 6; 1 rated"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text("#place") == "2 of 6; 1 rated"
    page.click("#back")
    assert page.locator("[aria-pressed=true]").all_inner_texts() == ["1 good", "−1 bad"]


def test_the_page_does_not_contain_the_key(tmp_path):
    """Neither names nor an order that repeats: another page of the same runs has another one."""
    path, key = prepare(tmp_path)
    text = path.read_text()
    assert key["id"] in text
    for name in ("first", "second", str(tmp_path)):
        assert name not in text.split('id="data">')[1].split("</script>")[0].replace("input ", "")
    orders = {tuple(item["systems"]) for item in key["items"]}
    more = [prepare(tmp_path / str(n))[1]["items"] for n in range(3)]
    orders |= {tuple(item["systems"]) for items in more for item in items}
    assert orders == {(0, 1), (1, 0)}
