"""A name has one meaning in the package."""

import ast
from collections import defaultdict
from pathlib import Path

import semioffline

PACKAGE = Path(semioffline.__file__).parent
ONE_PER_FILE = {"Method"}
"""Every file of `methods` has one."""


def types_in(path: Path) -> list[str]:
    """Public classes and type aliases at the top of a file: names in capitals and small letters."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in found if name[0].isupper() and not name.isupper()]


def test_a_class_or_type_has_one_meaning():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in types_in(path):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert {"Batch", "Row", "Comparison", "Metric"} <= places.keys()  # a guard of the test itself
    assert {name: paths for name, paths in places.items() if len(paths) > 1 and name not in ONE_PER_FILE} == {}
