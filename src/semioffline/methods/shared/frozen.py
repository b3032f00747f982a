"""Use the initial model, frozen: its weights, log-probabilities that are computed once, and passes without gradient."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call

from semioffline.algorithm.tensors import Batch, Row, Text
from semioffline.config import MethodConfig
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.policy.policy import Policy
from semioffline.printing import track


@torch.no_grad()
def predict_only(
    policy: Policy,
    source: Text,
    rows: list[Row],
    weights: Mapping[str, Tensor] | None = None,
    with_values: bool = False,
) -> Any:
    """Run `Policy.predict` without gradient and dropout, with other weights if given. It does not go through DDP's
    wrapper, which would wait for other processes that may need a different number of passes."""
    training = policy.model.training
    policy.model.eval()
    try:
        if weights is None:
            return policy(source, rows, with_values)
        return functional_call(policy, dict(weights), (source, rows, with_values))
    finally:
        policy.model.train(training)


class Reference:
    """A frozen copy of the policy. Only trainable parameters are copied: with an adapter, those of the adapter."""

    def __init__(self, policy: Policy):
        trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
        self.weights = {f"model.{name}": parameter.detach().clone() for name, parameter in trained.items()}

    def predict(self, policy: Policy, source: Text, rows: list[Row]) -> list[Tensor]:
        """Run `Policy.predict` with the frozen weights. The cost counts as scoring trajectories."""
        found: list[Tensor] = predict_only(policy, source, [replace(row, purpose="rl") for row in rows], self.weights)
        return found

    @property
    def checksum(self) -> int:
        number = 0
        for weight in self.weights.values():
            number = zlib.crc32(weight.detach().cpu().contiguous().view(torch.uint8).numpy(), number)
        return number


class InitialLogP:
    """Log-probabilities for each example under the initial checkpoint. They are saved in every checkpoint, because a
    resumed run no longer has the initial model."""

    def __init__(self, file: str, method: str):
        """file: the name of its file in a checkpoint. method: the method's name, for messages."""
        self.file, self.method = file, method
        self.values: list[Tensor] = []
        """One tensor for each example."""

    def compute(
        self, policy: Policy, examples: Examples, config: MethodConfig, log_p: Callable[[Batch], list[Tensor]]
    ) -> None:
        """Compute the log-probabilities of all examples. log_p: returns a tensor for each row of a batch, by
        `predict_only`. This does not count as cost of training."""
        size, collate = config.per_device_eval_batch_size, Collator(policy.tokens.pad_id)
        self.values = []
        with policy.meter.paused():
            starts = range(0, len(examples), size)
            for start in track(starts, len(examples), f"{self.method}: initial model", config.shows_bars):
                batch = collate([examples[n] for n in range(start, min(start + size, len(examples)))])
                self.values += [own.cpu() for own in log_p(batch.to(policy.device))]

    def of(self, index: Tensor) -> list[Tensor]:
        """Return the log-probabilities of the examples with these indices."""
        if not self.values:
            raise RuntimeError(f"{self.method} knows no initial model yet: call prepare(policy, examples) first")
        return [self.values[example] for example in index.tolist()]

    def save(self, folder: Path) -> None:
        if self.values:
            lengths = torch.tensor([len(own) for own in self.values])
            save_file({"log_p": torch.cat(self.values), "lengths": lengths}, folder / self.file)

    def load(self, folder: Path) -> None:
        """Load the values from a checkpoint. They cannot be computed again, because a resumed process has another
        model."""
        if not (folder / self.file).is_file():
            raise UserError(
                f"{folder} has no {self.file}, so it was not saved by {self.method}: start without resuming"
            )
        saved = load_file(folder / self.file)
        lengths = saved["lengths"].tolist()
        if self.values and lengths != [len(own) for own in self.values]:
            raise UserError(
                f"{folder}/{self.file} was made from other training data: resume with the same data and the same "
                "maximum lengths"
            )
        self.values = list(saved["log_p"].split(lengths))
