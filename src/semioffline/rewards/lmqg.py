"""ROUGE-L as question generation is scored (Ushio et al., 2022, LMQG), which is that of the COCO caption evaluation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rapidfuzz.distance import LCSseq

from semioffline.rewards.contract import BaseReward, check_references, package_version
from semioffline.rewards.ptb import split_words

BETA = 1.2


@lru_cache(maxsize=1 << 14)
def _words(text: str) -> tuple[str, ...]:
    """Treebank words in lower case, brackets as -lrb- and -rrb-, which the published references have too.

    Opening and closing quotes are one word: in a text that is tokenised already the tokenizer mistakes them.
    """
    words = (word.lower() for word in split_words(text, brackets=True))
    return tuple('"' if word in ("``", "''") else word for word in words) or ("",)


class LmqgRougeL(BaseReward):
    """F = (1 + β²) P R / (R + β² P), β = 1.2: recall counts more than precision.

    P = LCS / words of the completion, R = LCS / words of the reference. With several references P and R are each the
    highest over them, so they may come from two. LMQG normalises outputs only, since its references are tokenised
    files; we tokenise both, and references that are tokenised already stay as they are.
    """

    name = "lmqg_rougeL"

    def __init__(self, tokenise: bool = True) -> None:
        self.tokenise = tokenise

    @property
    def signature(self) -> str:
        words = "ptb+lower" if self.tokenise else "space"
        return f"rougeL|f:beta={BETA}|stem:no|refs:max-p-max-r|tok:{words}|v:{package_version()}"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        return [self._score(text, row) for text, row in zip(completions, references, strict=True)]

    def _score(self, completion: str, references: list[str]) -> float:
        read = _words if self.tokenise else (lambda text: tuple(text.split(" ")))
        ours = read(completion)
        theirs = [read(reference) for reference in references]
        common = [LCSseq.similarity(words, ours) for words in theirs]
        precision = max(hits / len(ours) for hits in common)
        recall = max(hits / len(words) for hits, words in zip(common, theirs, strict=True))
        if not precision or not recall:
            return 0.0
        return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
