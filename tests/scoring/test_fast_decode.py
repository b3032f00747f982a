"""Decoding by pieces gives the tokenizer's own texts, whatever kind it is."""

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from semioffline.scoring.fast_decode import FastDecoder

CORPUS = [
    "the cat sat on the mat , and naïve résumés cost 5 € in Zürich",
    "日本語 のテキスト と emoji 🙂🙃 family 👨‍👩‍👧 flags 🇫🇷",
    "don't end-to-end x1 1x  two  spaces\tand\nlines",
] * 5


def train(kind: str) -> Any:
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"])
    elif kind == "word-piece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"])
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tokenizer.add_tokens(["<tool>", "naïve-token"])
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "fast"), [("byte-level", True), ("metaspace", True), ("word-level", True), ("word-piece", False)]
)
def test_texts_are_those_of_the_tokenizer(kind: str, fast: bool) -> None:
    """Random ids, special and added ones and halves of characters among them, and every text of the corpus."""
    tokenizer = train(kind)
    decoder = FastDecoder(tokenizer)
    assert decoder.is_fast == fast
    rng, size = random.Random(1), tokenizer.get_vocab_size()
    ids = [[rng.randrange(size) for _ in range(rng.randint(0, 30))] for _ in range(500)]
    start, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    ids += [[start, *tokenizer.encode(text).ids, end] for text in CORPUS]
    ids += [[], [start], [start, end], [end, start, 5, start], [tokenizer.token_to_id("<tool>")] * 3]
    texts = [text.strip() for text in tokenizer.decode_batch(ids, skip_special_tokens=True)]
    assert decoder.decode(ids) == texts
    for row, text in zip(ids, texts, strict=True):
        assert decoder.decode([row]) == [text]


def test_a_tokenizer_that_does_more_is_left_to_itself() -> None:
    """Its decoder is byte-level by name, but its vocabulary is not: the trial at the start finds out."""
    tokenizer = train("word-level")
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("e", 1, 1)])
    decoder = FastDecoder(tokenizer)
    assert not decoder.is_fast
    ids = [tokenizer.encode(text).ids for text in CORPUS]
    assert decoder.decode(ids) == [text.strip() for text in tokenizer.decode_batch(ids)]


def test_an_id_without_a_token_is_what_the_tokenizer_makes_of_it() -> None:
    tokenizer = train("byte-level")
    ids = [[5, 6, 10_000, 7]]
    assert FastDecoder(tokenizer).decode(ids) == [tokenizer.decode(ids[0]).strip()]


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "word-level", "word-piece"])
def test_samples_of_one_text_are_completed_as_if_each_was_decoded_alone(kind: str) -> None:
    """Places side by side, at the ends, everywhere and nowhere; special tokens among the draws and in the text."""
    tokenizer = train(kind)
    decoder = FastDecoder(tokenizer)
    rng, size = random.Random(2), tokenizer.get_vocab_size()
    end = tokenizer.token_to_id("</s>")
    for length, number in [(0, 0), (1, 0), (1, 1), (9, 0), (9, 9), *((12, n) for n in range(1, 12))]:
        static = [rng.randrange(size - 5) for _ in range(length)] + [end] * (number % 2)
        places = sorted(rng.sample(range(len(static)), number))
        draws = [[rng.randrange(size) for _ in range(6)] for _ in places]
        whole = [list(static) for _ in range(6)]
        for k, row in enumerate(whole):
            for place, drawn in zip(places, draws, strict=True):
                row[place] = drawn[k]
        assert decoder.complete(static, places, draws, 6) == decoder.decode(whole)
