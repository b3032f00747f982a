"""ROUGE by the protocol of BRIO (Liu et al., 2022), in which CNN/DailyMail and XSum results are published."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from semioffline.rewards.contract import check_references
from semioffline.rewards.ptb import split_sentences, split_words
from semioffline.rewards.rouge import Rouge

VARIANTS = ("rouge1", "rouge2", "rougeLsum")


@lru_cache(maxsize=1 << 14)
def prepare(text: str) -> str:
    """Put one sentence on each line, tokenised as in the Penn Treebank, lower-cased."""
    return "\n".join(" ".join(split_words(sentence)) for sentence in split_sentences(text.strip())).lower()


class BrioRouge(Rouge):
    """Stemmed ROUGE of prepared texts. ROUGE-L is the summary-level one (Lsum), as in the published tables.

    One departure from BRIO: it splits sentences with a model that nltk downloads, we split them with a rule.
    """

    def __init__(self, variants: Sequence[str] | str = VARIANTS) -> None:
        super().__init__(variants, use_stemmer=True)

    @property
    def name(self) -> str:
        return ("rouge" if self.variants == VARIANTS else "+".join(self.variants)) + "_brio"

    @property
    def signature(self) -> str:
        return super().signature.replace("tok:rouge-score", "tok:ptb+rouge-score|case:lower|sent:rule")

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        return super().__call__(
            [prepare(text) for text in completions], [[prepare(r) for r in row] for row in references]
        )
