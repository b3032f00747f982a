"""CUDA graphs of functions of tensors without gradient, such as scoring. Also counts captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

MOST_FUNCTIONS = 64
"""Maximum number of captured shapes of each function without gradient."""
_recorded = 0


def recordings() -> int:
    """Return the number of graphs of training steps that this process has captured, without those of decoding."""
    return _recorded


def count_recording() -> None:
    global _recorded
    _recorded += 1


def put(places: Iterable[Tensor], tensors: Iterable[Tensor]) -> None:
    """Copy values into the tensors that a captured graph reads."""
    for place, tensor in zip(places, tensors, strict=True):
        if place.data_ptr() != tensor.data_ptr():
            place.copy_(tensor)


def record_function(function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Tensor]:
    """Capture a function of tensors without gradient. On replay it reads `inputs` and writes its result in place."""
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # the first runs load kernels, which recording must not
            for _ in range(3):
                function(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return record_call(partial(function, *inputs))


def record_call(function: Callable[[], Any], alone: bool = False) -> Callable[[], Any]:
    """Capture the kernels of a call on tensors with fixed addresses. Its kernels must have run before.

    alone: with memory of its own, which is given back with the graph.
    """
    graph = torch.cuda.CUDAGraph()
    pool = None
    if not alone:
        pool = shared_memory(torch.cuda.current_device())[0]
        count_recording()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        output = function()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


@cache
def shared_memory(device: int) -> tuple[Any, Any]:
    """Return the memory pool that all captured functions share, and a graph that keeps it alive: without a graph that
    holds it, a pool cannot be used for capture again. Sharing works because functions replay one after the other and
    their results are copied."""
    pool, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    place = torch.zeros(1, device=f"cuda:{device}").add_(1)  # the kernel has run before it is recorded
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        place.add_(1)
    return pool, graph


class Replayed:
    """A function of tensors without gradient, captured as one graph for each shape of its inputs, at most
    MOST_FUNCTIONS."""

    def __init__(self, function: Callable[..., Tensor], record: Callable[..., Callable[[], Tensor]] = record_function):
        self.function = function
        self._record = record
        self._known: dict[Any, tuple[list[Tensor], Callable[[], Tensor]]] = {}

    def __call__(self, *tensors: Tensor) -> Tensor:
        key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in self._known:
            if len(self._known) >= MOST_FUNCTIONS:
                return self.function(*tensors)
            inputs = [tensor.detach().clone() for tensor in tensors]
            self._known[key] = inputs, self._record(self.function, inputs)
        inputs, replay = self._known[key]
        put(inputs, tensors)
        return replay().clone()
