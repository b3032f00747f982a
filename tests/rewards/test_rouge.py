"""ROUGE must give the numbers of the rouge_score package: compared with ==, never approximately."""

import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import product
from operator import add

import pytest
from rouge_score.rouge_scorer import RougeScorer

from semioffline.errors import UserError
from semioffline.rewards import rouge
from semioffline.rewards.rouge import VARIANTS, Rouge, score_pairs

# fmt: off
WORDS = [
    "it", "its", "the", "The", "a", "of", "running", "runs", "ran", "Runner", "cats", "cat's", "flies", "flying",
    "dying", "skies", "sky", "generously", "generation", "relational", "conditional", "hopping", "hoping", "agreed",
    "plastered", "controlling", "university", "universal", "42", "3.14", "U.S.", "don't", "e-mail", "x",
]
# fmt: on

EDGE_TEXTS = [
    "",
    " ",
    "\n",
    "\n\n \n",
    "...!?",
    "word",
    "WORD.",
    "word word word",
    "word\nword\nword",
    "word word\n\nword\n",
    "\nleading and trailing\n",
    "a\r\nb\tc\x0bd\x0ce\x1cf\u2028g\u00a0h",
    "don't e-mail snake_case 3.14 1,000",
    "caf\u00e9 na\u00efve \u0130stanbul \u212a \u017fix \u03a3\u03a3 stra\u00dfe \u4f60\u597d \U0001f600 \ud800 end",
    "running runs run ran runner happily skies dying news",
    "a b c d e f g h i j k",
    "k j i h g f e d c b a",
    "a a b b a a b b",
    "b b a a\nb b a a",
    "a b\nb a\na b",
    "the cat sat\n!!!\non the mat\n\nthe cat",
]


def assert_equal_to_rouge_score(completions, references, use_stemmer):
    ours = score_pairs(completions, references, VARIANTS, use_stemmer)
    scorer = RougeScorer(list(VARIANTS), use_stemmer=use_stemmer)
    for i, (completion, reference) in enumerate(zip(completions, references, strict=True)):
        theirs = scorer.score(reference, completion)
        for variant in VARIANTS:
            assert ours[variant][i] == tuple(theirs[variant]), (variant, completion, reference)


def add_up(values):
    """Left to right; the built-in sum compensates for rounding from Python 3.12 on."""
    return reduce(add, values)


def random_text(rng, words, length, separators=(" ",)):
    return "".join(rng.choice(words) + rng.choice(separators) for _ in range(rng.randint(0, length)))


@pytest.mark.parametrize("use_stemmer", [False, True])
def test_edge_texts_against_each_other(use_stemmer):
    completions, references = zip(*product(EDGE_TEXTS, repeat=2), strict=True)
    assert_equal_to_rouge_score(completions, references, use_stemmer)


@pytest.mark.parametrize("use_stemmer", [False, True])
def test_random_texts(use_stemmer):
    rng = random.Random(1)
    texts = [random_text(rng, WORDS, 24, separators=[" ", " ", ", ", ".\n", "\n\n", " - "]) for _ in range(1200)]
    assert_equal_to_rouge_score(texts[:600], texts[600:], use_stemmer)


@pytest.mark.parametrize("alphabet", ["ab", "abc", "abcdefgh"])
def test_many_ties(alphabet):
    """Few words in many short lines: nearly every step back has a choice, and words are clipped."""
    rng = random.Random(2)
    texts = [random_text(rng, alphabet, 18, separators=[" ", " ", "\n"]) for _ in range(2400)]
    assert_equal_to_rouge_score(texts[:1200], texts[1200:], use_stemmer=False)


def test_texts_longer_than_a_machine_word():
    rng = random.Random(3)
    words = [f"w{i}" for i in range(60)]
    texts = [random_text(rng, words, 220, separators=[" "] * 25 + ["\n"]) for _ in range(30)]
    assert_equal_to_rouge_score(texts[:15], texts[15:], use_stemmer=False)


def test_copies_with_words_replaced():
    rng = random.Random(4)
    references = [random_text(rng, WORDS, 45, separators=[" "] * 9 + ["\n"]) for _ in range(200)]
    completions = [
        " ".join(w if rng.random() < 0.6 else rng.choice(WORDS) for w in text.split(" ")) for text in references
    ]
    assert_equal_to_rouge_score(completions, references, use_stemmer=True)


def test_stems_of_arbitrary_letters():
    rng = random.Random(5)
    endings = ["", "s", "ies", "ing", "eed", "ational", "sses", "y", "ement"]
    words = ["".join(rng.choices("aeiouybcdst0", k=rng.randint(1, 5))) + rng.choice(endings) for _ in range(3000)]
    texts = [" ".join(rng.choices(words, k=30)) for _ in range(100)]
    assert_equal_to_rouge_score(texts, texts[::-1], use_stemmer=True)


def test_symbols_beyond_the_surrogates():
    """Word number 0xD800 and those after it get characters that no encoder would accept."""
    words = [f"v{i}" for i in range(70_000)]
    score_pairs([" ".join(words)], [""], ["rouge1"])
    rng = random.Random(6)
    texts = [" ".join(rng.sample(words[50_000:50_040], 20) + words[55_280:55_310]) for _ in range(10)]
    texts += [" ".join(words[-20:] + words[55_295:55_298]), " ".join(words[-40:-10])]
    assert_equal_to_rouge_score(texts, texts[::-1], use_stemmer=False)


