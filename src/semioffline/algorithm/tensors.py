"""Shared dataclasses: texts, batches, observations, samples, loss terms.

B batch, K samples, N candidates, T target length, S source length, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To a device, without waiting until it has done what it was given before: a copy from pageable memory would, and
    torch makes one of what is not contiguous."""
    if tensor.device.type == "cpu" and device.type == "cuda":
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")  # to the host it must wait: `HostCopy` is for that


class HostCopy:
    """A tensor that is being copied to the host. Only `wait` waits, and only for this copy, not for later work."""

    def __init__(self, tensor: Tensor):
        self._event: Any = None
        self._host = tensor.detach()
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach(), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._host.cpu()


class _Movable:
    """Base of dataclasses whose tensors are moved to a device, or into pinned memory, together."""

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        changes: dict[str, Tensor | _Movable] = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                changes[f.name] = function(value)
            elif isinstance(value, _Movable):
                changes[f.name] = value._map(function)
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """non_blocking: copy from pinned memory, so that the host does not wait."""
        if non_blocking:
            return self._map(lambda t: send(t, torch.device(device)))
        return self._map(lambda t: t.to(device))

    def pin_memory(self) -> Self:
        return self._map(lambda t: t.pin_memory())


@dataclass
class Text(_Movable):
    """Token ids of B texts, padded on the right."""

    ids: Tensor
    """(B, T) token ids, special tokens included."""
    keep_mask: Tensor
    """(B, T) True at real tokens, False at padding."""
    words: Tensor
    """(B, T) the number of the word that a token belongs to; -1 at special tokens and padding: never hidden."""

    @property
    def ordinary(self) -> Tensor:
        """(B, T) True at the tokens that may be masked."""
        return self.words >= 0

    @property
    def lengths(self) -> list[int]:
        return self.keep_mask.sum(1).tolist()


Rollout = dict[str, Tensor]
"""What a method has made of a micro-batch and uses again while the batch is repeated: samples, rewards, ..."""


@dataclass
class Batch(_Movable):
    """One micro-batch: the source, the ground truth, one static target a row, and the columns for the rewards."""

    index: Tensor
    """(B,) the number of each example in the dataset: the key of its randomness."""
    source: Text
    target: Text
    static: Text
    columns: dict[str, list[Any]]
    """prompt, completion, references and every other column of the dataset, each a list of length B."""
    static_counts: Tensor | None = None
    """(B,) how many static targets each row has, where a step chooses among n: `static` is (B * n, T) then."""
    candidates: Text | None = None
    """(B * N, T) all candidates, best first, N rows for each input, for methods that need them."""
    candidate_rewards: Tensor | None = None
    """(B, N), NaN where a row has fewer candidates (its first one fills the place)."""
    rollout: Rollout | None = None
    """Made by the method when the batch came up; only for methods that repeat batches."""

    def __len__(self) -> int:
        return len(self.index)


@dataclass
class Observation:
    """The part of a target that the policy sees: its tokens, with mask tokens at the masked positions."""

    ids: Tensor
    """(B, T) token ids, with the mask token at masked positions."""
    hidden: Tensor
    """(B, T) True where the token is masked (M_t = 1 in the paper)."""


@dataclass
class Row:
    """One target row to run through the policy, and the positions to predict."""

    ids: Tensor
    """(B, T) the tokens that the policy is shown; the prediction for position t sees those before t."""
    keep_mask: Tensor
    """(B, T) True at real tokens."""
    wanted: Tensor
    """(B, T) True at the positions whose logits are wanted."""
    purpose: Literal["mle", "rl", "grad"] = "mle"
    """What the row is for, so that its cost is booked in the right column: fine-tuning, sampling or scoring RL
    trajectories, or running again, with gradient, what was sampled before."""
    term: str = "rl"
    """The loss term that its predictions are for, where that is not the MLE term."""
    added_ids: Tensor | None = None
    """(B, T) tokens whose embedding is added to that of the token shown, -1 where none is (for the variant +PRE)."""


