"""Generation at the speed of the device: a token's step is recorded once for each batch of texts and then replayed.

Decoding one token takes hundreds of small kernels, and the host needs many times as long to launch them as the device
to run them. With transformers' static cache, which has its full size from the start and counts its tokens on the
device, each step launches what the one before launched.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from semioffline.graphs import record_call

logger = logging.getLogger(__name__)
PLAIN = 2
"""Steps of one token that run as they are, which loads the kernels; recording must not."""


def can_replay(model: Any, num_beams: int) -> bool:
    """Beams would move the cache's tensors; parameters that are sharded are gathered by the host."""
    if num_beams > 1 or model.device.type != "cuda" or not getattr(model, "_can_compile_fullgraph", False):
        return False
    return not any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextmanager
def replayed_steps(decoder: nn.Module, record: Callable[..., Callable[[], Any]] = record_call) -> Iterator[None]:
    """While one batch of texts is generated with a static cache."""
    own = vars(decoder).get("forward")
    decoder.forward = ReplayedSteps(decoder, record)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del decoder.forward
        else:
            decoder.forward = own  # type: ignore[method-assign]


class ReplayedSteps:
    """Stands for the decoder's forward. The prompt and the first tokens run plainly, then a step is recorded. A model
    that cannot be recorded goes on as it is."""

    def __init__(self, decoder: nn.Module, record: Callable[..., Callable[[], Any]]):
        self.plain, self._record = decoder.forward, record
        self._names = list(inspect.signature(type(decoder).forward).parameters)[1:]
        self._left: int | None = PLAIN
        """Steps before one is recorded; None where that failed."""
        self._before: dict[str, Tensor] = {}
        """What the step before was given."""
        self._places: dict[str, Tensor] = {}
        """What the recorded step reads."""
        self._replay: Callable[[], Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(zip(self._names, args, strict=False)) | kwargs
        if self._left is None or not _is_one_token(kwargs):
            return self.plain(**kwargs)
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
        if self._left > 0:
            self._left, self._before = self._left - 1, tensors
            return self.plain(**kwargs)
        if self._replay is None:
            self._start(tensors, kwargs)
        if self._replay is None or not _alike(tensors, self._places):
            return self.plain(**kwargs)
        for name, place in self._places.items():
            if place.data_ptr() != tensors[name].data_ptr():
                place.copy_(tensors[name])
        return self._replay()

    def _start(self, tensors: dict[str, Tensor], kwargs: dict[str, Any]) -> None:
        """What is the same in every step (the encoder's states) stays where it is."""
        same = {name for name, tensor in tensors.items() if self._before.get(name) is tensor}
        self._places = {name: tensor if name in same else tensor.clone() for name, tensor in tensors.items()}
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a weight that is cast while recording has no value yet
        try:
            self._replay = self._record(lambda: self.plain(**kwargs | self._places))
        except RuntimeError as error:
            _warn(str(error))
            self._left = None
        finally:
            torch.set_autocast_cache_enabled(cached)


@cache
def _warn(reason: str) -> None:
    logger.warning("a decoding step cannot be recorded as a CUDA graph, so texts are decoded without one: %s", reason)


def _is_one_token(kwargs: dict[str, Any]) -> bool:
    tokens = kwargs.get("input_ids") if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
    return (
        tokens is not None and tokens.shape[1] == 1 and getattr(kwargs.get("past_key_values"), "is_compileable", False)
    )


def _alike(tensors: dict[str, Tensor], places: dict[str, Tensor]) -> bool:
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    return shapes == {name: (place.shape, place.dtype) for name, place in places.items()}
