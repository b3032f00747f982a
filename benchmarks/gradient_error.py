"""The error of gradient estimates at the logits, by their number of reward calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.losses import reinforce
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Observation, Row
from semioffline.config import MethodConfig
from semioffline.data.examples import Collator, Examples
from semioffline.data.lengths import text_limits
from semioffline.data.options import DataOptions
from semioffline.evaluation.statistics import bootstrap_interval
from semioffline.methods.semi_offline import Method, SemiOfflineConfig
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

BATCH = 16
CHUNK = 1024
"""Samples of one estimate that the reference is a mean of."""
AGREEMENT = 0.5
"""Inputs whose two references have a lower cosine have next to no gradient, and are left out."""


@dataclass(frozen=True)
class Problem:
    """What gradients are estimated of: an M-FT checkpoint and inputs of a task."""

    task: str
    model: str
    data_dir: str | None
    device: str
    inputs: int
    chunks: int
    """Estimates from CHUNK independent samples each in the reference; an even number."""


class Masked(NamedTuple):
    """A batch whose targets were masked once, and the one forward pass over it."""

    batch: Batch
    observation: Observation
    logits: Tensor
    """(M, V), a leaf"""
    rows: Tensor
    """(M,)"""


class Prepared(NamedTuple):
    policy: Policy
    rewards: RewardSet
    batches: list[Masked]
    references: list[tuple[Tensor, Tensor]]
    """For each batch, two independent estimates (M, V) without bias."""


def method_of(problem: Problem, num_samples: int, **settings: Any) -> Method:
    config: dict[str, Any] = {"output_dir": "-", "use_cpu": problem.device == "cpu", "loss_scale": "sequence"}
    return Method(SemiOfflineConfig(**config, num_samples=num_samples, **settings))


@cache
def prepare(problem: Problem) -> Prepared:
    """Masks, logits and references, once in a process."""
    data = DataOptions(task=problem.task, data_dir=problem.data_dir)
    data.read_by(problem.model)
    task = data.load_task()
    rows = task.load(data.source(0), "validation").shuffle(seed=0)
    rows = rows.select(range(min(problem.inputs, len(rows)) // BATCH * BATCH))
    policy = Policy.load(problem.model).to(problem.device).eval()
    lengths = {name: value for name, value in task.settings.items() if name.startswith("max_")}
    limits = text_limits(policy, MethodConfig(output_dir="-", use_cpu=problem.device == "cpu", **lengths))
    examples = Examples(rows, policy, *limits, progress=False)
    method = method_of(problem, CHUNK, baseline="leave_one_out")
    batches = [_mask(policy, method, examples, start) for start in range(0, len(examples), BATCH)]
    rewards = RewardSet(task.reward)
    score = Scorer(policy, rewards, on_device=problem.device != "cpu")
    references = []
    for masked in batches:
        found = (estimate(method, policy, masked, score, Randomness(1, n)) for n in range(problem.chunks))
        references.append(_means(found))
    return Prepared(policy, rewards, batches, references)


@torch.no_grad()
def _mask(policy: Policy, method: Method, examples: Examples, start: int) -> Masked:
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(start, start + BATCH)])
    observation = method.observe(policy, batch, batch.static, Randomness(0, 0))
    [logits] = policy.predict(
        batch.source, [Row(observation.ids, batch.static.keep_mask, observation.hidden, purpose="rl")]
    )
    logits = logits.float().detach()
    return Masked(batch, observation, logits.requires_grad_(), observation.hidden.nonzero()[:, 0].to(logits.device))


def estimate(method: Method, policy: Policy, masked: Masked, score: Scorer, randomness: Randomness) -> Tensor:
    """(M, V) an estimate of the gradient of the expected reward, as the loss of a step gives it."""
    batch, observation, logits, _ = masked
    drawn = method.sample(policy, logits, batch, batch.static, observation, randomness)
    rewards = score(drawn.samples, batch).rewards
    counts = observation.hidden.sum(1).to(logits.device)
    loss = reinforce(drawn.logits, lambda: method.coefficients(drawn, rewards, counts), ready=True)
    return -torch.autograd.grad(loss.total, logits)[0]


def _means(found: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Of every second estimate, and of the others."""
    sums: list[Tensor | None] = [None, None]
    number = 0
    for number, each in enumerate(found, 1):
        known = sums[number % 2]
        sums[number % 2] = each.clone() if known is None else known.add_(each)
    first, second = sums
    assert first is not None
    assert second is not None
    return first / (number // 2), second / (number // 2)


class Tally:
    """How repeated estimates of one gradient differ from its reference, in each of G groups of its rows.

    The reference is two independent estimates r1, r2 with noise of their own. In products such as (g . r1) (g . r2) and
    r1 . r2 it cancels on average. So do the two halves of the estimates in the square of their bias.
    """

    def __init__(self, reference: tuple[Tensor, Tensor], groups: Tensor, number: int):
        """groups: (M,) the group of each row of the gradient; number: of groups."""
        self.first, self.second = reference
        self.groups, self.number = groups, number
        self.halves = [torch.zeros_like(self.first), torch.zeros_like(self.first)]
        self.squares: list[Tensor] = []
        self.errors: list[Tensor] = []
        self.norm = self.dot(self.first, self.second)  # (G,)
        sizes = self.dot(self.first, self.first) * self.dot(self.second, self.second)
        self.kept = self.norm > AGREEMENT * sizes.sqrt()

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        """(G,) scalar products."""
        zeros = torch.zeros(self.number, dtype=torch.float64, device=one.device)
        return zeros.index_add_(0, self.groups, (one * other).sum(1, dtype=torch.float64))

    def add(self, gradient: Tensor) -> None:
        self.halves[len(self.squares) % 2] += gradient
        square = self.dot(gradient, gradient)
        self.squares.append(square)
        cosines = self.dot(gradient, self.first) * self.dot(gradient, self.second) / (square * self.norm)
        self.errors.append(1 - torch.where(square > 0, cosines, 0.0))  # an estimate of 0 shows no direction

    def sums(self) -> Tensor:
        """Of all groups: |r|^2, g . r, a . b, a . r2 + b . r1, and the sum of the variances; a and b are the means of
        the halves, g is that of all."""
        repeats = len(self.squares)
        one, other = (half / (repeats // 2) for half in self.halves)
        mean = (one + other) / 2
        variance = (torch.stack(self.squares).sum(0) - repeats * self.dot(mean, mean)) / (repeats - 1)
        crossed = self.dot(one, self.second) + self.dot(other, self.first)
        projected = self.dot(mean, self.first + self.second) / 2
        return torch.stack([self.norm, projected, self.dot(one, other), crossed, variance]).sum(1)


def summarise(tallies: Sequence[Tally]) -> dict[str, float | int]:
    """error: the mean of 1 - cos^2 over estimates and groups, with a 95 % interval over groups. bias and variance: the
    squared norms of the bias and of the noise, in units of the squared norm of the reference, of estimates that were
    scaled by one factor such that their mean along the reference is the reference."""
    errors = torch.cat([torch.stack(tally.errors).mean(0)[tally.kept] for tally in tallies]).tolist()
    low, high = bootstrap_interval(errors)
    norm, projected, both, crossed, variance = torch.stack([tally.sums() for tally in tallies]).sum(0).tolist()
    scale = projected / norm
    return {
        "error": sum(errors) / len(errors),
        "low": low,
        "high": high,
        "groups": len(errors),
        "scale": scale,
        "bias": (both / scale**2 - crossed / scale) / norm + 1,
        "variance": variance / scale**2 / norm,
    }


def measure(problem: Problem, num_samples: int, settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The errors of one estimator with one number of samples. calls: distinct texts per input.

    input: the gradient at all logits of an input. batch: the mean gradient of BATCH inputs, summed over positions; this
    is the gradient of a bias that is added to the logits.
    """
    policy, rewards, batches, references = prepare(problem)
    method, score = method_of(problem, num_samples, **settings), Scorer(policy, rewards)
    policy.meter.counts.clear()
    tallies: dict[str, list[Tally]] = {"input": [], "batch": []}
    for masked, (first, second) in zip(batches, references, strict=True):
        one = torch.zeros(1, dtype=torch.long, device=first.device)
        whole = Tally((_total(first), _total(second)), one, 1)
        each = Tally((first, second), masked.rows, len(masked.batch))
        for n in range(repeats):
            found = estimate(method, policy, masked, score, Randomness(2, n))
            each.add(found)
            whole.add(_total(found))
        tallies["input"].append(each)
        tallies["batch"].append(whole)
    inputs = BATCH * len(batches)
    calls = policy.meter.counts["reward_calls"] / (inputs * repeats)
    return {"calls": calls, "inputs": inputs, "repeats": repeats} | {
        name: summarise(own) for name, own in tallies.items()
    }


def _total(gradient: Tensor) -> Tensor:
    return gradient.sum(0, keepdim=True) / BATCH
