"""One process of the reward pool: completes and decodes samples, scores them with built-in rewards, writes the values.

python -m semioffline.reward_worker is started by `reward_pool` and talks through its standard input and output. It
loads neither torch nor the user's program, and ends when its input does.

A message is two lengths (unsigned, 4 bytes each), a JSON text and bytes. Asked: {"rewards": names, "timeout": seconds,
"groups": [[row, static ids, places, samples], ...], "columns": {name: one value a group}} with the groups' draws
(int32), or {"tokenizer": JSON}. Answered: {} with the values (float64, reward after reward), or {"error": text}.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from functools import cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np

LENGTHS = struct.Struct("<II")


class PoolError(RuntimeError):
    """A worker could not answer."""


class Group(NamedTuple):
    """Samples that share a text but for the tokens at some places."""

    row: int
    """The input that they belong to."""
    static: np.ndarray
    """(T,) the text's token ids."""
    places: np.ndarray
    """(m,) where the samples have tokens of their own."""
    draws: np.ndarray
    """(m, K) these tokens, int32."""

    def ids(self) -> list[list[int]]:
        """K complete samples."""
        whole = np.repeat(self.static[None], self.draws.shape[1], axis=0)
        whole[:, self.places] = self.draws.T
        return whole.tolist()


def encode_message(head: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return LENGTHS.pack(len(text), len(payload)) + text + payload


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """None when the other side is gone."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    text, payload = (stream.read(length) for length in LENGTHS.unpack(lengths))
    return json.loads(text), payload


@cache
def _reward(name: str) -> Any:
    from semioffline.rewards import load_reward

    return load_reward(name)[1]


def read_groups(asked: dict[str, Any], payload: bytes) -> list[Group]:
    groups, start, draws = [], 0, np.frombuffer(payload, np.int32)
    for row, static, places, many in asked["groups"]:
        end = start + len(places) * many
        own = draws[start:end].reshape(len(places), many)
        groups.append(Group(row, np.array(static, np.int32), np.array(places, np.int64), own))
        start = end
    return groups


class Worker:
    """Decodes and scores in this process."""

    alive = True

    def __init__(self) -> None:
        self.decoder: Any = None

    def load(self, tokenizer: str) -> None:
        from tokenizers import Tokenizer

        from semioffline.fast_decode import FastDecoder

        self.decoder = FastDecoder(Tokenizer.from_str(tokenizer))

    def score(self, asked: dict[str, Any], payload: bytes) -> bytes:
        return score(self.decoder, asked, payload)


def score(decoder: Any, asked: dict[str, Any], payload: bytes) -> bytes:
    """The values of one message."""
    from semioffline.reward_calls import call_once, repeat

    groups = read_groups(asked, payload)
    counts = [group.draws.shape[1] for group in groups]
    texts = []
    for group, many in zip(groups, counts, strict=True):
        texts += decoder.complete(group.static.tolist(), group.places.tolist(), group.draws.tolist(), many)
    columns = repeat(asked["columns"], counts) | {"completions": texts}
    rows = [group.row for group, many in zip(groups, counts, strict=True) for _ in range(many)]
    values = [call_once(name, _reward(name), columns, rows, asked["timeout"]) for name in asked["rewards"]]
    return np.array(values, np.float64).tobytes()


def serve(worker: Any) -> None:
    """Answer messages until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process, which then closes the pipe
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    while (message := read_message(source)) is not None:
        asked, payload = message
        try:
            if "tokenizer" in asked:
                worker.load(asked["tokenizer"])
                answer = encode_message({})
            else:
                answer = encode_message({}, worker.score(asked, payload))
        except Exception as error:
            if not worker.alive:
                return  # whoever waits for an answer sees that this process has ended
            name = "" if isinstance(error, PoolError) else f"{type(error).__name__}: "
            answer = encode_message({"error": f"{name}{error}"})
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    serve(Worker())
