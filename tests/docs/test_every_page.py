"""Links, anchors, commands, code and length of every page."""

import re
from pathlib import Path

import pytest

from pages import anchors_of, blocks, check_commands, command_lines, links_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
MOST_LINES = 250
"""Of a page, without its generated tables."""
GENERATED = re.compile(r"<!-- table: \S+ -->\n.*?<!-- end -->", flags=re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    """To a file of the repository and, where one is named, to a heading of that page, as code hosts number them."""
    broken = []
    for target in links_of(path.read_text()):
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        if not file.exists() or (anchor and anchor not in anchors_of(file.read_text())):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_parse(path):
    if command_lines(path.read_text()):
        check_commands(path.read_text(), least=1)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_code_is_python(path):
    for code in blocks(path.read_text(), "python"):
        compile(code, str(path), "exec")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_is_short(path):
    if path.name not in ("CHANGELOG.md", "CONTRIBUTING.md"):
        assert len(GENERATED.sub("", path.read_text()).splitlines()) <= MOST_LINES


def test_the_guards_see_what_is_wrong():
    """A guard of the tests above."""
    page = "# A `b`: c_d\n\n## A `b`: c_d\n\n```\n# no heading\n[no](link.md)\n```\n"
    page += "[one](two.md#three) ![four](five.svg)\n"
    assert anchors_of(page) == {"a-b-c_d", "a-b-c_d-1"}
    assert links_of(page) == ["two.md#three", "five.svg"]
    [line] = command_lines("```\nsemioffline train mft \\\n    --seed 1\n```\n")
    assert line.split() == ["semioffline", "train", "mft", "--seed", "1"]
    with pytest.raises(AssertionError):
        check_commands("```\nsemioffline trian mft\n```\n", least=1)
