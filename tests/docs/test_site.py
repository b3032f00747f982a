"""The documentation site: its nav, its pictures, its API reference, and what a browser shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import semioffline
from benchmarks import pictures, site

ROOT = Path(__file__).parents[2]


def nav() -> list[str]:
    """The pages that mkdocs.yml names."""
    from mkdocs.config import load_config

    def targets(entries):
        for entry in entries:
            target = next(iter(entry.values())) if isinstance(entry, dict) else entry
            yield from targets(target) if isinstance(target, list) else [target]

    return list(targets(load_config(str(ROOT / "mkdocs.yml"))["nav"]))


def test_the_nav_names_every_page():
    exist = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    named = nav()
    assert sorted(set(named)) == sorted(named)
    assert exist - set(named) == set()
    assert set(named) - exist - set(site.SOURCES) == set()


@pytest.mark.parametrize(
    ("link", "page", "source", "wanted"),
    [
        ("[a](../CONTRIBUTING.md#b)", "tasks.md", "docs/tasks.md", "[a](project/contributing.md#b)"),
        ("[a](../../examples/start.py)", "methods/ft.md", "docs/methods/ft.md", "[a](../examples/start.md)"),
        ("[a](docs/methods/ft.md)", "project/contributing.md", "CONTRIBUTING.md", "[a](../methods/ft.md)"),
        ("[a](ft.md#b)", "methods/mft.md", "docs/methods/mft.md", "[a](ft.md#b)"),
        ("[a](#b)", "methods/mft.md", "docs/methods/mft.md", "[a](#b)"),
        ("[a](https://arxiv.org/x.md)", "index.md", "docs/index.md", "[a](https://arxiv.org/x.md)"),
    ],
)
def test_links_follow_the_pages(link, page, source, wanted):
    assert site.rewrite_links(link, page, source) == wanted


@pytest.mark.parametrize("name", pictures.pictures())
def test_the_pictures_are_what_the_results_give(name):
    assert (pictures.ASSETS / name).read_text() == pictures.pictures()[name], "run `make tables`"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_reference_has_every_public_name(built):
    page = (built / "api.html").read_text()
    names = [name for name in semioffline.__all__ if name != "__version__"]
    assert [name for name in names if f'id="semioffline.{name}"' not in page] == []
    assert "p_m, the share of the static target" in page  # the help of a setting is its documentation


def test_formulas_need_no_script(built):
    page = (built / "methods" / "semi_offline.html").read_text()
    assert page.count("<math") > 5
    assert "arithmatex" not in page


def test_nothing_is_loaded_from_another_host(built):
    """No fonts, scripts, styles or pictures."""
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?(?:https?:)?//', flags=re.IGNORECASE)
    found = [path.name for path in built.rglob("*.html") if loads.search(path.read_text())]
    styles = re.compile(r"url\([\"']?(?:https?:)?//")
    found += [path.name for path in built.rglob("*.css") if styles.search(path.read_text())]
    assert found == []
