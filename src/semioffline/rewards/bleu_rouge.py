"""The average of BLEU and ROUGE-L: the paper's reward for question generation."""

from functools import cache
from typing import Any

from semioffline.rewards.bleu import SentenceBleu
from semioffline.rewards.rouge import Rouge


def bleu_rougeL(completions: list[str], references: list[list[str]], **columns: Any) -> list[float]:
    """Return the average of sentence BLEU-4 and ROUGE-L (Table 8 of the paper; its code weights them 2 to 1)."""
    parts = [reward(completions=completions, references=references) for reward in _parts()]
    return [sum(values) / len(values) for values in zip(*parts, strict=True)]


@cache
def _parts() -> tuple[SentenceBleu, Rouge]:
    return SentenceBleu(), Rouge("rougeL")
