"""One file for each method. A module here defines a class `Method`; its file name is the method's name."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput, Term
from semioffline.errors import UserError, unknown
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


class BaseMethod:
    """What the trainer needs of a method: derive from it and write `step`.

    A method never steps an optimizer, and every use of a parameter goes through `policy.predict`, so that it also
    works inside DDP and FSDP.
    """

    needs_reward = False
    """Whether `step` calls the scorer."""
    needs_candidates = False
    """Whether `step` reads `batch.candidates`."""
    batch_on_host = False
    """Whether `step` takes its batch as it was collated, in the host's memory: masks and indices computed there do not
    make the host wait for the device, and `policy.predict` and the losses send what they are given. Otherwise the batch
    comes on the policy's device."""
    steps_ahead = 0
    """For how many steps at a time `look_ahead` is to be shown the batches; 0: never."""

    def __init__(self, args: Any):
        self.args = args

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        raise NotImplementedError

    def prepare(self, policy: Policy, examples: Any) -> None:
        """Called once, before training, with the tokenised training data: for what must be computed or added first."""

    def look_ahead(self, batches: list[Batch]) -> None:
        """Called before the first of `steps_ahead` steps with the batches of all of them, as they were collated: for
        what is cheaper for many at once. With fewer where an epoch ends or begins, and after a resume."""

    def save(self, folder: Path) -> None:
        """Write what the method itself has learnt or drawn into a checkpoint."""

    def load(self, folder: Path) -> None:
        """Read it back."""


def method_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def check_method(name: str) -> list[str]:
    """The methods that a name stands for, one or, in `one+another`, two; an error when it stands for none."""
    names = [part.strip() for part in name.split("+")]
    for part in names:
        if part not in method_names():
            raise unknown("method", part, method_names())
    if len(names) > 2:
        raise UserError(f"method '{name}' combines {len(names)} methods: two is the most")
    if len(set(names)) < len(names):
        raise UserError(f"method '{name}' names the same method twice: give two different ones, or one")
    plain = [part for part in names if part in ("ft", "mft")]
    if plain and len(names) == 2 and "gold" not in names:
        other = "two MLE terms" if len(plain) == 2 else "an MLE term that the other method has already"
        raise UserError(f"method '{name}' would combine {other}: only gold goes with ft or mft, else name one method")
    return names


def load_method(name: str, args: Any) -> BaseMethod:
    """A method by its name; `one+another` runs both on every batch."""
    methods = {part: importlib.import_module(f"{__name__}.{part}").Method(args) for part in check_method(name)}
    return Combined(args, methods) if len(methods) > 1 else next(iter(methods.values()))


class Combined(BaseMethod):
    """Two methods on the same batch: one MLE term (the first one's), and all other terms of both.

    Each runs its own step, so the costs add up, MLE rows included: two calls of `policy.predict`. Terms and metrics
    whose names clash get the method's name in front.
    """

    def __init__(self, args: Any, methods: dict[str, BaseMethod]):
        super().__init__(args)
        self.methods = methods
        self.needs_reward = any(method.needs_reward for method in methods.values())
        self.needs_candidates = any(method.needs_candidates for method in methods.values())
        self.batch_on_host = all(method.batch_on_host for method in methods.values())
        self.steps_ahead = max(method.steps_ahead for method in methods.values())

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        outputs = {name: method.step(policy, batch, score, randomness) for name, method in self.methods.items()}
        terms: dict[str, list[Term]] = {}
        seen_mle = False
        for name, output in outputs.items():
            terms[name] = [term for term in output.terms if term.name != "mle" or not seen_mle]
            seen_mle = seen_mle or any(term.name == "mle" for term in output.terms)
        shared_terms = _shared([[term.name for term in part] for part in terms.values()])

        def merge(metrics: dict[str, dict[str, Any]]) -> dict[str, Any]:
            shared = _shared([list(part) for part in metrics.values()])
            return {
                f"{name}/{metric}" if metric in shared else metric: value
                for name, part in metrics.items()
                for metric, value in part.items()
            }

        def write_rows() -> list[dict[str, Any]]:
            written = {name: output.completions() for name, output in outputs.items() if output.completions}
            return [row | {"method": name} for name, rows in written.items() for row in rows]

        return StepOutput(
            terms=[
                replace(term, name=f"{name}/{term.name}" if term.name in shared_terms else term.name)
                for name, part in terms.items()
                for term in part
            ],
            late_metrics=lambda: merge({name: output.all_metrics() for name, output in outputs.items()}),
            completions=write_rows if any(output.completions for output in outputs.values()) else None,
        )

    def prepare(self, policy: Policy, examples: Any) -> None:
        for method in self.methods.values():
            method.prepare(policy, examples)

    def look_ahead(self, batches: list[Batch]) -> None:
        for method in self.methods.values():
            method.look_ahead(batches)

    def save(self, folder: Path) -> None:
        for method in self.methods.values():
            method.save(folder)

    def load(self, folder: Path) -> None:
        for method in self.methods.values():
            method.load(folder)


def _shared(names: list[list[str]]) -> set[str]:
    counts = Counter(name for part in names for name in set(part))
    return {name for name, count in counts.items() if count > 1}
