"""ROUGE counted from token ids on the host is ROUGE of the texts, to the last bit."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from test_device_rouge import KINDS, expected, make_samples
from test_fast_decode import CORPUS, train
from tokenizers import Tokenizer, decoders, models

from semioffline.algorithm.tensors import Samples, Text
from semioffline.rewards.rouge import Rouge
from semioffline.scoring.fast_decode import FastDecoder
from semioffline.scoring.host_rouge import HostRouge, on_host
from semioffline.scoring.scorer import _groups

VARIANTS = ("rouge1", "rouge2", "rougeL")


def build(tokenizer: Any, variants: Any = VARIANTS) -> HostRouge:
    found = on_host(Rouge(variants), FastDecoder(tokenizer))
    assert found is not None
    return found


def values_of(rouge: HostRouge, samples: Samples, references: list[list[str]]) -> np.ndarray | None:
    groups, order = _groups(samples)
    return rouge(groups, samples.draws.numpy()[order].reshape(-1), references)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_texts(kind: str, seed: int) -> None:
    """Halves of characters, added and special tokens among the draws."""
    tokenizer, rng = train(kind), random.Random(seed)
    rouge, seen, counted = build(tokenizer), set(), 0
    for _ in range(25):
        samples = make_samples(tokenizer, rng, many=16)
        references = [
            [" ".join(rng.choice(CORPUS).split()[: rng.randint(0, 14)]) for _ in range(rng.randint(1, 3))]
            for _ in range(3)
        ]
        values = values_of(rouge, samples, references)
        if values is None:
            continue
        counted += 1
        assert np.array_equal(values, expected(tokenizer, samples, references).view(-1).numpy())
        seen |= set(values.tolist())
    assert counted >= 24, "only texts can tell where halves of a letter meet, which hardly ever happens"
    assert len(seen) > 30


@pytest.mark.parametrize("variants", [("rouge1",), ("rouge3", "rougeL"), ("rougeL", "rouge4", "rouge2")])
def test_any_variants_in_any_order(variants: tuple[str, ...]) -> None:
    tokenizer, rng = train("metaspace"), random.Random(5)
    samples, references = make_samples(tokenizer, rng, many=20), [[CORPUS[0]], [CORPUS[2]], [CORPUS[1]]]
    values = values_of(build(tokenizer, variants), samples, references)
    assert values is not None
    assert np.array_equal(values, expected(tokenizer, samples, references, variants).view(-1).numpy())


def byte_level(*pieces: str) -> Tokenizer:
    """Tokens that join without a space, each its own piece; \u0120 stands for a space."""
    tokenizer = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, unk_token=pieces[0]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def random_samples(ids: list[list[int]], size: int, many: int = 400) -> Samples:
    """About half of the places are drawn."""
    generator = torch.Generator().manual_seed(0)
    text = torch.tensor(ids)
    hidden = torch.rand(text.shape, generator=generator) < 0.6
    draws = torch.randint(size, (int(hidden.sum()), many), generator=generator)
    return Samples(Text(text, torch.ones_like(hidden), text), hidden, draws)


def test_words_of_many_pieces_are_put_together() -> None:
    """They begin in one token and end in another, or go through several; the dotted I becomes an i, and ends a word."""
    pieces = ["ab", "c", "Ġab", ",", "Ġ", "cĠab", "Ä°", "K", "0"]
    tokenizer = byte_level(*pieces)
    samples = random_samples([[2, 0, 1, 5, 0, 8], [7, 6, 0, 3, 1, 4]], len(pieces))
    references = [["abc ab abab cab k0"], ["ki abc, c 0 ab"]]
    values = values_of(build(tokenizer), samples, references)
    assert values is not None
    assert np.array_equal(values, expected(tokenizer, samples, references).view(-1).numpy())
    assert len(set(values.tolist())) > 20


def test_letters_that_tokens_may_spell_together_are_left_to_the_text() -> None:
    """The two bytes of the dotted I in two tokens. Apart they are no letters."""
    tokenizer = byte_level("ab", "Ä", "°", "Ġ")
    rouge = build(tokenizer)
    meet, apart = random_samples([[0, 1, 2, 0]], 4), random_samples([[0, 1, 0, 1, 3]], 2)
    assert values_of(rouge, meet, [["abi ab"]]) is None
    values = values_of(rouge, apart, [["abi ab"]])
    assert values is not None
    assert np.array_equal(values, expected(tokenizer, apart, [["abi ab"]]).view(-1).numpy())


def test_what_only_texts_can_tell_is_left_to_them() -> None:
    tokenizer, rng = train("word-level"), random.Random(3)
    rouge = build(tokenizer)
    many, few = make_samples(tokenizer, rng, many=16), make_samples(tokenizer, rng, many=15)
    assert values_of(rouge, many, [[CORPUS[0]]] * 3) is not None
    assert values_of(rouge, few, [[CORPUS[0]]] * 3) is None, "few samples are faster one by one"
    assert on_host(Rouge(use_stemmer=True), FastDecoder(tokenizer)) is None
    assert on_host(Rouge(multi_reference="mean"), FastDecoder(tokenizer)) is None
    assert on_host(Rouge("rougeLsum"), FastDecoder(tokenizer)) is None
    assert on_host(len, FastDecoder(tokenizer)) is None
    assert on_host(Rouge(), None) is None
