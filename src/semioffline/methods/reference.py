"""The initial model, frozen, and passes without gradient."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from semioffline.algorithm.tensors import Row, Text
from semioffline.policy.policy import Policy


class Reference:
    """The policy as it was when this was made. Only parameters that train are copied: of an adapter, its own."""

    def __init__(self, policy: Policy):
        trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
        self.weights = {f"model.{name}": parameter.detach().clone() for name, parameter in trained.items()}

    def predict(self, policy: Policy, source: Text, rows: list[Row]) -> list[Tensor]:
        """As `Policy.predict`, with these weights."""
        found: list[Tensor] = predict_only(policy, source, rows, self.weights)
        return found

    @property
    def checksum(self) -> int:
        number = 0
        for weight in self.weights.values():
            number = zlib.crc32(weight.detach().cpu().contiguous().view(torch.uint8).numpy(), number)
        return number


@torch.no_grad()
def predict_only(
    policy: Policy,
    source: Text,
    rows: list[Row],
    weights: Mapping[str, Tensor] | None = None,
    with_values: bool = False,
) -> Any:
    """As `Policy.predict`, without gradient or dropout, and with other weights where given. Its cost counts as that of
    scoring trajectories. It does not go through DDP's wrapper:
    processes may need different numbers of them, and the wrapper would wait for the others."""
    training = policy.model.training
    policy.model.eval()
    try:
        run: Callable[..., Any] = (
            policy if weights is None else lambda *given: functional_call(policy, dict(weights), given)
        )
        return run(source, [replace(row, purpose="rl") for row in rows], with_values)
    finally:
        policy.model.train(training)
