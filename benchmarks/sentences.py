"""Draw sentences at random from the documentation, the docstrings and the messages, for a reader to judge.

    python -m benchmarks.sentences [--count 60] [--seed 27]

A third comes from each source. The same seed draws the same sentences from the same text.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```.*?^```$|^<!-- table.*?^<!-- end -->$|^\$\$.*?^\$\$$", flags=re.DOTALL | re.MULTILINE)
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
LEAST_WORDS = 5
RAISED = {"UserError", "warning", "say", "unknown"}


class Sentence(NamedTuple):
    text: str
    place: str


def of_pages() -> Iterator[Sentence]:
    """Of paragraphs, lists and cells of tables; without code, formulas and generated tables."""
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        page = FENCE.sub("", path.read_text())
        for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", page):
            for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
                if not cell.lstrip().startswith("#"):
                    yield from _split(cell, str(path.relative_to(ROOT)))


def of_docstrings() -> Iterator[Sentence]:
    """Of modules, classes and functions."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for block in (ast.get_docstring(node) or "").split("\n\n"):
                    yield from _split(block, f"{path}:{getattr(node, 'lineno', 1)}")


def of_messages() -> Iterator[Sentence]:
    """Of errors, warnings and what is printed; a value is shown as {...}."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RAISED and (text := _text(node.args[0])):
                yield from _split(text, f"{path}:{node.lineno}")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def _text(node: ast.expr) -> str:
    """What a literal says; nothing for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{...}" for part in node.values)
    return ""


def _split(block: str, place: str) -> Iterator[Sentence]:
    whole = " ".join(block.split()).lstrip("-*0123456789. ")
    for text in END.split(whole):
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= LEAST_WORDS:
            yield Sentence(text, place)


def draw(count: int, seed: int) -> list[Sentence]:
    """About count / 3 sentences of each source."""
    chance = random.Random(seed)
    sources = [sorted(set(source())) for source in (of_pages, of_docstrings, of_messages)]
    shares = [count // 3 + (n < count % 3) for n in range(3)]
    return [drawn for source, share in zip(sources, shares) for drawn in chance.sample(source, share)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=27)
    args = parser.parse_args(argv)
    for number, sentence in enumerate(draw(args.count, args.seed), start=1):
        print(f"{number:2}  {sentence.text}\n    ({sentence.place})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
