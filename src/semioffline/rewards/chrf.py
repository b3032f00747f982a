"""chrF2 (Popović, 2015) as a reward, computed by sacrebleu."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from semioffline.rewards.contract import BaseReward, check_references

if TYPE_CHECKING:
    from sacrebleu.metrics.chrf import CHRF


class SentenceChrf(BaseReward):
    """sacrebleu's sentence chrF / 100, in [0, 1]: F2 of character n-grams, n = 1..6, without spaces.

    With several references, the highest F counts.
    """

    name = "chrf"

    @cached_property
    def _metric(self) -> CHRF:
        from sacrebleu.metrics.chrf import CHRF  # slow to import

        return CHRF()

    @property
    def signature(self) -> str:
        self._metric.num_refs = -1
        return f"chrf|{self._metric.get_signature()}|level:sentence|refs:best"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        pairs = [(completion, tuple(row)) for completion, row in zip(completions, references, strict=True)]
        scores = {pair: self._metric.sentence_score(*pair).score / 100 for pair in dict.fromkeys(pairs)}
        return [scores[pair] for pair in pairs]
