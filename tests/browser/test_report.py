"""The report in a real browser: what a reader does with it."""

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.synthetic_run import write_run

from semioffline.report.page import write_report

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with 60 outputs each, 45 of them also of the initial checkpoint."""
    folder = tmp_path_factory.mktemp("report")
    runs = [write_run(folder / name, rows=60, before=45, steps=10, seed=n) for n, name in enumerate(("one", "two"))]
    return write_report(runs, folder / "both.html")


@pytest.fixture
def page(open_page: Any, report: Path) -> Any:
    found = open_page(report)
    found.wait_for_selector("html[data-ready]")
    return found


def changes(page: Any) -> list[float | None]:
    """The change of the first metric of each output that is shown."""
    chips = page.locator(".output .chips > span:first-child").all_inner_texts()
    found = [re.search(r"\(([+−±])([\d.e-]+)\)", chip) for chip in chips]
    return [None if each is None else float(each[2]) * (-1 if each[1] == "−" else 1) for each in found]


def test_the_page_is_one_file_and_says_what_happened(page):
    assert page.title().startswith("one, two")
    summary = page.locator("#summary").inner_text()
    assert re.search(r"The mean good rose from 0\.\d+ to 0\.\d+ over 45 held-out inputs", summary)
    assert "rewards computed" in summary  # inputs of all steps times K
    assert "p < 0.05" not in summary
    assert page.locator("nav a").all_inner_texts() == ["Summary", "Outputs", "Tokens", "Curves", "Provenance"]


def test_outputs_are_sorted_by_loss_and_by_gain_and_those_without_a_before_come_last(page):
    worst = changes(page)
    assert worst == sorted(worst)
    page.select_option("[name=order]", "gain")
    best = changes(page)
    assert best == sorted(best, reverse=True)
    assert best[0] > worst[0]
    page.click("#output-more")
    page.click("#output-more")
    assert page.locator(".output").count() == 60
    assert changes(page)[45:] == [None] * 15
    assert "45 of them have an output of the initial checkpoint" in page.inner_text("#output-count")
    page.click("#worst")
    assert changes(page) == worst


def test_the_filter_finds_words_of_inputs_and_outputs(page):
    page.fill("[name=filter]", "INPUT 7:")
    page.locator(".output").nth(1).wait_for(state="detached")
    assert page.locator(".output .prompt").inner_text().startswith("input 7:")
    page.fill("[name=filter]", "no such words")
    page.locator(".output").nth(0).wait_for(state="detached")
    assert page.inner_text("#output-count") == "No output matches this filter."


def test_differences_are_marked_word_by_word(page):
    first = page.locator(".output").first
    before, after = (first.locator(".texts .text").nth(n) for n in (0, 1))
    removed, added = before.locator("del").all_inner_texts(), after.locator("ins").all_inner_texts()
    assert len("".join(removed).split()) <= 1  # one word was replaced, perhaps by itself
    assert added[-1].split()[-1] == "again"
    kept = before.inner_text().split()
    assert [word for word in after.inner_text().split() if word in kept]
    page.select_option("[name=against]", "reference")
    assert page.locator(".output h4").nth(1).inner_text() == "Reference"


def test_a_hard_difference_is_right(page):
    """Removing what is marked on one side and on the other leaves the same text."""
    parts = page.evaluate("diffWords('a b c d e f g', 'a x c d y y f  g h')")
    first = "".join(words for kind, words in parts if kind in " -")
    second = "".join(words for kind, words in parts if kind in " +")
    assert (first, second) == ("a b c d e f g", "a x c d y y f  g h")
    assert {words.strip() for kind, words in parts if kind == " "} >= {"a", "c d"}


@pytest.mark.parametrize("touch", [False, True], ids=["hover", "tap"])
def test_the_token_explorer_shows_what_was_drawn(open_page, report, touch):
    page = open_page(report, width=390 if touch else 1280, touch=touch)
    page.wait_for_selector("html[data-ready]")
    tokens = page.locator(".token")
    for n in range(min(3, tokens.count())):
        token = tokens.nth(n)
        token.scroll_into_view_if_needed()
        token.tap() if touch else token.hover()
        assert token.get_attribute("aria-pressed") == "true"
        word = token.evaluate("each => each.firstChild.textContent")
        told = page.inner_text("#token-detail")
        assert f"Instead of “{word}”" in told
        assert re.search(r"\d of 8", told)
        advantages = page.locator("#token-detail tbody tr td:last-child").all_inner_texts()
        values = [float(text.replace("−", "-").replace("±", "")) for text in advantages]
        assert values == sorted(values, reverse=True)


def test_one_moves_through_training_with_keys(page):
    slider = page.locator("#token-tools [name=step]")
    assert page.inner_text("#step-name") == "step 100"
    prompt = page.inner_text("#token-prompt")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#step-name") == "step 90"
    assert page.inner_text("#token-prompt") != prompt
    page.locator("#step-after").press("Enter")
    assert page.inner_text("#step-name") == "step 100"
    assert page.locator("#step-after").is_disabled()
    page.locator("#input-choice button").nth(2).click()
    assert page.locator("#input-choice button").nth(2).get_attribute("aria-pressed") == "true"
    page.locator(".token").first.focus()
    assert page.locator(".token").first.get_attribute("aria-pressed") == "true"
    assert "8 samples: mean" in page.inner_text("#token-rewards")


def test_runs_are_overlaid_and_can_be_left_out(page):
    page.locator("#curves").scroll_into_view_if_needed()
    chart = page.locator(".chart", has_text="Reward").first
    chart.wait_for()
    labels = chart.locator(".u-label").all_inner_texts()
    assert [label for label in labels if label.startswith("one")]
    assert [label for label in labels if label.startswith("two")]
    page.get_by_role("button", name="two", exact=True).click()
    left = page.locator(".chart", has_text="Reward").first.locator(".u-label").all_inner_texts()
    assert not [label for label in left if label.startswith("two")]
    page.select_option("#curve-x", "seconds")
    assert page.locator(".chart").first.locator(".u-label").first.inner_text().startswith("seconds")


def test_values_are_read_by_hover_and_by_key(page):
    page.locator("#curves").scroll_into_view_if_needed()
    chart = page.locator(".chart").first
    chart.wait_for()
    values = chart.locator(".u-value")
    assert values.first.inner_text() in ("–", "--")
    chart.locator(".u-over").hover()
    assert float(values.first.inner_text()) > 0
    page.mouse.move(0, 0)
    picture = chart.locator("[role=img]")
    picture.focus()
    page.keyboard.press("ArrowRight")
    one = float(values.first.inner_text())
    page.keyboard.press("ArrowRight")
    assert float(values.first.inner_text()) != one
    assert "from" in picture.get_attribute("aria-label")


def test_dark_mode_follows_the_system_and_the_button(open_page, report):
    def back(page: Any) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = open_page(report), open_page(report, dark=True)
    assert back(light) == "rgb(246, 247, 249)"
    assert back(dark) == "rgb(18, 21, 28)"
    for _ in range(2):  # auto, light, dark
        light.click("#theme")
    assert back(light) == back(dark)
    assert light.inner_text("#theme") == "Theme: dark"


def test_a_phone_needs_no_sideways_scrolling_and_every_control_has_a_name(open_page, report):
    page = open_page(report, width=360, touch=True)
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    nameless = """() => [...document.querySelectorAll("button, select, input, [role=img], [role=region]")]
      .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim() || each.closest("label")))
      .map((each) => each.outerHTML)"""
    assert page.evaluate(nameless) == []
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("[...document.querySelectorAll('h1')].length") == 1


def test_it_prints_without_controls_and_with_all_curves(page):
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not page.locator("#output-tools").is_visible()
    assert page.locator(".chart-group .chart").count() > 8
    assert page.locator(".chart-group:not([open])").count() == 0
    assert len(page.pdf()) > 10_000
