"""Run two methods on the same batch: `one+another`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, CompletionRow, Rollout, StepOutput, Term
from semioffline.config import MethodConfig, StaticTarget
from semioffline.data.examples import Examples
from semioffline.methods.shared.base import BaseMethod
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


class Combined(BaseMethod[MethodConfig]):
    """Two methods on the same batch: one MLE term (that of the first method), and all other terms of both.

    Each method runs its own step, so the costs add up, MLE rows included: two calls of `policy.predict`. If both have a
    term or metric of the same name, the method's name is put before it.
    """

    def __init__(self, config: MethodConfig, methods: dict[str, BaseMethod]):
        super().__init__(config)
        self.methods = methods
        self.needs_reward = any(method.needs_reward for method in methods.values())
        self.needs_candidates = any(method.needs_candidates for method in methods.values())
        self.masks_target = any(method.masks_target for method in methods.values())
        self.batch_on_host = all(method.batch_on_host for method in methods.values())

    @property
    def static_target(self) -> StaticTarget:
        chosen = [method.static_target for method in self.methods.values()]
        return next((target for target in chosen if target != "ground_truth"), "ground_truth")

    @property
    def mask_where(self) -> str | None:
        return next((method.mask_where for method in self.methods.values() if method.mask_where is not None), None)

    @property
    def rl_ratio(self) -> float | None:
        return next((method.rl_ratio for method in self.methods.values() if method.rl_ratio is not None), None)

    @property
    def repeats(self) -> int:
        return max(method.repeats for method in self.methods.values())

    def roll_out(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> Rollout:
        parts = {n: m.roll_out(policy, batch, score, randomness) for n, m in self.methods.items() if m.repeats}
        return {f"{name}.{part}": tensor for name, own in parts.items() for part, tensor in own.items()}

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        outputs = {
            name: method.step(policy, replace(batch, rollout=_own(batch.rollout, name)), score, randomness)
            for name, method in self.methods.items()
        }
        terms: dict[str, list[Term]] = {}
        seen_mle = False
        for name, output in outputs.items():
            terms[name] = [term for term in output.terms if term.name != "mle" or not seen_mle]
            seen_mle = seen_mle or any(term.name == "mle" for term in output.terms)
        shared_terms = _shared([[term.name for term in part] for part in terms.values()])

        def write_rows() -> list[CompletionRow]:
            written = {name: output.completions() for name, output in outputs.items() if output.completions}
            return [row | {"method": name} for name, rows in written.items() for row in rows]

        return StepOutput(
            terms=[
                replace(term, name=f"{name}/{term.name}" if term.name in shared_terms else term.name)
                for name, part in terms.items()
                for term in part
            ],
            late_metrics=lambda: _merge({name: output.all_metrics() for name, output in outputs.items()}),
            completions=write_rows if any(output.completions for output in outputs.values()) else None,
            tokens=next((output.tokens for output in outputs.values() if output.tokens), None),
        )

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        return [rate for method in self.methods.values() for rate in method.own_rates()]

    def prepare(self, policy: Policy, examples: Examples) -> None:
        for method in self.methods.values():
            method.prepare(policy, examples)

    def save(self, folder: Path) -> None:
        for method in self.methods.values():
            method.save(folder)

    def load(self, folder: Path) -> None:
        for method in self.methods.values():
            method.load(folder)


def _own(rollout: Rollout | None, name: str) -> Rollout | None:
    """Return the part of a rollout that belongs to one of the two methods."""
    if rollout is None:
        return None
    return {part.removeprefix(f"{name}."): t for part, t in rollout.items() if part.startswith(f"{name}.")}


def _merge(metrics: Mapping[str, Mapping[str, float | Tensor]]) -> dict[str, float | Tensor]:
    shared = _shared([list(part) for part in metrics.values()])
    return {
        f"{name}/{metric}" if metric in shared else metric: value
        for name, part in metrics.items()
        for metric, value in part.items()
    }


def _shared(names: list[list[str]]) -> set[str]:
    counts = Counter(name for part in names for name in set(part))
    return {name for name, count in counts.items() if count > 1}
