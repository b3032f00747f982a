"""ROUGE-L and BLEU-4 as used for question generation (Ushio et al., 2022, LMQG): those of the COCO caption
evaluation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rapidfuzz.distance import LCSseq

from semioffline.rewards.contract import BaseReward, check_references, package_version
from semioffline.rewards.ptb import split_words

BETA = 1.2


@lru_cache(maxsize=1 << 14)
def _words(text: str) -> tuple[str, ...]:
    """Return treebank words in lower case, with brackets as -lrb- and -rrb-, as in the published references.

    Opening and closing quotes become one word, because the tokenizer confuses them in a text that is tokenised already.
    """
    words = (word.lower() for word in split_words(text, brackets=True))
    return tuple('"' if word in ("``", "''") else word for word in words) or ("",)


class LmqgRougeL(BaseReward):
    """F = (1 + β²) P R / (R + β² P), β = 1.2: recall counts more than precision.

    P = LCS / words of the completion, R = LCS / words of the reference. With several references, P and R are each the
    highest over them, so they may come from two. LMQG tokenises only outputs, since its references are tokenised files.
    We tokenise both; references that are tokenised already do not change.
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


ORDER = 4
_SMALL, _TINY = 1e-9, 1e-15
"""Numbers that the published scorer adds to counts of n-grams, so that it never divides by 0."""


class LmqgBleu4(BaseReward):
    """BLEU-4 of the COCO caption evaluation, which LMQG prints: treebank words in lower case, no smoothing.

    Over a set, n-gram counts and lengths are summed before the division; as a reward, every text has its own value.
    With several references, an n-gram counts up to its highest count in any of them. The length is compared with the
    nearest one; of two equally near ones, with the shorter. Texts are tokenised as for `LmqgRougeL`.
    """

    name = "lmqg_bleu4"

    @property
    def signature(self) -> str:
        return f"bleu4|refs:closest|smooth:no|tok:ptb+lower|level:corpus|v:{package_version()}"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        return [self.corpus_score(row) for row in self.statistics(completions, references)]

    def statistics(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[list[float]]:
        """Return for each input: words of the completion, words of the nearest reference, then matching n-grams and all
        n-grams for n = 1..4."""
        check_references(completions, references)
        return [_count_grams(text, row) for text, row in zip(completions, references, strict=True)]

    def corpus_score(self, statistics: Sequence[float]) -> float:
        """Return BLEU-4 of summed statistics, in the published order of operations."""
        length, wanted, *grams = statistics
        score = 1.0
        for right, there in zip(grams[:ORDER], grams[ORDER:], strict=True):
            score *= (right + _TINY) / (there + _SMALL)
        ratio = (length + _TINY) / (wanted + _SMALL)
        return score ** (1 / ORDER) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)


def _count_grams(completion: str, references: list[str]) -> list[float]:
    ours, *theirs = (tuple(filter(None, _words(text))) for text in (completion, *references))
    nearest = min((abs(len(words) - len(ours)), len(words)) for words in theirs)[1]
    right, there = [], []
    for n in range(1, ORDER + 1):
        grams = _grams(ours, n)
        most: Counter[tuple[str, ...]] = Counter()
        for words in theirs:
            most |= _grams(words, n)
        right.append(float((grams & most).total()))
        there.append(float(max(len(ours) - n + 1, 0)))
    return [float(len(ours)), float(nearest), *right, *there]


def _grams(words: tuple[str, ...], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[k:] for k in range(n))))
