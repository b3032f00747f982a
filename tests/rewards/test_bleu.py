"""Sentence BLEU must be sacrebleu's, divided by 100."""

import random
import subprocess
import sys
from statistics import fmean

import pytest
import sacrebleu

from semioffline.errors import UserError
from semioffline.rewards import bleu
from semioffline.rewards.bleu import MANY, SentenceBleu
from semioffline.rewards.ngrams import Counts, write


def random_rows(seed, size=200):
    rng = random.Random(seed)

    def text():
        return " ".join(rng.choices(["the", "The", "cat", "sat,", "on", "mat.", "a"], k=rng.randint(0, 12)))

    return [text() for _ in range(size)], [[text() for _ in range(rng.randint(1, 3))] for _ in range(size)]


@pytest.mark.parametrize("lower_case", [False, True])
def test_all_references_together(lower_case):
    completions, references = random_rows(1)
    values = SentenceBleu(lower_case=lower_case)(completions=completions, references=references, prompts=completions)
    for value, completion, row in zip(values, completions, references, strict=True):
        expected = sacrebleu.sentence_bleu(completion, row, smooth_method="exp", lowercase=lower_case).score / 100
        assert value == min(expected, 1.0)
        assert 0.0 <= value <= 1.0


def test_mean_over_references():
    completions, references = random_rows(2)
    values = SentenceBleu(multi_reference="mean")(completions=completions, references=references)
    for value, completion, row in zip(values, completions, references, strict=True):
        each = [sacrebleu.sentence_bleu(completion, [reference]).score / 100 for reference in row]
        assert value == min(fmean(each), 1.0)


