"""Select where a static target may be masked: spans of its text, and the words inside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from semioffline.errors import UserError, told_in_one_line
from semioffline.policy.tokens import Encoded
from semioffline.rewards.registry import import_function

Spans = Sequence[tuple[int, int]]
"""The first character of each span, and the first one after it."""


def names_function(where: str) -> bool:
    """Return whether `mask_where` is file.py:function, not a regular expression."""
    return re.fullmatch(r".+\.py:\w+", where) is not None


def load_where(where: str) -> Callable[[str], Spans]:
    """Return a function from a text to its spans. A regular expression gives its matches, or its groups if it has
    some."""
    if names_function(where):
        function = import_function(where, "mask_where")
        return lambda text: _checked(function(text), text, where)
    with told_in_one_line(re.error, before=f"mask_where {where!r} is no regular expression: "):
        pattern = re.compile(where)
    groups = range(1, pattern.groups + 1) if pattern.groups else (0,)

    def find(text: str) -> Spans:
        return [match.span(group) for match in pattern.finditer(text) for group in groups if match[group]]

    return find


def _checked(spans: object, text: str, where: str) -> Spans:
    try:
        pairs = [(start, end) for start, end in spans]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        pairs = [(-1, -1)]
    if not all(type(end) is int and type(start) is int and 0 <= start <= end <= len(text) for start, end in pairs):
        raise UserError(
            f"mask_where {where!r} gave {spans!r} for the text {text!r}: it must be a list of (start, end), the first "
            "character of a span and the first after it"
        )
    return pairs


def keep_inside(encoded: Encoded, text: str, spans: Spans) -> Encoded:
    """Restrict masking to words inside the spans: the tokens of all other words get the word number -1, which is never
    masked.

    A word must be inside a span as a whole. White space is ignored, because some tokenizers include it in the word
    after it.
    """
    covered = [character.isspace() for character in text]
    for start, end in spans:
        covered[start:end] = [True] * (end - start)
    chosen, outside = set(), set()
    for word, (start, end) in zip(encoded.words, encoded.offsets, strict=True):
        if not all(covered[start:end]):
            outside.add(word)
        elif text[start:end].strip():
            chosen.add(word)
    chosen -= outside
    return encoded._replace(words=[word if word in chosen else -1 for word in encoded.words])
