"""Results as dataclasses: what a JSON file says, no more and no less."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from semioffline.experiments.results import Comparison
from semioffline.storage.records import Record

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@dataclass(frozen=True)
class Inner(Record):
    value: float
    note: str = ""


@dataclass(frozen=True)
class Outer(Record):
    name: str
    one: Inner
    some: list[Inner] = field(default_factory=list)
    by_name: dict[str, Inner] = field(default_factory=dict)
    maybe: Inner | None = None
    plain: dict[str, list[float]] | None = None


def test_records_inside_records_are_read_and_written():
    found = {
        "name": "x",
        "one": {"value": 1.0, "note": "a"},
        "some": [{"value": 2.0, "note": ""}],
        "by_name": {"b": {"value": 3.0, "note": ""}},
        "maybe": {"value": 4.0, "note": ""},
        "plain": {"c": [1.0, 2.0]},
    }
    outer = Outer.from_json(found)
    assert outer.some == [Inner(2.0)]
    assert outer.by_name["b"] == Inner(3.0)
    assert outer.maybe == Inner(4.0)
    assert outer.to_json() == found
    assert list(outer.to_json()) == list(found)


def test_what_a_file_lacks_has_its_default_and_what_is_unknown_is_left_out():
    outer = Outer.from_json({"name": "x", "one": {"value": 1.0, "later": 5}, "maybe": None})
    assert outer == Outer("x", Inner(1.0))
    with pytest.raises(TypeError, match="name"):
        Outer.from_json({"one": {"value": 1.0}})


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"one": {"value": "x"}}, "value='x' must be a number"),
        ({"one": {"value": True}}, "value=True must be a number"),
        ({"one": 1}, "one=1 must be a map"),
        ({"one": None}, "one=None must be a map"),
        ({"name": None}, "name=None must be text"),
        ({"some": {}}, "some={} must be a list"),
        ({"some": [1]}, "some=1 must be a map"),
        ({"by_name": {"b": []}}, r"by_name.b=\[\] must be a map"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_its_field(found, problem):
    with pytest.raises(TypeError, match=problem):
        Outer.from_json({"name": "x", "one": {"value": 1.0}} | found)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_comparisons_of_all_versions_are_read_and_written_as_they_are(path):
    found = json.loads(path.read_text())
    if found["kind"] != "comparison":
        return
    defaults = {"missing": [], "beside": {}, "own_settings": {}, "preparation": {}}
    for method in found["methods"].values():
        method.setdefault("p_by_method", {})
    assert Comparison.from_json(found).to_json() == defaults | found
