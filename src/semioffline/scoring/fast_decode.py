"""Decode token ids by looking up the text of each token: several times faster than a tokenizer's general decoder.

A step decodes K samples of every input. For the usual decoders (byte-level, SentencePiece's, none at all) the text is
the concatenation of the tokens' texts. This is tested on random ids when a tokenizer is loaded. If it does not hold,
the tokenizer's own decoder is used. The module needs only Python and `tokenizers`, because it runs in worker processes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

TRIES = 200


class FastDecoder:
    """Converts lists of ids to texts, without special tokens and without white space around them."""

    def __init__(self, tokenizer: Any):
        """tokenizer: a tokenizers.Tokenizer."""
        self.tokenizer = tokenizer
        settings = json.loads(tokenizer.to_str())
        self.special = {token["id"] for token in settings["added_tokens"] if token["special"]}
        kind = (settings.get("decoder") or {}).get("type")
        self.pieces: list[bytes] = []
        """The text of each token; None if texts are not the concatenation of these."""
        self.between = b" " if kind is None else b""
        make = _PIECES.get(kind)
        if make is not None:
            size = tokenizer.get_vocab_size(with_added_tokens=True)
            tokens = [tokenizer.id_to_token(n) for n in range(size)]
            self.pieces = [b"" if n in self.special or t is None else make(t) for n, t in enumerate(tokens)]
            if not self._agrees():
                self.pieces = []

    @property
    def is_fast(self) -> bool:
        return bool(self.pieces)

    def decode(self, ids: Sequence[list[int]]) -> list[str]:
        if not self.pieces:
            return self._decode_slowly(ids)
        piece, between = self.pieces.__getitem__, self.between
        try:
            if between and any(not self.special.isdisjoint(row[1:-1]) for row in ids):
                return self._decode_slowly(ids)  # a token that is left out takes its space along
            return [between.join(map(piece, row)).decode("utf-8", "replace").strip() for row in ids]
        except IndexError:  # an id without a token
            return self._decode_slowly(ids)

    def complete(self, static: list[int], places: list[int], draws: Sequence[list[int]], many: int) -> list[str]:
        """Return the texts of `many` samples that differ from `static` at `places` only. draws: a list of tokens for
        each place.

        The text between the places is decoded once.
        """
        rows = zip(*draws, strict=True) if places else iter([()] * many)
        if not self.pieces or not places or (self.between and self._leaves_out(static, draws)):
            return self.decode([_fill(static, places, row) for row in rows])
        piece, between = self.pieces.__getitem__, self.between
        parts: list[Iterable[bytes]] = []
        before = 0
        try:
            for place, drawn in zip([*places, len(static)], [*draws, None], strict=True):
                if before < place:
                    parts.append(repeat(between.join(map(piece, static[before:place])), many))
                if drawn is not None:
                    parts.append(map(piece, drawn))
                before = place + 1
            return [between.join(row).decode("utf-8", "replace").strip() for row in zip(*parts, strict=True)]
        except IndexError:  # an id without a token
            return self._decode_slowly([_fill(static, places, row) for row in rows])

    def _leaves_out(self, static: list[int], draws: Sequence[list[int]]) -> bool:
        """Return whether a token inside the text may be left out, which would also remove its space."""
        return not self.special.isdisjoint(static[1:-1]) or not all(map(self.special.isdisjoint, draws))

    def _decode_slowly(self, ids: Sequence[list[int]]) -> list[str]:
        return [text.strip() for text in self.tokenizer.decode_batch(ids, skip_special_tokens=True)]

    def _agrees(self) -> bool:
        rng = random.Random(0)
        tries = [[rng.randrange(len(self.pieces)) for _ in range(n % 40)] for n in range(TRIES)]
        tries += [[n] for n in sorted(self.special)]
        return self.decode(tries) == self._decode_slowly(tries)


def _fill(static: list[int], places: list[int], drawn: Sequence[int]) -> list[int]:
    row = list(static)
    for place, token in zip(places, drawn, strict=True):
        row[place] = token
    return row


def _byte_level() -> dict[str, int]:
    """Return the characters that represent bytes in byte-level vocabularies: themselves if printable, else from 256
    on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_level()


def _from_byte_level(token: str) -> bytes:
    known = [_BYTES.get(character) for character in token]
    return token.encode() if None in known else bytes(known)  # type: ignore[arg-type]


_PIECES: dict[str | None, Callable[[str], bytes]] = {
    None: str.encode,
    "ByteLevel": _from_byte_level,
    "Metaspace": lambda token: token.replace("▁", " ").encode(),
}
"""type of decoder -> function from a token to its text"""