@dataclass
class Samples:
    """K complete texts for each of B rows. The texts of a row differ only at the masked positions."""

    text: Text
    """The static targets."""
    hidden: Tensor
    """(B, T) True at the positions that were drawn."""
    draws: Tensor
    """(M, K) the tokens drawn at the M masked positions, in row-major order; on the policy's device."""
    end_id: int | None = None
    """A sample ends where this token was drawn; all are as long as the static target when not given."""

    @property
    def keep_mask(self) -> Tensor:
        return self.text.keep_mask

    @cached_property
    def places(self) -> Tensor:
        """(2, M) the row and the column of each masked position, on the device of the draws."""
        return send(self.hidden.nonzero().T, self.draws.device)

    @property
    def ids(self) -> Tensor:
        """(B, K, T) token ids: the static token where it was visible, the k-th draw where it was masked."""
        return self.ids_on(self.text.ids.device)

    def ids_on(self, device: torch.device) -> Tensor:
        """`ids` on a device. On the device of the draws, this does not wait."""
        return self._put(self.text.ids, self.draws, device)

    def ended_on(self, device: torch.device) -> Tensor:
        """`ids` with end tokens, which have no text, from the first one on that was drawn."""
        ids = self.ids_on(device)
        if self.end_id is None:
            return ids
        return ids.masked_fill(self._ends_on(device).cummax(2).values.bool(), self.end_id)

    def _ends_on(self, device: torch.device) -> Tensor:
        """(B, K, T) 1 where the end token was drawn."""
        drawn = self.draws.eq(-1 if self.end_id is None else self.end_id)
        return self._put(torch.zeros_like(self.text.ids), drawn, device)

    def token_lists(self) -> list[list[int]]:
        """B * K lists, the samples of a row together: up to the first end token that was drawn, which is kept."""
        ids = self.ids
        ends = self._ends_on(ids.device)
        whole = self.text.keep_mask.sum(1)[:, None]
        lengths = torch.where(ends.any(2), ends.argmax(2) + 1, whole)
        rows = zip(ids.flatten(0, 1).tolist(), lengths.flatten().tolist(), strict=True)
        return [row[:number] for row, number in rows]

    def _put(self, text: Tensor, drawn: Tensor, device: torch.device) -> Tensor:
        """(B, K, T): `text` (B, T) with `drawn` (M, K) at the masked positions."""
        whole = send(text, device)[:, None].repeat(1, drawn.shape[1], 1)
        rows, positions = send(self.places, device)
        whole[rows, :, positions] = send(drawn, device).to(whole.dtype)
        return whole


CompletionRow = dict[str, str | int | float]
"""One sample in the log: example, prompt, masked_target, sample, reward, advantage."""
TokenRow = dict[str, int | str | list[int] | list[str] | list[float]]
"""The draws for one input in the log: see `methods.completions.SampleLog.tokens`."""


@dataclass
class Term:
    """One summand of the loss, not yet divided: the trainer divides by the count in the whole optimizer step."""

    name: str
    total: Tensor
    """Sum over the micro-batch."""
    per: Literal["token", "row"]
    """What it is an average over: target tokens (MLE) or rows (RL)."""
    weight: float = 1.0
    value: Callable[[], Tensor] | None = None
    """Gives the sum's value where `total` does not hold it yet: its gradient waits for something, and so does this."""


@dataclass
class StepOutput:
    """The result of one step of a method."""

    terms: list[Term]
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    """Single numbers. Tensors stay on their device until there is something to log."""
    late_metrics: Callable[[], Mapping[str, float | Tensor]] | None = None
    """Gives those that are known after backward only."""
    completions: Callable[[], list[CompletionRow]] | None = None
    """Makes the rows of the log of samples."""
    tokens: Callable[[], list[TokenRow]] | None = None
    """Makes the rows of the log of draws at masked positions."""

    def all_metrics(self) -> dict[str, float | Tensor]:
        """All metrics, also those that are computed late. This may wait for the device."""
        return {**self.metrics, **(self.late_metrics() if self.late_metrics is not None else {})}

    def parts(self, counts: Sequence[int] | Tensor, known: bool = False) -> dict[str, Tensor]:
        """The terms divided by the counts of the step: target tokens, rows. known: after backward, their final values
        without gradient."""
        divisor = {"token": counts[0], "row": counts[1]}
        totals = {term.name: term.total for term in self.terms}
        if known:
            totals = {term.name: (term.value() if term.value else term.total.detach()) for term in self.terms}
        return {term.name: totals[term.name] / divisor[term.per] for term in self.terms}

    def total(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the parts."""
        return torch.stack([term.weight * parts[term.name] for term in self.terms]).sum()
