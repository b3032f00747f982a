"""The interface between the trainer and a method."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from torch import nn

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Rollout, StepOutput
from semioffline.config import MethodConfig, StaticTarget
from semioffline.data.examples import Examples
from semioffline.methods.shared.settings import RLSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer

Config = TypeVar("Config", bound=MethodConfig)


class BaseMethod(Generic[Config]):
    """Base class of methods. A method derives from it, sets `config_class`, and implements `step`.

    A method never steps an optimizer. It uses parameters only through `policy.predict`, so it also works with DDP and
    FSDP. Its loss terms are sums; the trainer divides them by the counts of the whole optimizer step.
    """

    config_class: ClassVar[type[MethodConfig]] = MethodConfig
    needs_reward = False
    """Whether `step` calls the scorer."""
    needs_candidates = False
    """Whether `step` reads `batch.candidates`."""
    masks_target = False
    """Whether `step` predicts masked positions of a target, for which the model must know its mask token."""
    has_mle = True
    """Whether `step` returns an MLE term. `one+another` has at most one."""
    batch_on_host = False
    """Whether `step` gets its batch in host memory instead of on the policy's device. Computing masks and indices on
    the host does not wait for the device; `policy.predict` and the losses copy what they need."""

    def __init__(self, config: Config):
        self.config = config

    @property
    def static_target(self) -> StaticTarget:
        """The kind of text that is masked."""
        return "ground_truth"

    @property
    def mask_where(self) -> str | None:
        """The words of the static target that may be masked; None: all."""
        return None

    @property
    def rl_ratio(self) -> float | None:
        """Target ratio of RL to MLE gradient norm; None: the terms keep the weights that `step` gives them."""
        return None

    @property
    def repeats(self) -> int:
        """Number of consecutive steps on a batch with one rollout; 0: the method has no `roll_out`."""
        return 0

    def roll_out(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> Rollout:
        """Sample and score a batch once. `step` finds the result in `batch.rollout` in all steps on this batch. It is
        saved in checkpoints."""
        raise NotImplementedError

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        """Return the loss terms and metrics of one micro-batch."""
        raise NotImplementedError

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return parameters with their own learning rate. The schedule scales it like the main one."""
        return []

    def prepare(self, policy: Policy, examples: Examples) -> None:
        """Prepare the method before training. Called once, with the tokenised training data."""

    def save(self, folder: Path) -> None:
        """Write the method's own state into a checkpoint."""

    def load(self, folder: Path) -> None:
        """Read the method's own state from a checkpoint."""


RLConfig = TypeVar("RLConfig", bound=RLSettings)


class RLMethod(BaseMethod[RLConfig]):
    """A method that scores samples and has an RL term."""

    needs_reward = True
    batch_on_host = True

    @property
    def rl_ratio(self) -> float | None:
        return self.config.rl_ratio
