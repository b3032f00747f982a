"""Exact match."""

import pytest

from semioffline.errors import UserError
from semioffline.rewards.exact import ExactMatch


@pytest.mark.parametrize(
    ("completion", "references", "value"),
    [
        ("Paris", ["paris"], 1),
        ("  the\tcity of\nPARIS ", ["The city of Paris"], 1),
        ("Paris.", ["Paris"], 0),
        ("the Paris", ["Paris"], 0),
        ("STRASSE", ["Straße"], 1),
        ("Paris", ["Rome", "Paris"], 1),
        ("Paris", ["Rome", "Oslo"], 0),
        ("", ["Paris"], 0),
        ("", [" "], 1),
    ],
)
def test_case_and_white_space_do_not_count(completion, references, value):
    assert ExactMatch()(completions=[completion], references=[references], prompts=["x"]) == [value]


def test_references_are_needed():
    with pytest.raises(UserError, match=r"references\[0\]"):
        ExactMatch()(completions=["a"], references=[[]])
