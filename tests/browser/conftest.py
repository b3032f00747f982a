"""A real browser for pages that we write. Where there is none, the tests are skipped with that reason."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window. For one module: while it is open, asyncio.run does not work in this process."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)} is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visitor:
    """Opens pages and notes what a page of ours must not do."""

    def __init__(self, browser: Any):
        self.browser = browser
        self.contexts: list[Any] = []
        self.problems: list[str] = []
        """Errors and warnings on the console, errors, dialogs, windows, and requests for anything but the page."""

    def open(self, path: Path, width: int = 1280, dark: bool = False, touch: bool = False, **options: Any) -> Any:
        """A Playwright page with this file. options: of the browser's context."""
        size, scheme = {"width": width, "height": 900}, "dark" if dark else "light"
        context = self.browser.new_context(viewport=size, color_scheme=scheme, has_touch=touch, **options)
        context.set_default_timeout(10_000)
        self.contexts.append(context)
        page, address, note = context.new_page(), path.resolve().as_uri(), self.problems.append
        page.on("console", lambda line: note(f"console: {line.text}") if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(f"error: {error}"))
        page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda window: note(f"window: {window.url}"))
        page.on("request", lambda asked: None if _is_own(asked.url, address) else note(f"request: {asked.url}"))
        page.goto(address)
        return page


def _is_own(url: str, address: str) -> bool:
    """Whether this is the page itself, or something that it has made in memory."""
    return url.partition("#")[0] == address or url.startswith(("blob:", "data:"))


@pytest.fixture
def visitor(browser: Any) -> Iterator[Visitor]:
    made = Visitor(browser)
    yield made
    for context in made.contexts:
        context.close()


@pytest.fixture
def open_page(visitor: Visitor) -> Iterator[Any]:
    """open_page(path, width=1280, dark=False, touch=False, **options) -> a Playwright page. The test fails where a page
    did what it must not do: see `Visitor.problems`."""
    yield visitor.open
    assert visitor.problems == []
