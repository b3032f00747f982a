"""Small networks on the decoder's states, next to the LM head. The states are detached, so only the heads are
trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def value_head(width: int, vocabulary: int) -> nn.Module:
    """Make a linear map from states to one number, 0 at first."""
    head = nn.Linear(width, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class QHeads(nn.Module):
    """V(s) and two Q(s, a) for every token a, each with one hidden layer and 0 at first, and slow copies of both Q."""

    def __init__(self, width: int, vocabulary: int):
        super().__init__()
        self.v = _network(width, 1)
        self.q = nn.ModuleList([_network(width, vocabulary) for _ in range(2)])
        self.slow = nn.ModuleList([_network(width, vocabulary) for _ in range(2)])
        self.slow.load_state_dict(self.q.state_dict())
        self.slow.requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        """Return (N, 4, V) for states (N, D): V(s) repeated, both Q, and the smaller of the two slow copies."""
        first, second = (q(states) for q in self.q)
        return torch.stack([self.v(states).expand_as(first), first, second, self.slow_q(states)], dim=1)

    @torch.no_grad()
    def slow_q(self, states: Tensor) -> Tensor:
        first, second = (q(states) for q in self.slow)
        return torch.minimum(first, second)

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Move the slow copies towards Q by Polyak averaging: slow <- (1 - rate) slow + rate q."""
        for slow, weight in zip(self.slow.parameters(), self.q.parameters(), strict=True):
            slow.lerp_(weight, rate)

    @torch.no_grad()
    def advantages(self, states: Tensor) -> Tensor:
        """Return (N, V), Q(s, a) - V(s), for states (N, D)."""
        return self.slow_q(states) - self.v(states)


def _network(width: int, out: int) -> nn.Sequential:
    last = nn.Linear(width, out)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), last)


class Perturbation:
    """A logits processor that adds to the logits of generated tokens: log p(a) + scores(s)[a], normalised."""

    def __init__(self, decoder: nn.Module, scores: Callable[[Tensor], Tensor]):
        """scores: decoder states (N, D) -> (N, V)."""
        self._decoder, self._scores = decoder, scores
        self._states: Tensor | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Store the states of the last tokens inside the block."""

        def note(module: nn.Module, args: tuple, output: Any) -> None:
            self._states = output.last_hidden_state[:, -1]

        handle = self._decoder.register_forward_hook(note)
        try:
            yield
        finally:
            handle.remove()
            self._states = None

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if self._states is None:
            raise RuntimeError("a perturbation acts on tokens that are generated inside `watching`")
        return (scores + self._scores(self._states.float())).log_softmax(-1)
