"""LMQG's BLEU-4 is that of the COCO caption evaluation."""

import pytest

from rewards.make_golden import PAIRS
from semioffline.rewards.lmqg import LmqgBleu4, _words
from semioffline.rewards.registry import load_reward

TEXTS = [text for text, _ in PAIRS]
ROWS = [row for _, row in PAIRS]


def test_it_equals_the_published_scorer():
    """Of every text and of the whole set, on the same words; with several references too."""
    published = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu(4)
    for number in sorted({len(row) for row in ROWS}):
        chosen = [n for n, row in enumerate(ROWS) if len(row) == number]
        texts, rows = [TEXTS[n] for n in chosen], [ROWS[n] for n in chosen]
        ours = {n: [" ".join(_words(text))] for n, text in enumerate(texts)}
        theirs = {n: [" ".join(_words(reference)) for reference in row] for n, row in enumerate(rows)}
        corpus, each = published.compute_score(theirs, ours, verbose=0)
        metric = LmqgBleu4()
        assert metric(texts, rows) == pytest.approx(each[3], rel=1e-9)
        sums = [sum(column) for column in zip(*metric.statistics(texts, rows))]
        assert metric.corpus_score(sums) == pytest.approx(corpus[3], rel=1e-9)


def test_case_and_quotes_do_not_count_and_nothing_is_smoothed():
    metric = LmqgBleu4()
    assert metric(['What did "He" say ?'], [["what did ``he'' say ?"]]) == [pytest.approx(1.0, rel=1e-6)]
    assert metric(["what did he say", ""], [["who said it to whom"], ["a b"]]) == [pytest.approx(0.0, abs=1e-3)] * 2
    assert load_reward("lmqg_bleu4")[1].signature.startswith("bleu4|refs:closest|smooth:no")
