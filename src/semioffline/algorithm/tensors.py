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
    """Copy a tensor to a device. The host does not wait for a GPU: the tensor is made contiguous and pinned first,
    because the host waits for a copy from pageable memory."""
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
        """Move all tensors to a device. non_blocking: copy from pinned memory, so that the host does not wait."""
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
    """(B, T) the number of the word that a token belongs to; -1 at special tokens and padding, which are never
    masked."""

    @property
    def ordinary(self) -> Tensor:
        """(B, T) True at the tokens that may be masked."""
        return self.words >= 0

    @property
    def lengths(self) -> list[int]:
        return self.keep_mask.sum(1).tolist()


Rollout = dict[str, Tensor]
"""Tensors that a method computes once and uses again while the batch is repeated: samples, rewards, old
log-probabilities."""


@dataclass
class Batch(_Movable):
    """One micro-batch: the sources, the ground truths, one static target per row, and the columns for the rewards."""

    index: Tensor
    """(B,) the number of each example in the dataset. Its random numbers depend on it."""
    source: Text
    target: Text
    static: Text
    columns: dict[str, list[Any]]
    """prompt, completion, references and every other column of the dataset, each a list of length B."""
    static_counts: Tensor | None = None
    """(B,) the number of static targets of each row, if a step chooses among n of them; `static` is then (B * n, T)."""
    candidates: Text | None = None
    """(B * N, T) all candidates, best first, N rows for each input, for methods that need them."""
    candidate_rewards: Tensor | None = None
    """(B, N), NaN if a row has fewer candidates. The missing ones are copies of its first candidate."""
    rollout: Rollout | None = None
    """Made by the method in the first step on this batch. Only methods that repeat batches have it."""

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
    """(B, T) the input tokens. The prediction for position t sees those before t."""
    keep_mask: Tensor
    """(B, T) True at real tokens."""
    wanted: Tensor
    """(B, T) True at the positions whose logits are wanted."""
    purpose: Literal["mle", "rl", "grad"] = "mle"
    """How the pass is counted: fine-tuning ("mle"), sampling or scoring trajectories ("rl"), or running samples again
    with gradient ("grad")."""
    term: str = "rl"
    """The loss term that its predictions are for; None: the MLE term."""
    added_ids: Tensor | None = None
    """(B, T) tokens whose embedding is added to that of the input token, -1 for none (variant +PRE)."""


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
    """A sample ends where this token was drawn. None: all samples are as long as the static target."""

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
        """Return `ids` on a device. If it is the device of the draws, the host does not wait."""
        return self._put(self.text.ids, self.draws, device)

    def ended_on(self, device: torch.device) -> Tensor:
        """Return `ids` with everything after the first drawn end token replaced by end tokens, which have no text."""
        ids = self.ids_on(device)
        if self.end_id is None:
            return ids
        return ids.masked_fill(self._ends_on(device).cummax(2).values.bool(), self.end_id)

    def _ends_on(self, device: torch.device) -> Tensor:
        """Return (B, K, T) 1 where the end token was drawn."""
        drawn = self.draws.eq(-1 if self.end_id is None else self.end_id)
        return self._put(torch.zeros_like(self.text.ids), drawn, device)

    def token_lists(self) -> list[list[int]]:
        """Return B * K lists of token ids, the samples of a row together. A list ends with the first end token that was
        drawn."""
        ids = self.ids
        ends = self._ends_on(ids.device)
        whole = self.text.keep_mask.sum(1)[:, None]
        lengths = torch.where(ends.any(2), ends.argmax(2) + 1, whole)
        rows = zip(ids.flatten(0, 1).tolist(), lengths.flatten().tolist(), strict=True)
        return [row[:number] for row, number in rows]

    def _put(self, text: Tensor, drawn: Tensor, device: torch.device) -> Tensor:
        """Return (B, K, T): `text` (B, T) with the tokens `drawn` (M, K) at the masked positions."""
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
    """One summand of the loss, a sum over the micro-batch. The trainer divides it by the count in the whole optimizer
    step."""

    name: str
    total: Tensor
    """Sum over the micro-batch."""
    per: Literal["token", "row"]
    """The count that the term is divided by: target tokens (MLE) or rows (RL)."""
    weight: float = 1.0
    value: Callable[[], Tensor] | None = None
    """Returns the value of the sum, if `total` does not hold it before backward."""


@dataclass
class StepOutput:
    """The result of one step of a method."""

    terms: list[Term]
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    """Single numbers. Tensors stay on their device until they are logged."""
    late_metrics: Callable[[], Mapping[str, float | Tensor]] | None = None
    """Returns the metrics that are known only after backward."""
    completions: Callable[[], list[CompletionRow]] | None = None
    """Returns the rows of the log of samples."""
    tokens: Callable[[], list[TokenRow]] | None = None
    """Returns the rows of the log of drawn tokens."""

    def all_metrics(self) -> dict[str, float | Tensor]:
        """Return all metrics, including the late ones. This may wait for the device."""
        return {**self.metrics, **(self.late_metrics() if self.late_metrics is not None else {})}

    def parts(self, counts: Sequence[int] | Tensor, known: bool = False) -> dict[str, Tensor]:
        """Return each term divided by its count in the step: target tokens or rows. known: the final values of late
        terms, after backward, without gradient."""
        divisor = {"token": counts[0], "row": counts[1]}
        totals = {term.name: term.total for term in self.terms}
        if known:
            totals = {term.name: (term.value() if term.value else term.total.detach()) for term in self.terms}
        return {term.name: totals[term.name] / divisor[term.per] for term in self.terms}

    def total(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the parts."""
        return torch.stack([term.weight * parts[term.name] for term in self.terms]).sum()
