"""BLEU-4 (Papineni et al., 2002) of sentences and of whole sets, computed by sacrebleu."""

from collections.abc import Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from semioffline.errors import unknown
from semioffline.rewards.contract import check_references

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


class SentenceBleu:
    """sacrebleu's sentence BLEU / 100, in [0, 1]: brevity penalty * exp(mean over n of log precision_n), n = 1..4.

    Exponential smoothing of zero precisions, and effective order: texts of fewer than four words use the n they have.
    With several references, "all" hands them to sacrebleu together (an n-gram counts up to its highest count in any of
    them, the length is compared with the nearest); "mean" is the mean of the scores against each, in their order.
    """

    name = "bleu"

    def __init__(self, multi_reference: Literal["all", "mean"] = "all", lower_case: bool = False) -> None:
        if multi_reference not in ("all", "mean"):
            raise unknown("multi_reference", multi_reference, ("all", "mean"))
        self.multi_reference = multi_reference
        self.lower_case = lower_case
        self._reference_counts: set[int] = set()

    @cached_property
    def _metric(self) -> "BLEU":
        from sacrebleu.metrics.bleu import BLEU  # slow to import

        # force: samples that end in " ." are no reason to warn in the middle of training
        return BLEU(lowercase=self.lower_case, effective_order=True, smooth_method="exp", force=True)

    @property
    def signature(self) -> str:
        """sacrebleu's signature; `nrefs` is "var" until something was scored, and when the number varied."""
        counts = self._reference_counts
        self._metric.num_refs = next(iter(counts)) if len(counts) == 1 else -1
        return f"bleu|{self._metric.get_signature()}|level:sentence|refs:{self.multi_reference}"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        pairs = [(completion, tuple(row)) for completion, row in zip(completions, references, strict=True)]
        scores = {pair: self._score(*pair) for pair in dict.fromkeys(pairs)}
        return [scores[pair] for pair in pairs]

    def _score(self, completion: str, references: tuple[str, ...]) -> float:
        self._reference_counts.add(len(references))
        groups = [references] if self.multi_reference == "all" else [(reference,) for reference in references]
        values = [self._metric.sentence_score(completion, group).score / 100 for group in groups]
        return min(fmean(values), 1.0)  # exp(log 100) is 100.00000000000004


class CorpusBleu(SentenceBleu):
    """sacrebleu's corpus BLEU / 100: n-gram counts and lengths are summed over all inputs before anything is divided.

    As a reward, where every sample needs a value of its own, it is sentence BLEU. Over a set, no effective order.
    """

    name = "corpus_bleu"

    @property
    def signature(self) -> str:
        return super().signature.replace("level:sentence", "level:corpus").replace("eff:yes", "eff:no")

    def statistics(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[list[float]]:
        """For each input: words of the completion and of the nearest reference, then n-grams right and n-grams there
        are, n = 1..4."""
        check_references(completions, references)
        self._reference_counts |= {len(row) for row in references}
        scores = [self._metric.sentence_score(text, row) for text, row in zip(completions, references, strict=True)]
        return [[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores]

    def corpus_score(self, statistics: Sequence[float]) -> float:
        """BLEU of summed statistics."""
        length, wanted, *grams = (int(number) for number in statistics)
        order = len(grams) // 2
        score = self._metric.compute_bleu(
            grams[:order],
            grams[order:],
            length,
            wanted,
            smooth_method="exp",
            effective_order=False,
            max_ngram_order=order,
        )
        return min(score.score / 100, 1.0)
