"""Exact match."""

from typing import Any

from semioffline.rewards.contract import BaseReward, check_references, package_version


def normalise(text: str) -> str:
    """Fold the case, strip white space at the ends, and make other white space one space. Punctuation and articles
    stay."""
    return " ".join(text.casefold().split())


class ExactMatch(BaseReward):
    """1 if the completion equals one of the references after `normalise`, else 0."""

    name = "exact_match"

    @property
    def signature(self) -> str:
        return f"exact_match|case:fold|space:single|punctuation:kept|refs:any|v:{package_version()}"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        return [
            float(normalise(text) in {normalise(reference) for reference in row})
            for text, row in zip(completions, references, strict=True)
        ]
