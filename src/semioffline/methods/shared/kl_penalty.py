"""Penalise the KL divergence of the policy from the initial model, for every RL method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semioffline.algorithm.losses import kl_divergence, text_scores
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Rollout, Row, StepOutput, Term, Text
from semioffline.config import StaticTarget
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.frozen import Reference
from semioffline.methods.shared.settings import RLSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.storage.files import read_json, write_atomically

FILE = "kl_reference.json"


def with_penalty(method: BaseMethod) -> BaseMethod:
    """Add a KL term to a method if its settings ask for one."""
    config = method.config
    return KLPenalty(config, method) if isinstance(config, RLSettings) and config.kl_weight else method


class KLPenalty(BaseMethod[RLSettings]):
    """L = L_method + kl_weight * L_KL, with L_KL = (1/T) sum_t KL(p(. | o_t) || p_0(. | o_t)), p_0 the initial model.

    t runs over the positions whose predictions the method uses as a policy: the masked positions of semi_offline, the
    tokens of the samples of the on-policy methods. The mean over samples is taken, and that over rows. The sum over
    the vocabulary is exact. The KL divergence is part of the loss, not of the reward, and its gradient does not go
    through the sampling. It costs one more forward pass of these rows, without gradient or dropout.

    kl_target: after a step with the mean KL divergence d at a position, the weight is multiplied by
    1 + 0.1 clip(d / kl_target - 1, -0.2, 0.2). Ziegler et al. 2019, equations 3 and 4, for a term of the loss.
    """

    def __init__(self, config: RLSettings, method: BaseMethod):
        super().__init__(config)
        self.method = method
        self.needs_reward, self.needs_candidates = method.needs_reward, method.needs_candidates
        self.batch_on_host = method.batch_on_host
        self.reference: Reference | None = None
        self.weight = config.kl_weight
        self._step = 0
        self._noted: list[Tensor] = []
        """KL divergences at the positions of this step's micro-batches, if the weight adapts to them."""

    @property
    def static_target(self) -> StaticTarget:
        return self.method.static_target

    @property
    def rl_ratio(self) -> float | None:
        return self.method.rl_ratio

    @property
    def repeats(self) -> int:
        return self.method.repeats

    def roll_out(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> Rollout:
        return self.method.roll_out(policy, batch, score, randomness)

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        return self.method.own_rates()

    def prepare(self, policy: Policy, examples: Examples) -> None:
        if self.config.kl_target is not None and self.config.world_size > 1:
            raise UserError("kl_target works with one process only: remove it and set kl_weight")
        self.reference = Reference(policy)
        self.method.prepare(policy, examples)

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        if self.reference is None:
            raise RuntimeError("kl_weight has no reference model yet: call prepare(policy, examples) before training")
        if randomness.step != self._step:
            self._adapt()
        self._step = randomness.step
        run, parts = policy.runner, []

        def note(source: Text, rows: list[Row], with_values: bool = False) -> Any:
            found = run(source, rows, with_values)
            pairs = zip(rows, found[0] if with_values else found, strict=True)
            parts.append((source, [(row, z) for row, z in pairs if row.purpose != "mle" and row.term == "rl"]))
            return found

        with policy.through(note):
            output = self.method.step(policy, batch, score, randomness)
        totals, divergences = [], []
        for source, scored in parts:
            rows = [row for row, _ in scored]
            for (row, z), z0 in zip(scored, self.reference.predict(policy, source, rows) if rows else [], strict=True):
                kl = kl_divergence(z, z0)
                totals.append(text_scores(kl, row.wanted.nonzero()[:, 0], len(batch)).sum())
                divergences.append(kl.detach())
        if not totals:
            return output
        term = Term("kl", torch.stack(totals).mean(), per="row", weight=self.weight)
        metrics = {**output.metrics, "kl": torch.cat(divergences).mean()}
        if self.config.kl_target is not None:
            self._noted += divergences
            metrics["kl_weight"] = self.weight
        return replace(output, terms=[*output.terms, term], metrics=metrics)

    def _adapt(self) -> None:
        """Set the weight of the next step from the KL divergence of the last one."""
        target, noted, self._noted = self.config.kl_target, self._noted, []
        if target is not None and noted:
            self.weight = adapted(self.weight, torch.cat(noted).mean().item(), target)

    def save(self, folder: Path) -> None:
        self.method.save(folder)
        self._adapt()  # a checkpoint is written between two steps
        if self.reference is not None:
            write_atomically(folder / FILE, json.dumps({"checksum": self.reference.checksum, "weight": self.weight}))

    def load(self, folder: Path) -> None:
        self.method.load(folder)
        if self.reference is None:
            return
        saved = read_json(folder / FILE)
        if saved["checksum"] != self.reference.checksum:
            raise UserError(f"{folder} was trained with another initial model: resume with the one it started from")
        self.weight = saved.get("weight", self.weight)


def adapted(weight: float, divergence: float, target: float) -> float:
    """Return the weight after a step with this KL divergence."""
    return weight * (1 + 0.1 * min(max(divergence / target - 1, -0.2), 0.2))
