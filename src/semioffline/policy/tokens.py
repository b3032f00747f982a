"""Convert text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from semioffline.policy.joining import NO_CONTEXT, Context, context_of, separator


class Encoded(NamedTuple):
    """One tokenised text."""

    ids: list[int]
    words: list[int]
    truncated: bool
    offsets: Sequence[tuple[int, int]] = ()
    """For each token, the characters of the text that it covers; empty if they were not requested."""


class Codec:
    """Encodes and decodes text for one model, and knows the special token ids.

    Args:
        mask_id: the id of the mask token, which `loading.add_mask_token` gives.
        is_encoder_decoder: the kind of the model. It decides how sources and targets are encoded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mask_id: int, is_encoder_decoder: bool):
        self.tokenizer = tokenizer
        self.mask_id = mask_id
        pad_id = tokenizer.pad_token_id
        self.pad_id: int = tokenizer.eos_token_id if pad_id is None else pad_id
        self._is_encoder_decoder = is_encoder_decoder

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_token_id

    def allowed_ids(self, size: int) -> Tensor:
        """Return (V,), True at ids that may be drawn: tokens of the tokenizer that are not special. size: V."""
        special = set(self.tokenizer.all_special_ids)
        special |= {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        ids = [i for i in self.tokenizer.get_vocab().values() if i < size and i not in special]
        allowed = torch.zeros(size, dtype=torch.bool)
        allowed[ids] = True
        return allowed

    def encode_sources(self, texts: Sequence[str], max_length: int, truncation_side: str = "right") -> list[Encoded]:
        """Tokenise prompts. Those of decoder-only models get at least one token."""
        encoded = self._encode(list(texts), max_length, truncation_side)
        if self._is_encoder_decoder:
            return encoded
        start = self.tokenizer.bos_token_id
        start = self.eos_id if start is None else start
        return [e if e.ids else Encoded([start], [-1], False) for e in encoded]

    def encode_targets(
        self, texts: Sequence[str], prompts: Sequence[str], max_length: int, with_offsets: bool = False
    ) -> list[Encoded]:
        """Tokenise targets, with EOS at the end. In decoder-only models a space joins a target to a prompt that does
        not end in white space.

        with_offsets: also return the characters of each token, in the text without white space around it.
        """
        texts = [text.strip() for text in texts]
        eos = self.eos_id
        if self._is_encoder_decoder:
            encoded = self._encode(texts, max_length, "right", target=True, offsets=with_offsets)
            if all(eos in e.ids for e in encoded):
                return encoded
            # the tokenizer's template adds none
            encoded = self._encode(texts, max_length - 1, "right", target=True, offsets=with_offsets)
            return [self._ended(e) for e in encoded]
        contexts = [prompt[len(prompt.rstrip()) :] if prompt else None for prompt in prompts]
        known = {end: NO_CONTEXT if end is None else context_of(self.tokenizer, end) for end in set(contexts)}
        joints = [separator(prompt) for prompt in prompts]
        joined = [joint + text for joint, text in zip(joints, texts, strict=True)]
        encoded = self._encode_behind([known[end] for end in contexts], joined, max_length - 1, with_offsets)
        return [self._ended(_moved(e, len(joint))) for e, joint in zip(encoded, joints, strict=True)]

    def _ended(self, text: Encoded) -> Encoded:
        """Add EOS, which covers no character."""
        offsets = [*text.offsets, (0, 0)] if text.offsets else ()
        return Encoded([*text.ids, self.eos_id], [*text.words, -1], text.truncated, offsets)

    def _encode_behind(
        self, contexts: list[Context], texts: list[str], max_length: int, offsets: bool
    ) -> list[Encoded]:
        """Tokenise each text after its context, and remove the tokens of the context."""
        encoded: dict[int, Encoded] = {}
        for context in dict.fromkeys(contexts):
            chosen = [n for n, own in enumerate(contexts) if own == context]
            found = self._encode(
                [context.text + texts[n] for n in chosen], max_length + context.size, "right", False, False, offsets
            )
            for n, (ids, words, truncated, places) in zip(chosen, found):
                first = min((word for word in words[context.size :] if word >= 0), default=0) if context.size else 0
                words = [word if word < 0 else word - first for word in words[context.size :]]
                own = Encoded(ids[context.size :], words, truncated, places[context.size :])
                encoded[n] = _moved(own, len(context.text))
        return [encoded[n] for n in sorted(encoded)]

    def _encode(
        self,
        texts: list[str],
        max_length: int,
        side: str,
        target: bool = False,
        special: bool = True,
        offsets: bool = False,
    ) -> list[Encoded]:
        def run(texts: list[str], cut: bool, **kwargs: Any) -> list[Encoded]:
            given = {"text_target": texts} if target else {"text": texts}
            out = self.tokenizer(**given, add_special_tokens=special, verbose=False, **kwargs)
            return [
                Encoded(ids, self._words(out, i, ids), cut, out[i].offsets if offsets else ())
                for i, ids in enumerate(out["input_ids"])
            ]

        encoded = run(texts, False) if texts else []
        long = [i for i, e in enumerate(encoded) if len(e.ids) > max_length]
        if long:
            side_before, self.tokenizer.truncation_side = self.tokenizer.truncation_side, side
            try:
                cut = run([texts[i] for i in long], True, truncation=True, max_length=max_length)
            finally:
                self.tokenizer.truncation_side = side_before
                if self.tokenizer.is_fast:
                    self.tokenizer.backend_tokenizer.no_truncation()
            for i, text in zip(long, cut, strict=True):
                encoded[i] = text
        return encoded

    def _words(self, out: Any, number: int, ids: list[int]) -> list[int]:
        """Return the number of the word that each token belongs to; -1 at special tokens. Without a fast tokenizer
        every token is a word."""
        special = set(self.tokenizer.all_special_ids)
        if not self.tokenizer.is_fast:
            return [-1 if token in special else i for i, token in enumerate(ids)]
        words = out.word_ids(number)
        if len({word for word in words if word is not None}) == 1:  # a pre-tokenizer that does not split at spaces
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            starts = [i == 0 or str(token).startswith(("▁", "Ġ", " ")) for i, token in enumerate(tokens)]
            words = [None if word is None else number for word, number in zip(words, accumulate(starts), strict=True)]
        return [-1 if word is None or token in special else word for word, token in zip(words, ids, strict=True)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return plain texts, without special tokens (the mask token is one) and without white space around them."""
        if self.tokenizer.is_fast:
            texts = self.tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=True)
        else:
            texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [text.strip() for text in texts]

    def pieces(self, pairs: Sequence[tuple[int, int]]) -> list[str]:
        """Return the text that the second token of each pair adds to the first, including the space between them."""
        firsts, both = [[first] for first, _ in pairs], [list(pair) for pair in pairs]
        before, whole, alone = (self._with_special(ids) for ids in (firsts, both, [[second] for _, second in pairs]))
        shown = zip(before, whole, alone, strict=True)
        return [text.removeprefix(first) if text.startswith(first) else own for first, text, own in shown]

    def _with_special(self, ids: list[list[int]]) -> list[str]:
        if self.tokenizer.is_fast:
            return self.tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=False)
        return self.tokenizer.batch_decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def show(self, ids: list[int]) -> str:
        """Return a text with its special tokens, for the log of masked targets."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False)).strip()


def _moved(text: Encoded, characters: int) -> Encoded:
    """Shift offsets to the left, for a text without its first characters."""
    return text._replace(
        offsets=[(max(start - characters, 0), max(end - characters, 0)) for start, end in text.offsets]
    )
