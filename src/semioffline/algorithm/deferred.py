"""Loss terms whose factors are computed while the device continues."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class DeferredSum:
    """sum f * x over `inputs` x with factors f that are not known yet, such as those that need the rewards of samples.

    `factors` gives a tensor for each input and may wait as long as it takes. `total` is this sum in the loss. Backward
    reaches terms in reverse order of creation, so rewards are awaited as late as possible if this is created first.
    Until then `total` is 0, or NaN where an input is not finite, so that a non-finite loss is seen without waiting.
    """

    def __init__(self, factors: Callable[[], list[Tensor]], *inputs: Tensor, ready: bool = False):
        """ready: the factors are known now, so `total` gets its value at once."""
        self._sum = _Sum(factors, [tensor.detach() for tensor in inputs])
        self.total: Tensor = _DeferredFunction.apply(self._sum, ready, *inputs)  # type: ignore[assignment]

    def value(self) -> Tensor:
        return self._sum.compute()[0]


class _Sum:
    """The state that `total` keeps. It holds no reference to `total`: a cycle would keep a step's autograd graph alive
    until garbage collection, and no CUDA graph can be captured next to it."""

    def __init__(self, factors: Callable[[], list[Tensor]], inputs: list[Tensor]):
        self._factors, self._inputs = factors, inputs
        self._known: tuple[Tensor, list[Tensor]] | None = None

    def compute(self) -> tuple[Tensor, list[Tensor]]:
        """Return the sum and the factors, in float32."""
        if self._known is None:
            with torch.no_grad():
                factors = self._factors()
                parts = [(f * x.float()).sum() for f, x in zip(factors, self._inputs, strict=True)]
                self._known = (parts[0] if len(parts) == 1 else torch.stack(parts).sum()), factors
            self._inputs = []
        return self._known


class _DeferredFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, deferred: _Sum, ready: bool, *inputs: Tensor) -> Tensor:
        ctx.deferred, ctx.types = deferred, [tensor.dtype for tensor in inputs]
        if ready:
            return deferred.compute()[0].clone()
        return torch.stack([tensor.sum(dtype=torch.float32) for tensor in inputs]).sum() * 0.0

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _, factors = ctx.deferred.compute()
        return None, None, *((scale * f).to(kind) for f, kind in zip(factors, ctx.types, strict=True))