def test_full_vocabulary_is_replaced_within_a_call(monkeypatch):
    rng = random.Random(7)
    words = [f"w{i}" for i in range(400)]
    texts = [" ".join(rng.choices(words, k=20)) for _ in range(60)]
    completions, references = zip(*[(a, b) for a in texts for b in texts[:3]], strict=True)
    expected = score_pairs(completions, references)
    rouge._vocabularies.clear()
    monkeypatch.setattr(rouge, "MAX_WORDS", 50)
    assert score_pairs(completions, references) == expected
    assert len(rouge._vocabularies[False]) < 50 + 41


def test_threads_share_the_vocabulary():
    rng = random.Random(8)
    words = [f"t{i}" for i in range(2000)]
    batches = [[" ".join(rng.choices(words, k=30)) for _ in range(60)] for _ in range(8)]
    expected = [score_pairs(batch, batch[::-1]) for batch in batches]
    rouge._vocabularies.clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda batch: score_pairs(batch, batch[::-1]), batches)) == expected


def test_repeated_pairs_and_order():
    texts = ["a b c", "a b", "a b c", "c b a"]
    scores = score_pairs(texts, ["a b c"] * 4, ["rougeL"])["rougeL"]
    assert [score.fmeasure for score in scores] == [1.0, 0.8, 1.0, 1 / 3]


def test_swapping_the_texts_swaps_precision_and_recall():
    """True of counts of n-grams and of LCS lengths, but not of the union LCS, which is taken per reference sentence."""
    rng = random.Random(9)
    texts = [random_text(rng, "abcde", 12) for _ in range(200)]
    variants = ["rouge1", "rouge2", "rougeL"]
    there, back = score_pairs(texts, texts[::-1], variants), score_pairs(texts[::-1], texts, variants)
    for variant in variants:
        swapped = [(score.recall, score.precision, score.fmeasure) for score in back[variant]]
        assert there[variant] == swapped


def test_reward_is_the_mean_of_the_f_measures_in_order():
    rng = random.Random(10)
    texts = [random_text(rng, WORDS, 20) for _ in range(300)]
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    reward = Rouge(use_stemmer=True)(completions=texts, references=[[text] for text in texts[::-1]], prompts=texts)
    for value, completion, reference in zip(reward, texts, texts[::-1], strict=True):
        score = scorer.score(reference, completion)
        assert value == (score["rouge1"].fmeasure + score["rouge2"].fmeasure + score["rougeL"].fmeasure) / 3


@pytest.mark.parametrize("variants", [("rouge1",), ("rouge1", "rouge2", "rougeL"), ("rougeL", "rougeLsum")])
def test_several_references(variants):
    rng = random.Random(11)
    completions = [random_text(rng, "abcdefg", 12, [" ", "\n"]) for _ in range(300)]
    references = [[random_text(rng, "abcdefg", 12) for _ in range(rng.randint(1, 4))] for _ in completions]
    scorer = RougeScorer(list(variants))
    best = Rouge(variants)(completions=completions, references=references)
    mean = Rouge(variants, multi_reference="mean")(completions=completions, references=references)
    for i, (completion, row) in enumerate(zip(completions, references, strict=True)):
        top = scorer.score_multi(row, completion)
        assert best[i] == add_up(top[v].fmeasure for v in variants) / len(variants)
        each = [scorer.score(reference, completion) for reference in row]
        means = [add_up(score[v].fmeasure for score in each) / len(row) for v in variants]
        assert mean[i] == add_up(means) / len(variants)


def test_empty_batch():
    assert Rouge()(completions=[], references=[]) == []
    assert score_pairs([], [], ["rougeL"]) == {"rougeL": []}


def test_rewards_are_floats():
    assert all(type(value) is float for value in Rouge()(completions=["", "a", "b"], references=[["a"], [""], ["b"]]))


def test_names_and_signatures():
    assert Rouge().name == "rouge"
    assert Rouge(use_stemmer=True).name == "rouge_stem"
    assert Rouge("rouge1").name == "rouge1"
    assert Rouge(["rougeLsum"], use_stemmer=True).name == "rougeLsum_stem"
    assert Rouge(["rouge1", "rougeLsum"]).name == "rouge1+rougeLsum"
    assert Rouge(["rougeL"]).signature.startswith("rougeL|f1|stem:no|refs:best|tok:rouge-score|v:")
    signature = Rouge(use_stemmer=True, multi_reference="mean").signature
    assert signature.startswith("rouge1+rouge2+rougeL|f1|stem:yes|refs:mean|tok:rouge-score|v:")


def test_pickles():
    reward = pickle.loads(pickle.dumps(Rouge(["rouge2"], use_stemmer=True)))
    assert reward(completions=["running cats"], references=[["run cat"]]) == [1.0]


def test_wrong_arguments_name_the_fix():
    with pytest.raises(UserError, match="Did you mean 'rougeL'"):
        Rouge(["rougel"])
    with pytest.raises(UserError, match="rouge0"):
        score_pairs(["a"], ["a"], ["rouge0"])
    with pytest.raises(UserError, match="best, mean"):
        Rouge(multi_reference="max")
    with pytest.raises(UserError, match="each once"):
        Rouge(["rouge1", "rouge1"])
    with pytest.raises(UserError, match="2 completions but 1"):
        Rouge()(completions=["a", "b"], references=[["a"]])
    with pytest.raises(UserError, match=r"references\[1\]"):
        Rouge()(completions=["a", "b"], references=[["a"], []])
    with pytest.raises(UserError, match=r"references\[0\]"):
        Rouge()(completions=["a"], references=["a"])


def test_nltk_is_imported_only_for_stems():
    code = (
        "import sys; from semioffline.rewards.rouge import Rouge\n"
        "Rouge()(completions=['a'], references=[['a']]); assert 'nltk' not in sys.modules\n"
        "Rouge(use_stemmer=True)(completions=['a'], references=[['a']]); assert 'nltk' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
