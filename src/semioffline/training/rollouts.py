"""Store the rollouts of batches that are trained on several times in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save

from semioffline.algorithm.tensors import Batch, Rollout
from semioffline.errors import UserError
from semioffline.storage.files import write_atomically

FILE = "rollouts-{rank}.safetensors"


class Rollouts:
    """Adds to each micro-batch its rollout: a new one in its first step, and the stored one while it is repeated."""

    def __init__(self, repeats: int):
        self.repeats = repeats
        self._step: int | None = None
        self._stored: dict[str, Rollout] = {}
        """Row numbers of a micro-batch -> its rollout."""

    def attach(self, batch: Batch, step: int, roll_out: Callable[[Batch], Rollout]) -> Batch:
        """Return the batch with its rollout."""
        if step != self._step and step % self.repeats == 0:
            self._stored = {}
        self._step = step
        rows = " ".join(map(str, batch.index.tolist()))
        if rows not in self._stored:
            self._stored[rows] = roll_out(batch)
        return replace(batch, rollout=self._stored[rows])

    def save(self, folder: Path, rank: int, steps: int) -> None:
        """Save the rollouts in a checkpoint after this many steps, unless the next step makes new ones."""
        if steps % self.repeats:
            parts = {f"{rows}/{name}": t for rows, part in self._stored.items() for name, t in part.items()}
            write_atomically(folder / FILE.format(rank=rank), save({name: t.contiguous() for name, t in parts.items()}))

    def load(self, folder: Path, rank: int, steps: int) -> None:
        """Load the rollouts from a checkpoint."""
        if steps % self.repeats == 0:
            return
        path = folder / FILE.format(rank=rank)
        if not path.is_file():
            raise UserError(
                f"{path} is missing: this checkpoint needs its stored samples to continue; start without resuming"
            )
        self._step, self._stored = steps, {}
        for name, tensor in load_file(path).items():
            rows, _, part = name.partition("/")
            self._stored.setdefault(rows, {})[part] = tensor
