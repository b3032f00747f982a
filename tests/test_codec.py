"""What a policy's tokenizer says of single tokens."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from semioffline.policy.tokens import Codec

NOTHING, PART, JOINED_MARK, JOINED_WORD, MARK, WORD = range(6)
KINDS: dict[str, dict[str, int]] = {
    # T5, Llama: a space belongs to the token after it, or is one by itself
    "metaspace": {"?": JOINED_MARK, "▁": NOTHING, "ing": JOINED_WORD, "▁the": WORD, "▁(": MARK, "é": JOINED_WORD},
    # GPT-2, BART: the same, in bytes, of which one character may need several
    "byte-level": {"!": JOINED_MARK, "Ġ": NOTHING, "ing": JOINED_WORD, "Ġthe": WORD, "Ġ-": MARK, "Ã": PART},
    "word-piece": {",": MARK, "the": WORD, "##ing": JOINED_WORD},
    "word-level": {",": MARK, "the": WORD, "ing": WORD},
    # ByT5: no token has more than one character, and words are joined by one
    "characters": {".": JOINED_MARK, " ": NOTHING, "a": JOINED_WORD, "b": JOINED_WORD},
}  # fmt: skip


def codec(kind: str) -> Codec:
    numbers = {token: number for number, token in enumerate(KINDS[kind])}
    model: Any = models.WordLevel(numbers, unk_token=None)
    decoder: Any = None
    if kind == "metaspace":
        model, decoder = models.Unigram([(token, -1.0) for token in numbers]), decoders.Metaspace()
    elif kind == "byte-level":
        model, decoder = models.BPE(numbers, []), decoders.ByteLevel()
    elif kind == "word-piece":
        model, decoder = models.WordPiece(numbers), decoders.WordPiece(cleanup=False)
    elif kind == "characters":
        decoder = decoders.Fuse()
    backend = Tokenizer(model)
    if decoder is not None:
        backend.decoder = decoder
    found = Codec()
    found.tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_of_tokens(kind: str) -> None:
    """Whatever marks the beginning of a word in the tokenizer: it is read from the texts."""
    assert dict(zip(KINDS[kind], codec(kind).kinds_of(list(range(len(KINDS[kind])))), strict=True)) == KINDS[kind]


def test_tokens_without_a_word_have_kinds_too() -> None:
    """Such a vocabulary is of no use, but is no reason to fail."""
    assert codec("word-level").kinds_of([0]) == [MARK]
