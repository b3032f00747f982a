"""BLEU-4 (Papineni et al., 2002) of sentences and of whole sets: the numbers of sacrebleu to the last bit.

If references have many completions, n-grams are counted for all of them at once. Tokenising, smoothing and the final
division are sacrebleu's.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from semioffline.errors import unknown
from semioffline.rewards.contract import BaseReward, check_references

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

ORDER = 4
MANY = 16
"""Minimum number of completions of the same references that are counted together."""
MAX_WORDS = 1 << 17
"""Maximum number of words remembered between calls."""
_BETWEEN = ""
"""A separator after every text; no word is empty."""


class SentenceBleu(BaseReward):
    """sacrebleu's sentence BLEU / 100, in [0, 1]: brevity penalty * exp(mean over n of log precision_n), n = 1..4.

    It uses exponential smoothing of zero precisions, and effective order: a text of fewer than four words uses only the
    n that it has. With several references, "all" passes them to sacrebleu together (an n-gram counts up to its highest
    count in any of them, and the length is compared with the nearest one); "mean" is the mean of the scores against
    each.
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
        """sacrebleu's signature. `nrefs` is "var" until something was scored, and if the number varied."""
        counts = self._reference_counts
        self._metric.num_refs = next(iter(counts)) if len(counts) == 1 else -1
        return f"bleu|{self._metric.get_signature()}|level:sentence|refs:{self.multi_reference}"

    @cached_property
    def _words(self) -> "_Words":
        return _Words(self._metric)

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        self._reference_counts |= {len(row) for row in references}
        groups = [self._group(row) for row in references]
        scores: dict[tuple[str, ...], dict[str, float]] = {}
        for completion, own in zip(completions, groups, strict=True):
            for group in own:
                scores.setdefault(group, {})[completion] = 0.0
        together = {group: texts for group, texts in scores.items() if len(texts) >= MANY}
        if together:
            self._score_together(together)
        for group, texts in scores.items():
            if group not in together:
                texts.update({text: self._metric.sentence_score(text, group).score / 100 for text in texts})
        # at most 1: exp(log 100) is 100.00000000000004
        return [
            min(fmean([scores[group][completion] for group in own]), 1.0)
            for completion, own in zip(completions, groups, strict=True)
        ]

    def _group(self, references: list[str]) -> list[tuple[str, ...]]:
        """Return the groups of references that are passed to sacrebleu together."""
        if self.multi_reference == "all":
            return [tuple(references)]
        return [(reference,) for reference in references]

    def _score_together(self, groups: dict[tuple[str, ...], dict[str, float]]) -> None:
        from semioffline.rewards.ngrams import Counts, write  # with numpy, which single pairs do not need

        head, texts = self._read(chain(*groups)), self._read(chain(*groups.values()))
        references = [len(group) for group in groups]
        counts = Counts(*write(head, texts, _BETWEEN), references, [len(own) for own in groups.values()])
        hits = zip(*(counts.hits(n).tolist() for n in range(1, ORDER + 1)), strict=True)
        lengths = counts.lengths.tolist()
        left = iter(lengths[counts.references :])
        for own, first, number in zip(groups.values(), counts.first.tolist(), references, strict=True):
            wanted = sorted(lengths[first : first + number])
            for text in own:
                length = next(left)
                nearest = min(wanted, key=lambda other: abs(other - length))  # of two, the shorter
                own[text] = _divide(length, nearest, *next(hits))

    def _read(self, texts: Iterable[str]) -> list[str]:
        """Return sacrebleu's words of all texts, with a separator after each text."""
        words = self._words
        if len(words) > MAX_WORDS:
            words.clear()
        read: list[str] = []
        for text in texts:
            line = (text.lower() if self.lower_case else text).rstrip()
            if "\n" in line:  # sacrebleu joins what a hyphen divides at the end of a line
                line = line.replace("<skipped>", "").replace("-\n", "")
            for word in line.split():
                read += words[word]
            read.append(_BETWEEN)
        return read


class _Words(dict[str, list[str]]):
    """A cache from a chunk of text between spaces to its words. This works because no rule of sacrebleu's tokenizer
    (13a) crosses a space."""

    def __init__(self, metric: "BLEU") -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, word: str) -> list[str]:
        self[word] = words = self._metric.tokenizer(word).split()
        return words


@lru_cache(maxsize=1 << 16)
def _divide(length: int, wanted: int, *hits: int) -> float:
    """Return BLEU / 100 of one completion, from its length, that of the nearest reference, and its matching n-grams."""
    from sacrebleu.metrics.bleu import BLEU

    totals = [max(length - n, 0) for n in range(ORDER)]
    score = BLEU.compute_bleu([*hits], totals, length, wanted, smooth_method="exp", effective_order=True)
    return score.score / 100


class CorpusBleu(SentenceBleu):
    """sacrebleu's corpus BLEU / 100: n-gram counts and lengths are summed over all inputs before the division.

    As a reward, for which every sample needs its own value, it is sentence BLEU. Over a set there is no effective
    order.
    """

    name = "corpus_bleu"

    @property
    def signature(self) -> str:
        return super().signature.replace("level:sentence", "level:corpus").replace("eff:yes", "eff:no")

    def statistics(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[list[float]]:
        """Return for each input: words of the completion, words of the nearest reference, then matching n-grams and all
        n-grams for n = 1..4."""
        check_references(completions, references)
        self._reference_counts |= {len(row) for row in references}
        scores = [self._metric.sentence_score(text, row) for text, row in zip(completions, references, strict=True)]
        return [[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores]

    def corpus_score(self, statistics: Sequence[float]) -> float:
        """Return BLEU of summed statistics."""
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
