"""Many completions counted in one go give the numbers of single pairs, to the last bit."""

import random

import pytest

from semioffline.rewards.rouge import MANY, Rouge, _vocabulary, score_pairs
from semioffline.rewards.rouge_batch import RougeBatch

VARIANTS = ("rouge1", "rouge2", "rouge3", "rouge4", "rougeL")
WORDS = "the cat sat on a mat and then running runner ran İstanbul kelvin K Σας naïve x1 1x don't end-to-end".split()
ODD = ["", " ", "...", "|", "the | cat", "the", "THE the The", "日本語", "a\nb\nc", "cat\x00mat", "\x1f", "K", "ß"]


def text(rng: random.Random, longest: int = 40) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(0, longest)))


@pytest.mark.parametrize("stem", [False, True])
def test_counts_are_those_of_single_pairs(stem: bool) -> None:
    rng = random.Random(0)
    references = [text(rng) for _ in range(12)] + ODD
    completions = [[text(rng) for _ in range(rng.randint(0, 20))] + rng.sample(ODD, 5) for _ in references]
    pairs = [(c, r) for r, own in zip(references, completions, strict=True) for c in own]
    expected = score_pairs(*zip(*pairs, strict=True), VARIANTS, stem)  # type: ignore[arg-type]
    batch = RougeBatch.of_texts(references, completions, _vocabulary(stem))
    for variant in VARIANTS:
        assert batch.f_measures(variant).tolist() == [score.fmeasure for score in expected[variant]]


def test_a_long_reference_has_too_many_n_grams_for_a_table() -> None:
    rng = random.Random(1)
    words = [f"w{n}" for n in range(3000)]
    reference = " ".join(rng.choices(words, k=2000))
    own = [" ".join(rng.choices(words, k=50) + reference.split()[n : n + 50]) for n in range(20)]
    batch = RougeBatch.of_texts([reference], [own], _vocabulary(False))
    expected = score_pairs(own, [reference] * 20, VARIANTS)
    for variant in VARIANTS:
        assert batch.f_measures(variant).tolist() == [score.fmeasure for score in expected[variant]]
        assert batch.f_measures(variant).max() > 0


@pytest.mark.parametrize("variants", [("rouge1", "rouge2", "rougeL"), ("rougeLsum",), ("rouge2", "rouge7")])
@pytest.mark.parametrize("multi_reference", ["best", "mean"])
def test_rewards_do_not_depend_on_what_is_scored_together(variants: tuple, multi_reference: str) -> None:
    """Rows with many samples and few, one reference and several, in any order."""
    rng = random.Random(2)
    reward = Rouge(variants, multi_reference=multi_reference)  # type: ignore[arg-type]
    shared = [text(rng) for _ in range(3)]
    rows = [(text(rng), [shared[0]]) for _ in range(2 * MANY)]
    rows += [(text(rng), [shared[1], text(rng)]) for _ in range(MANY + 3)] + [
        (text(rng), [text(rng)]) for _ in range(9)
    ]
    rng.shuffle(rows)
    together = reward(completions=[c for c, _ in rows], references=[r for _, r in rows])
    alone = [reward(completions=[c], references=[r])[0] for c, r in rows]
    assert together == alone
