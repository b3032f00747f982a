"""Results of blind ratings, with values computed by hand."""

import json
from pathlib import Path

import pytest

from semioffline.cli import main
from semioffline.errors import UserError
from semioffline.report.rated import collect, read_ratings
from semioffline.report.rating import Item, Key, System

SYSTEMS = [System("a", ""), System("b", "")]


def key_of(protocol: str, *orders: list[int]) -> Key:
    items = [Item(f"input {n}", order) for n, order in enumerate(orders)]
    return Key("id", protocol, ["overall" if protocol == "overall" else "preference"], SYSTEMS, items)


def export(path: Path, rater: str, criterion: str, *answers: tuple[int, int | None, int], page: str = "id") -> Path:
    ratings = [
        {"item": item, "output": output, "criterion": criterion, "score": score} for item, output, score in answers
    ]
    path.write_text(json.dumps({"id": page, "rater": rater, "ratings": ratings}))
    return path


def test_means_wins_and_agreement_follow_the_key(tmp_path):
    key = key_of("overall", [0, 1], [1, 0])  # in the second item, the first output is b's
    one = export(tmp_path / "1.json", "x", "overall", (0, 0, -1), (0, 1, 1), (1, 0, 1), (1, 1, -1))
    other = export(tmp_path / "2.json", "y", "overall", (0, 0, -1), (0, 1, 1), (1, 0, 1), (1, 1, -1))
    table = collect(key, [one, other])
    assert {score.system: score.mean for score in table.scores} == {"a": -1, "b": 1}
    [win] = table.wins
    assert (win.system, win.wins, win.ties, win.losses, win.rate) == ("a", 0, 0, 4, 0.0)
    assert table.agreement[0].alpha == 1
    assert (table.raters, table.inputs, table.ratings) == (["x", "y"], 2, 8)


def test_preferences_count_ties_half_and_disagreement_is_below_chance(tmp_path):
    key = key_of("pairwise", [0, 1], [1, 0], [0, 1])
    one = export(tmp_path / "1.json", "x", "preference", (0, None, 1), (1, None, 1), (2, None, 0))
    table = collect(key, [one])
    [win] = table.wins
    assert (win.wins, win.ties, win.losses) == (1, 1, 1)  # the second output is b, then a
    assert win.rate == pytest.approx(0.5)
    other = export(tmp_path / "2.json", "y", "preference", (0, None, -1), (1, None, -1), (2, None, 1))
    assert collect(key, [one, other]).agreement[0].alpha < 0


def test_alpha_is_that_of_the_literature(tmp_path):
    """Interval data of two raters: alpha = 1 - observed / expected squared difference."""
    key = key_of("overall", [0], [0], [0], [0])
    values = {"x": (-1, 0, 1, 1), "y": (-1, 1, 1, 0)}
    files = [
        export(tmp_path / f"{rater}.json", rater, "overall", *((n, 0, score) for n, score in enumerate(scores)))
        for rater, scores in values.items()
    ]
    every = [score for scores in values.values() for score in scores]
    observed = sum((a - b) ** 2 for a, b in zip(*values.values(), strict=True)) / 4
    expected = sum((a - b) ** 2 for n, a in enumerate(every) for m, b in enumerate(every) if n != m) / (8 * 7)
    assert collect(key, files).agreement[0].alpha == pytest.approx(1 - observed / expected)


@pytest.mark.parametrize(
    ("answer", "page"),
    [((0, 2, 1), "id"), ((9, 0, 1), "id"), ((0, 0, 5), "id"), ((0, None, 1), "id"), ((0, 0, 1), "another")],
    ids=["output", "item", "score", "no output", "page"],
)
def test_answers_that_the_page_cannot_give_are_rejected(tmp_path, answer, page):
    path = export(tmp_path / "bad.json", "x", "overall", answer, page=page)
    with pytest.raises(UserError, match=r"bad\.json"):
        collect(key_of("overall", [0, 1]), [path])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"ratings": 1}'])
def test_what_is_no_file_of_ratings_is_told_in_a_line(tmp_path, content, capsys):
    (tmp_path / "key.json").write_text(json.dumps(key_of("overall", [0, 1]).to_json()))
    (tmp_path / "bad.json").write_text(content)
    assert main(["rate", "--read", str(tmp_path / "bad.json")]) == 2
    assert "is not a file of ratings" in capsys.readouterr().err
    assert read_ratings(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no runs given"),
        (["missing"], "there is no run folder"),
        (["--read", "nothing.json"], "there is no key.json"),
        (["run", "--read", "a.json"], "takes rating files only, no run folders"),
        (["run", "--protocol", "stars"], "protocol"),
    ],
)
def test_wrong_words_are_told(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["rate", *words]) == 2
    assert told in capsys.readouterr().err
