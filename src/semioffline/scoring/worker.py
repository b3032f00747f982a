"""One process of the reward pool: completes and decodes samples, scores them with built-in rewards, writes the values.

python -m semioffline.scoring.worker is started by `reward_pool` and talks through its standard input and output. It
loads neither torch nor the user's program, and ends when its input does.

A message is two lengths (unsigned, 4 bytes each), a JSON text and bytes:
{"tokenizer": JSON}, answered by {};
{"rewards": names, "timeout": seconds, "groups": [[row, static ids, places, samples], ...], "columns": {name: one value
a group}}, which is known before the samples are drawn and is not answered;
then {} with the draws (int32, group after group), answered by {} with the values (float64, reward after reward) or by
{"error": text}.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypedDict

import numpy as np

if TYPE_CHECKING:
    from semioffline.rewards.contract import Reward
    from semioffline.scoring.fast_decode import FastDecoder

LENGTHS = struct.Struct("<II")


class PoolError(RuntimeError):
    """The error if a worker cannot answer."""


class Group(NamedTuple):
    """The samples of one text, which differ only at some positions."""

    row: int
    """Number of the input that they belong to."""
    static: np.ndarray
    """(T,) the text's token ids."""
    places: np.ndarray
    """(m,) the positions at which the samples differ."""
    many: int
    """K, the number of samples."""

    @property
    def size(self) -> int:
        """The number of its draws."""
        return len(self.places) * self.many

    def told(self, many: int | None = None) -> list[Any]:
        """Return the group in the form of a message, with only this many of its samples."""
        return [self.row, self.static.tolist(), self.places.tolist(), self.many if many is None else many]

    def ids(self, draws: np.ndarray) -> list[list[int]]:
        """Return K complete samples. draws: (m, K)."""
        whole = np.repeat(self.static[None], self.many, axis=0)
        whole[:, self.places] = draws.T
        return whole.tolist()


class Message(TypedDict, total=False):
    """The JSON text of a message: a tokenizer, texts to score, or an error."""

    tokenizer: str
    rewards: list[str]
    timeout: float | None
    groups: list[list[Any]]
    """Groups in the form of `Group.told`."""
    columns: dict[str, list[Any]]
    """One value for each group."""
    error: str


def read_groups(asked: Message) -> list[Group]:
    return [Group(row, np.array(s, np.int32), np.array(p, np.int64), many) for row, s, p, many in asked["groups"]]


def deal(groups: Sequence[Group], draws: np.ndarray) -> list[np.ndarray]:
    """Split all draws into those of each group, (m, K)."""
    ends = np.cumsum([group.size for group in groups]).tolist()
    starts = [0, *ends[:-1]]
    return [
        draws[start:end].reshape(len(group.places), group.many)
        for group, start, end in zip(groups, starts, ends, strict=True)
    ]


def encode_message(head: Message, payload: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return LENGTHS.pack(len(text), len(payload)) + text + payload


def read_message(stream: BinaryIO) -> tuple[Message, bytes] | None:
    """Read the next message; None if the other side has ended, even in the middle of a message."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    sizes = LENGTHS.unpack(lengths)
    text, payload = (stream.read(size) for size in sizes)
    return (json.loads(text), payload) if (len(text), len(payload)) == sizes else None


@cache
def _reward(name: str) -> Reward:
    from semioffline.scoring.named import find_reward

    return find_reward(name)[1]


def texts_of(decoder: FastDecoder, groups: Sequence[Group], draws: np.ndarray) -> list[str]:
    """Return the texts of all samples."""
    texts = []
    for group, own in zip(groups, deal(groups, draws), strict=True):
        texts += decoder.complete(group.static.tolist(), group.places.tolist(), own.tolist(), group.many)
    return texts


class Worker:
    """Decodes and scores samples in this process."""

    alive = True

    def __init__(self) -> None:
        self.decoder: FastDecoder | None = None
        self.asked: Message = {}
        self.groups: list[Group] = []

    def load(self, tokenizer: str) -> None:
        from tokenizers import Tokenizer

        from semioffline.scoring.fast_decode import FastDecoder

        self.decoder = FastDecoder(Tokenizer.from_str(tokenizer))

    def prepare(self, asked: Message) -> None:
        self.asked, self.groups = asked, read_groups(asked)

    def close(self) -> None:
        pass

    def score(self, draws: np.ndarray) -> bytes:
        """Return the values of a request."""
        from semioffline.scoring.calls import call_once, repeat

        asked, groups, decoder = self.asked, self.groups, self.decoder
        assert decoder is not None
        columns = repeat(asked["columns"], [group.many for group in groups]) | {
            "completions": texts_of(decoder, groups, draws)
        }
        rows = [group.row for group in groups for _ in range(group.many)]
        values = [call_once(name, _reward(name), columns, rows, asked["timeout"]) for name in asked["rewards"]]
        return np.array(values, np.float64).tobytes()


class Scoring(Protocol):
    """The interface of the object that `serve` runs: a worker that scores, or a dealer that distributes the work."""

    @property
    def alive(self) -> bool: ...
    def load(self, tokenizer: str) -> None: ...
    def prepare(self, asked: Message) -> None: ...
    def score(self, draws: np.ndarray) -> bytes: ...
    def close(self) -> None: ...


def serve(worker: Scoring) -> None:
    """Answer messages until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process, which then closes the pipe
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    problem: Exception | None = None
    while (message := read_message(source)) is not None:
        asked, payload = message
        try:
            if "groups" in asked:
                problem = None
                worker.prepare(asked)
                continue
            if "tokenizer" in asked:
                worker.load(asked["tokenizer"])
                answer = encode_message({})
            elif problem is not None:
                raise problem
            else:
                answer = encode_message({}, worker.score(np.frombuffer(payload, np.int32)))
        except Exception as error:
            if not worker.alive:
                return  # whoever waits for an answer sees that this process has ended
            if "groups" in asked:
                problem = error
                continue
            name = "" if isinstance(error, PoolError) else f"{type(error).__name__}: "
            answer = encode_message({"error": f"{name}{error}"})
        answers.write(answer)
        answers.flush()
    worker.close()


if __name__ == "__main__":
    serve(Worker())
