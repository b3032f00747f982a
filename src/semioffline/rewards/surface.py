"""Statistics of a text, such as its length and repetition. Every log has them, because a narrow reward ignores them.

Words are separated by white space and compared in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from semioffline.errors import UserError
from semioffline.rewards.contract import BaseReward, check_references, package_version

F = TypeVar("F", bound=Callable[..., list[float]])


def _signed(what: str) -> Callable[[F], F]:
    def sign(function: F) -> F:
        function.signature = f"{what}|tok:whitespace|v:{package_version()}"  # type: ignore[attr-defined]
        return function

    return sign


@_signed("length|unit:words")
def length(completions: list[str], **kwargs: Any) -> list[float]:
    """Return the number of words of each text."""
    return [float(len(text.split())) for text in completions]


def _distinct(text: str, n: int) -> float:
    words = text.lower().split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


@_signed("distinct|n:1|level:text|case:lower")
def distinct(completions: list[str], **kwargs: Any) -> list[float]:
    """Return the number of different words over that of all words, for each text; 0 for an empty one (the paper's
    Distinct)."""
    return [_distinct(text, 1) for text in completions]


@_signed("distinct|n:1|level:text|case:lower")
def distinct1(completions: list[str], **kwargs: Any) -> list[float]:
    """Return Distinct-1 (Li et al., 2016) of each text by itself, which is the same as `distinct`."""
    return [_distinct(text, 1) for text in completions]


@_signed("distinct|n:2|level:text|case:lower")
def distinct2(completions: list[str], **kwargs: Any) -> list[float]:
    """Return Distinct-2 of each text: different word pairs over all word pairs; 0 for fewer than two words."""
    return [_distinct(text, 2) for text in completions]


@_signed("repetition|n:2|case:lower")
def repetition(completions: list[str], **kwargs: Any) -> list[float]:
    """Return the share of the word pairs of each text that occurred earlier in it; 0 for fewer than two words."""
    return [1 - _distinct(text, 2) if len(text.split()) > 1 else 0.0 for text in completions]


@_signed("repetition_penalty|n:2|case:lower")
def repetition_penalty(completions: list[str], **kwargs: Any) -> list[float]:
    """Return minus `repetition`: a reward in [-1, 0] to add to one that ignores repetition."""
    return [0.0 - share for share in repetition(completions)]


class LengthPenalty(BaseReward):
    """A reward of at most 0, to add to one that can be raised by length alone.

    With a range: 0 for LOW to HIGH words, else minus the distance to the nearer bound, divided by that bound. Without a
    range: minus the distance to the length of the reference, divided by that length, for the reference that is nearest
    in length.
    """

    name = "length_penalty"

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        self.low, self.high = low, high

    @classmethod
    def parse(cls, text: str) -> LengthPenalty:
        """Parse "8-20" into a penalty for 8 to 20 words."""
        match = re.fullmatch(r"(\d+)-(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"length_penalty:{text}: give the fewest and the most words, LOW-HIGH, for instance length_penalty:8-20"
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def signature(self) -> str:
        target = "reference" if self.low is None else f"{self.low}-{self.high}"
        return f"length_penalty|words:{target}|tok:whitespace|v:{package_version()}"

    def __call__(self, completions: list[str], references: list[list[str]] | None = None, **kwargs: Any) -> list[float]:
        numbers = [len(text.split()) for text in completions]
        if self.low is not None and self.high is not None:
            return [_outside(number, self.low, self.high) for number in numbers]
        check_references(completions, references or [])
        lengths = [[max(len(text.split()), 1) for text in row] for row in references or []]
        return [max(_outside(n, m, m) for m in row) for n, row in zip(numbers, lengths, strict=True)]


def _outside(number: int, low: int, high: int) -> float:
    if number < low:
        return (number - low) / low
    return (high - number) / high if number > high else 0.0