def test_by_hand():
    """Precisions 3/4, 2/3, 1/2 and, with no 4-gram found, 1/2 by smoothing: (3/4 * 2/3 * 1/2 * 1/2) ** (1/4)."""
    [value] = SentenceBleu()(completions=["a b c x"], references=[["a b c d"]])
    assert value == pytest.approx((3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)


def test_identical_text_is_one_and_empty_text_is_zero():
    rows = ["the cat sat on the mat", "one", "", "the"]
    references = [["the cat sat on the mat"], ["one"], ["the"], [""]]
    values = SentenceBleu()(completions=rows, references=references)
    assert values == [1.0, pytest.approx(1.0), 0.0, 0.0]
    assert max(values) <= 1.0


ODD = [
    "",
    " ",
    "\n",
    "a-\nb c",
    "a- \nb",
    "tail-\n",
    "x<skipped>y",
    "-<skipped>\nz",
    "&quot;a&amp;lt;b&gt;",
    "&",
    "1,000.5 -3-4 5- .5 ,5",
]
ODD += [
    "..",
    "a..b",
    "...",
    ",.,",
    "a,.b 3.,4",
    "\xa0a\u2003b",
    "a\x1cb\x1d.",
    "\x00 a",
    "ΑΣ ΑΣ.",
    "İ",
    "日本語 。",
    "don't (stop) [1]~{2}",
]
LETTERS = [*"ab01 .,-&/\n\t;'<>~\xa0Σ", "&quot;", "<skipped>", "-\n", " the ", " cat "]


def odd_text(rng):
    return "".join(rng.choices(LETTERS, k=rng.randint(0, 30)))


@pytest.mark.parametrize("lower_case", [False, True])
@pytest.mark.parametrize("multi_reference", ["all", "mean"])
def test_many_completions_of_few_references(lower_case, multi_reference):
    """Counted together they have sacrebleu's numbers, whatever they are made of."""
    rng = random.Random(5)
    groups = [[odd_text(rng) for _ in range(rng.randint(1, 4))] for _ in range(12)]
    groups += [["the cat sat on the mat", "a cat"], ["", "a"], ["the " * 30], rng.sample(ODD, 4)]
    rows = [(text, group) for group in groups for text in [*ODD, *(odd_text(rng) for _ in range(MANY))]]
    rows += [(" ".join(rng.choices(["the", "cat", "sat", "on", "mat"], k=9)), groups[-4]) for _ in range(MANY)]
    rows += [(odd_text(rng), [odd_text(rng)]) for _ in range(9)]
    rng.shuffle(rows)
    reward = SentenceBleu(multi_reference=multi_reference, lower_case=lower_case)
    values = reward(completions=[text for text, _ in rows], references=[group for _, group in rows])
    for value, (text, group) in zip(values, rows, strict=True):
        handed = [group] if multi_reference == "all" else [[reference] for reference in group]
        each = [sacrebleu.sentence_bleu(text, one, lowercase=lower_case).score / 100 for one in handed]
        assert value == min(fmean(each), 1.0), (text, group)
    assert sum(value > 0 for value in values) > 100


def test_words_that_are_remembered_are_not_more_than_so_many(monkeypatch):
    monkeypatch.setattr(bleu, "MAX_WORDS", 50)
    reward = SentenceBleu()
    for turn in range(3):
        texts = [f"w{turn}x{n} the cat" for n in range(60)]
        values = reward(completions=texts, references=[["the cat"]] * 60)
        assert values == [sacrebleu.sentence_bleu(text, ["the cat"]).score / 100 for text in texts]
    assert len(reward._words) < 120


def test_a_reference_of_very_many_words():
    """The numbers of its n-grams exceed 64 bits."""
    words = [f"w{n}" for n in range(60_000)]
    references = [" ".join(words)]
    rng = random.Random(6)
    starts = [rng.randrange(59_000) for _ in range(MANY)]
    texts = [" ".join([*words[at : at + 30], "x", *words[at + 40 : at + 43]]) for at in starts]
    values = SentenceBleu()(completions=texts, references=[references] * MANY)
    assert values == [sacrebleu.sentence_bleu(text, references).score / 100 for text in texts]
    counts = Counts(*write([*words, ""], [w for text in texts for w in [*text.split(), ""]], ""), [1], [MANY])
    assert counts.hits(4).tolist() == [27] * MANY


def test_identical_pairs_are_scored_once(monkeypatch):
    reward = SentenceBleu()
    calls = []
    original = reward._metric.sentence_score
    monkeypatch.setattr(reward._metric, "sentence_score", lambda *pair: calls.append(pair) or original(*pair))
    values = reward(completions=["a b", "a", "a b"], references=[["a b"], ["a b"], ["a b"]])
    assert len(calls) == 2
    assert values[0] == values[2] != values[1]


def test_signature():
    reward = SentenceBleu()
    assert reward.name == "bleu"
    assert "nrefs:var" in reward.signature
    reward(completions=["a"], references=[["a", "b"]])
    settings = "bleu|nrefs:2|case:mixed|eff:yes|tok:13a|smooth:exp"
    assert reward.signature == f"{settings}|version:{sacrebleu.__version__}|level:sentence|refs:all"
    reward(completions=["a"], references=[["a"]])
    assert "nrefs:var" in reward.signature
    assert "case:lc" in SentenceBleu(lower_case=True).signature
    assert "refs:mean" in SentenceBleu(multi_reference="mean").signature


def test_wrong_arguments_name_the_fix():
    with pytest.raises(UserError, match="all, mean"):
        SentenceBleu(multi_reference="best")
    with pytest.raises(UserError, match="1 completions but 2"):
        SentenceBleu()(completions=["a"], references=[["a"], ["b"]])
    with pytest.raises(UserError, match=r"references\[0\]"):
        SentenceBleu()(completions=["a"], references=["a"])
    assert SentenceBleu()(completions=[], references=[]) == []


def test_sacrebleu_is_imported_when_used():
    code = (
        "import sys; from semioffline.rewards.bleu import SentenceBleu\n"
        "reward = SentenceBleu(); assert 'sacrebleu' not in sys.modules\n"
        "reward(completions=['a'], references=[['a']]); assert 'sacrebleu' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
