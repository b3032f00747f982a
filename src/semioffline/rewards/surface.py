"""What can be counted on the surface of a text: watched in every log, because a narrow reward does not see it."""

from typing import Any


def length(completions: list[str], **kwargs: Any) -> list[float]:
    """Words in the text."""
    return [float(len(text.split())) for text in completions]


def distinct(completions: list[str], **kwargs: Any) -> list[float]:
    """Different words over all words; 0 for an empty text (the paper's Distinct)."""
    return [len(set(words)) / len(words) if (words := text.lower().split()) else 0.0 for text in completions]


def repetition(completions: list[str], **kwargs: Any) -> list[float]:
    """Share of the word pairs that stood in the text before; 0 for fewer than two words."""
    shares = []
    for text in completions:
        words = text.lower().split()
        pairs = list(zip(words, words[1:], strict=False))
        shares.append(1 - len(set(pairs)) / len(pairs) if pairs else 0.0)
    return shares
