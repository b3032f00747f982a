"""Score samples: on the device, in other processes, or in this process."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semioffline.algorithm.losses import equal_rewards
from semioffline.algorithm.tensors import Batch, HostCopy, Samples, send
from semioffline.config import MethodConfig
from semioffline.cuda.functions import Replayed
from semioffline.policy.policy import Policy
from semioffline.scoring.calls import columns_for, repeat, reward_columns
from semioffline.scoring.device_rouge import DeviceRouge, on_device
from semioffline.scoring.fast_decode import FastDecoder
from semioffline.scoring.host_rouge import HostRouge, on_host
from semioffline.scoring.pool import Asked, spare_workers, start_pool
from semioffline.scoring.reward_set import RewardSet, Values
from semioffline.scoring.worker import Group, PoolError, deal, texts_of

logger = logging.getLogger(__name__)


DESCRIBED = ("reward", "reward_std", "frac_reward_zero_std", "frac_reward_none", "rows_without_reward")


def _summarise(rewards: Tensor, *parts: Tensor) -> Tensor:
    """Return the numbers of `describe`, then the mean and the standard deviation of each part, in one tensor."""
    floats = [part.float() for part in parts]
    each = [number for part in floats for number in (part.nanmean(), _std(part.view(1, -1)).squeeze())]
    return torch.stack([*describe(rewards).values(), *each])


@dataclass
class Scores:
    """Rewards of samples, with their parts and texts."""

    rewards: Tensor
    """(B, K), NaN where a sample is left out."""
    parts: Mapping[str, Values | Tensor]
    """For each reward function, its B * K values."""
    decode: Callable[[], list[str]]
    """Decodes the samples. It is called only when completions are logged."""
    seconds: float = 0.0
    """Seconds that scoring took."""
    summarise: Callable[..., Tensor] = _summarise
    """`_summarise`, or its CUDA-graph version."""

    ready = True
    waited = 0.0

    @cached_property
    def texts(self) -> list[list[str]]:
        """B lists of K samples."""
        texts, many = self.decode(), self.rewards.shape[1]
        return [texts[i : i + many] for i in range(0, len(texts), many)]

    @cached_property
    def metrics(self) -> dict[str, float | Tensor]:
        """Reward metrics for the log. They are tensors on the device if they were computed there."""
        on_device = [values for values in self.parts.values() if isinstance(values, Tensor)]
        parts = on_device or [torch.tensor(values, dtype=torch.float64) for values in self.parts.values()]
        values = self.summarise(self.rewards if on_device else self.rewards.cpu(), *parts)
        names = [*DESCRIBED, *(f"rewards/{name}/{what}" for name in self.parts for what in ("mean", "std"))]
        numbers: Any = values.unbind() if on_device else values.tolist()
        return dict(zip(names, numbers, strict=True)) | {"time/reward": self.seconds}


class PendingScores:
    """Scores that are still being computed. Reading them waits for them. An error of a reward function is raised
    then."""

    def __init__(self, future: Future[Scores]):
        self._future = future
        self.waited = 0.0
        """Seconds spent waiting for them."""

    @property
    def ready(self) -> bool:
        return self._future.done()

    def _wait(self) -> Scores:
        started = time.perf_counter()
        try:
            return self._future.result()
        finally:
            self.waited += time.perf_counter() - started

    @property
    def rewards(self) -> Tensor:
        return self._wait().rewards

    @property
    def texts(self) -> list[list[str]]:
        return self._wait().texts

    @property
    def metrics(self) -> dict[str, float | Tensor]:
        return self._wait().metrics | {"time/reward_wait": self.waited}


class Scorer:
    """Scores the samples of a batch for a method.

    overlap: scoring runs in a thread, and reading the scores waits for it. workers: number of processes that decode
    samples and compute built-in rewards. on_device: compute rewards on the samples' device if possible. replay: makes a
    version of a function that runs as CUDA graphs. None of these changes a result.
    """

    def __init__(
        self,
        policy: Policy,
        reward_set: RewardSet,
        overlap: bool = False,
        workers: int = 0,
        on_device: bool = False,
        replay: Callable[..., Any] | None = None,
    ):
        self.policy = policy
        self.reward_set = reward_set
        self.overlap = overlap
        self.on_device = on_device
        self._replay = replay
        self._summarise = _summarise if replay is None else replay(_summarise)
        self._lock = threading.Lock()  # reward functions are called one at a time
        self._calls = 0  # texts that they were called with, the last time
        self.workers = workers if reward_set.built_in and policy.tokens.tokenizer.is_fast else 0

    def start_workers(self) -> None:
        """Start the worker processes now, so that they are ready when the first samples come."""
        if self.workers and not (self.on_device and self._device_rewards):
            start_pool(self.workers)

    @cached_property
    def _tokenizer(self) -> str:
        return self.policy.tokens.tokenizer.backend_tokenizer.to_str()  # type: ignore[attr-defined]

    def __call__(self, samples: Samples, batch: Batch) -> Scores | PendingScores:
        if self.on_device and (found := self._score_on_device(samples, batch)) is not None:
            return found
        if samples.end_id is not None:
            ids = samples.token_lists()
            return self.score_ids(ids, batch, len(ids) // len(batch))
        draws = HostCopy(samples.draws.int())

        def score() -> Scores:
            groups, order = _groups(samples)
            return self._score(groups, lambda: draws.wait().numpy()[order].reshape(-1), batch)

        if not self.overlap:
            return score()
        future: Future[Scores] = Future()

        def work() -> None:
            try:
                if self.policy.device.type == "cuda":
                    torch.cuda.set_device(self.policy.device)  # a new thread starts with the first device
                future.set_result(score())
            except BaseException as error:  # raised again where the scores are read
                future.set_exception(error)

        threading.Thread(target=work, name="rewards", daemon=True).start()
        return PendingScores(future)

    @cached_property
    def _device_rewards(self) -> dict[str, DeviceRouge]:
        """The device versions of all reward functions; empty if one of them has none."""
        if self._decoder is None:
            return {}
        given = {
            name: on_device(function, self._decoder, self.policy.device, self._replay)
            for name, function in self.reward_set.functions.items()
        }
        found = {name: reward for name, reward in given.items() if reward is not None}
        return found if len(found) == len(given) else {}

    def _score_on_device(self, samples: Samples, batch: Batch) -> Scores | None:
        """Compute rewards on the device, without waiting. Return None if only the host can compute them for this
        batch."""
        started = time.perf_counter()
        parts: dict[str, Tensor] = {}
        for name, reward in self._device_rewards.items():
            values = reward(samples, batch.columns["references"])
            if values is None:
                return None
            parts[name] = values.view(-1)
        if not parts:
            return None
        rewards = self.reward_set.add_tensors(parts).float().view(len(batch), -1)

        def decode() -> list[str]:
            if samples.end_id is not None:
                return self.policy.tokens.decode(samples.token_lists())
            groups, order = _groups(samples)
            draws = samples.draws.int().cpu().numpy()[order].reshape(-1)
            return self._decode(groups, draws)

        return Scores(rewards, parts, decode, time.perf_counter() - started, self._summarise)

    def score_ids(self, ids: list[list[int]], batch: Batch, many: int) -> Scores:
        """Score B * K token lists, the K samples of a row together. This waits for the scores, because the caller has
        nothing else to do."""
        nowhere = np.zeros(0, np.int64)
        groups = [Group(n // many, np.array(row, np.int32), nowhere, 1) for n, row in enumerate(ids)]
        return self._score(groups, lambda: np.zeros(0, np.int32), batch)

    def _score(self, groups: list[Group], wait: Callable[[], np.ndarray], batch: Batch) -> Scores:
        """Score groups of samples. wait: returns the draws, group after group, when they are there."""
        with self._lock:
            self._calls = 0
            draws, started, parts = self._values(groups, wait, batch)
            self.policy.meter.counts["reward_calls"] += self._calls or distinct_samples(groups, draws)
        rewards = torch.from_numpy(self.reward_set.add(parts)).float().view(len(batch), -1)
        seconds = time.perf_counter() - started
        return Scores(send(rewards, batch.index.device), parts, lambda: self._decode(groups, draws), seconds)

    def _values(
        self, groups: list[Group], wait: Callable[[], np.ndarray], batch: Batch
    ) -> tuple[np.ndarray, float, dict[str, Values]]:
        """Return the draws, the time they arrived, and the values of each reward. Workers score the built-in rewards
        while this process scores the others. If a worker fails, this process scores everything, so that users see the
        same error as without workers."""
        elsewhere = list(self.reward_set.built_in) if self.workers else []
        draws: np.ndarray | None = None
        started = time.perf_counter()
        asked = None
        try:
            asked = self._ask_workers(groups, batch) if elsewhere else None
            draws, started = wait(), time.perf_counter()
            if asked is not None:
                asked.send(draws)
            parts = self._call(groups, draws, batch, but=elsewhere)
            if asked is not None:
                parts |= dict(zip(elsewhere, asked.values(), strict=True))
        except PoolError as error:
            logger.warning("the worker processes failed, so rewards are computed in the training process: %s", error)
            draws = wait() if draws is None else draws
            parts = self._call(groups, draws, batch, but=())
        finally:
            if asked is not None:
                asked.close()
        return draws, started, parts

    def _call(self, groups: list[Group], draws: np.ndarray, batch: Batch, but: Sequence[str]) -> dict[str, Values]:
        """Score in this process."""
        counted: dict[str, Values] = {}
        if len(but) == len(self.reward_set.functions):
            return {}
        for name, reward in self._host_rewards.items():
            values = None if name in but else reward(groups, draws, batch.columns["references"])
            if values is not None:
                counted[name] = values
        return {**counted, **self._read_texts(groups, draws, batch, [*but, *counted])}

    def _read_texts(
        self, groups: list[Group], draws: np.ndarray, batch: Batch, but: Sequence[str]
    ) -> dict[str, Values]:
        """Score the texts of the samples."""
        if len(but) == len(self.reward_set.functions):
            return {}
        many = sum(group.many for group in groups) // len(batch)
        texts = self._decode(groups, draws)
        if len(self.reward_set.built_in) == len(self.reward_set.functions):  # they ask for no ids
            columns = repeat(batch.columns, [many] * len(batch)) | {"completions": texts}
        else:
            columns = reward_columns(batch.columns, texts, _token_lists(groups, draws), many)
        values = self.reward_set.call(columns, [b for b in range(len(batch)) for _ in range(many)], but)
        self._calls = self.reward_set.calls
        return {**values}

    @cached_property
    def _host_rewards(self) -> dict[str, HostRouge]:
        """The reward functions that are computed from token ids."""
        found = {name: on_host(function, self._decoder) for name, function in self.reward_set.functions.items()}
        return {name: reward for name, reward in found.items() if reward is not None}

    def _decode(self, groups: list[Group], draws: np.ndarray) -> list[str]:
        """Return the texts of all samples."""
        if self._decoder is None:
            return self.policy.tokens.decode(_token_lists(groups, draws))
        return texts_of(self._decoder, groups, draws)

    @cached_property
    def _decoder(self) -> FastDecoder | None:
        tokenizer: Any = self.policy.tokens.tokenizer
        return FastDecoder(tokenizer.backend_tokenizer) if tokenizer.is_fast else None

    def _ask_workers(self, groups: list[Group], batch: Batch) -> Asked:
        """Let other processes score built-in rewards. The request is sent before the samples are drawn."""
        names = self.reward_set.built_in
        needed = columns_for([self.reward_set.functions[name] for name in names], batch.columns)
        pool, timeout = start_pool(self.workers), self.reward_set.timeout
        return pool.ask(self._tokenizer, list(names.values()), groups, needed, timeout)


def make_scorer(policy: Policy, reward_set: RewardSet, args: MethodConfig, needs_reward: bool) -> Scorer:
    """Return the scorer of a run. Rewards are computed in parallel with the model if it runs on an accelerator, or if
    reward_workers is above 0: a model on the CPU would share its cores with them. A CUDA device computes the rewards
    that it can."""
    workers = args.reward_workers
    if workers is None:
        workers = 0 if args.device.type == "cpu" else spare_workers(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return Scorer(
        policy,
        reward_set,
        overlap=args.overlap_rewards and (args.device.type != "cpu" or workers > 0),
        workers=workers if needs_reward else 0,
        on_device=args.overlap_rewards and args.device.type == "cuda",
        replay=Replayed if args.cuda_graphs else None,
    )


def _groups(samples: Samples) -> tuple[list[Group], np.ndarray | slice]:
    """Return one group per (row, mask), ordered by row, and the index that puts the rows of `draws` into this order."""
    static, hidden = samples.text.ids.cpu().numpy().astype(np.int32), samples.hidden.cpu().numpy()
    lengths, size, many = samples.text.keep_mask.sum(1).tolist(), len(static), samples.draws.shape[1]
    masks = [at for b in range(size) for at in range(b, len(hidden), size)]
    groups = [Group(at % size, static[at % size, : lengths[at % size]], hidden[at].nonzero()[0], many) for at in masks]
    if len(hidden) == size:
        return groups, slice(None)
    ends = hidden.sum(1).cumsum()
    rows = [np.arange(ends[at] - len(group.places), ends[at]) for at, group in zip(masks, groups, strict=True)]
    return groups, np.concatenate(rows)


def distinct_samples(groups: list[Group], draws: np.ndarray) -> int:
    """Return the number of samples that are distinct token sequences of their row. This is the number of scored samples
    for rewards that are computed from token ids, without decoding."""
    found: dict[tuple[int, bytes, bytes], set[bytes]] = {}
    for group, own in zip(groups, deal(groups, draws), strict=True):
        width, drawn = len(own) * own.itemsize, np.ascontiguousarray(own.T).tobytes()
        same = found.setdefault((group.row, group.static.tobytes(), group.places.tobytes()), set())
        same.update(drawn[n : n + width] for n in range(0, len(drawn), width or 1))
        same.update([b""] * (not width))  # nothing was drawn: all samples are the static text
    return sum(map(len, found.values()))


def _token_lists(groups: list[Group], draws: np.ndarray) -> list[list[int]]:
    return [ids for group, own in zip(groups, deal(groups, draws), strict=True) for ids in group.ids(own)]


def describe(rewards: Tensor) -> dict[str, Tensor]:
    """Return statistics of (B, K) rewards for the log, on the device of the rewards."""
    left_out = rewards.isnan()
    numbers = (
        rewards.nanmean(),
        _std(rewards).mean(),
        equal_rewards(rewards).float().mean(),
        left_out.float().mean(),
        left_out.all(1).float().sum(),
    )
    return dict(zip(DESCRIBED, numbers, strict=True))


def _std(rewards: Tensor) -> Tensor:
    """Return (B,), the standard deviation of the samples that count. rewards: (B, K)."""
    counts = (~rewards.isnan()).sum(1)
    centred = (rewards - rewards.nanmean(1, keepdim=True)).nan_to_num(0.0)
    return (centred.square().sum(1) / (counts - 1).clamp(min=1)).sqrt()
