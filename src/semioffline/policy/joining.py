"""Tokenise a target that follows a prompt in one text, as decoder-only models see it."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedTokenizerBase


class Context(NamedTuple):
    """Text to put before a target for tokenising, and the number of its tokens, which are then removed."""

    text: str
    size: int


NO_CONTEXT = Context("", 0)


def separator(prompt: str) -> str:
    """Return what joins a target to its prompt: a space, or nothing if the prompt is empty or ends in white space."""
    return " " if prompt and not prompt[-1].isspace() else ""


def context_of(tokenizer: PreTrainedTokenizerBase, white_space: str) -> Context:
    """Return the context for tokenising a target whose prompt ends in this white space (none: a space joins them).

    Tokenizers of the Llama 2 type put "\u2581" before every text. A target that is tokenised alone would get a second
    one after its space, or a wrong one after a line break. After the context it gets none. Byte-level tokenizers need
    no context: the target's tokens are the same with and without.
    """
    joint = "" if white_space else " "
    alone = _ids(tokenizer, joint + "a")
    for before in ("a" + white_space, "a\n"):  # after a space that is a token of its own, as after a line break
        ids, whole = _ids(tokenizer, before), _ids(tokenizer, before + joint + "a")
        if ids and whole[: len(ids)] == ids:
            return NO_CONTEXT if whole[len(ids) :] == alone else Context(before, len(ids))
    return NO_CONTEXT


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
