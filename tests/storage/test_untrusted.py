"""What other people wrote: names, JSON and YAML are checked before anything is made of them."""

import time

import pytest

from semioffline.errors import UserError
from semioffline.storage.untrusted import check_name, parse_json, parse_yaml


@pytest.mark.parametrize(
    "name", ["mft", "semi_offline@mask-0.2", "brio+semi_offline", "<lambda>", "my model", "größe", "漢" * 60, "a" * 100]
)
def test_a_name_that_can_be_a_file_is_taken(name: str) -> None:
    assert check_name("label", name) == name


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("../x", "none of /"),
        ("a/b", "none of /"),
        ("a\\b", "none of /"),
        ("C:", "none of /"),
        ("a\nb", "printable"),
        ("a\x1b[31mb", "printable"),
        ("a\0b", "printable"),
        ("a\u202eb", "printable"),
        ("\ud800", "printable"),
        ("..", "dot"),
        (".hidden", "dot"),
        ("end.", "dot"),
        (" a", "space"),
        ("a" * 101, "101 characters, but at most 100"),
        ("漢" * 90, "270 bytes in UTF-8, but at most 200"),
    ],
)
def test_a_name_that_cannot_be_a_file_is_refused(name: str, part: str) -> None:
    with pytest.raises(UserError, match=r"the label .*choose another name") as refused:
        check_name("label", name)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ('{"x": [{"a": 1, "b": 2, "a": 3}]}', "the key 'a' occurs twice"),
        ("[" * 100_000, "nested"),
        ("9" * 5000, "thousands of digits"),
        ('"\\ud83d"', "\\ud83d is half of a character"),
        ('{"\\udfff": 1}', "half of a character"),
        ("{'a': 1}", "double quotes"),
    ],
)
def test_json_that_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_json(text)
    assert part in str(refused.value)


def test_json_that_is_taken() -> None:
    assert parse_json('{"a": ["\\ud83d\\ude00", "\\\\ud83d", null, 1.5]}') == {"a": ["😀", "\\ud83d", None, 1.5]}


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{', '.join([f'*{chr(97 + n)}'] * 9)}]}}\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (LAUGHS, "what its aliases stand for"),
        (MERGES, "what its aliases stand for"),
        ("a: &a [*a]", "an alias stands for what it is in"),
        ("[" * 1000, "nested"),
        ("- " * 40 + "x", "nested"),
        ("a: 1\nb: 2\na: 3\n", "the key 'a' occurs twice, the second time in line 3"),
        ("a: {b: 1, b: 2}", "the key 'b' occurs twice"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 2001-99-99", "month must be"),
        ("a: 2001-01-01", "write it in quotes"),
        ("a: " + "9" * 400, "at most 63 are allowed"),
        ("a: " + "9" * 5000, "thousands of digits"),
        ("a: !!timestamp x", "its tag"),
        ("a: !!set {x}", "write it in quotes"),
        ('a: "\\0"', "a character that no setting takes"),
        ('a: "\\ud800"', "a character that no setting takes"),
        ("? [a]\n: 1", "unhashable"),
        ("a: \x01", "special characters"),
    ],
)
def test_yaml_that_is_refused(text: str, part: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r".") as refused:
        parse_yaml(text.encode())
    assert part in str(refused.value)
    assert time.process_time() - started < 2


def test_yaml_that_is_taken() -> None:
    text = "\ufeffbase: &base {x: 1, y: [2.5, true, null, .inf]}\nown: {<<: *base, x: 2}\nagain: *base\n"
    base = {"x": 1, "y": [2.5, True, None, float("inf")]}
    assert parse_yaml(text.encode()) == {"base": base, "own": base | {"x": 2}, "again": base}
