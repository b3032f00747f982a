"""What the other tests here rely on: a page that does what it must not do is noticed."""

import pytest

PAGES = {
    "console": "<script>console.error('bad')</script>",
    "error": "<script>missing.name</script>",
    "dialog": "<script>alert('hi')</script>",
    "window": "<a href='other.html' target='_blank'>text</a><script>document.links[0].click()</script>",
    "request": "<link rel='stylesheet' href='http://127.0.0.1:9/a.css'>",
}


@pytest.mark.parametrize("kind", PAGES)
def test_what_a_page_must_not_do_is_noted(visitor, tmp_path, kind):
    path = tmp_path / "page.html"
    path.write_text(PAGES[kind])
    page = visitor.open(path)
    for _ in range(100):  # a busy machine opens a window late
        if kind in (noted := {problem.partition(":")[0] for problem in visitor.problems}):
            break
        page.wait_for_timeout(50)
    assert kind in noted


def test_a_page_that_does_nothing_else_has_no_problem(open_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<title>quiet</title><script>document.title += ' page'</script>")
    assert open_page(path).title() == "quiet page"
