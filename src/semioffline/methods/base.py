"""What the trainer needs of a method."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from torch import nn

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Rollout, StepOutput
from semioffline.config import MethodConfig, StaticTarget
from semioffline.data.examples import Examples
from semioffline.methods.settings import RLSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer

Config = TypeVar("Config", bound=MethodConfig)


class BaseMethod(Generic[Config]):
    """A training method: derive from it, name the class of its settings, and write `step`.

    A method never steps an optimizer, and every use of a parameter goes through `policy.predict`, so that it also works
    inside DDP and FSDP. Its terms are sums; the trainer divides them by the counts of the whole optimizer step.
    """

    config_class: ClassVar[type[MethodConfig]] = MethodConfig
    needs_reward = False
    """Whether `step` calls the scorer."""
    needs_candidates = False
    """Whether `step` reads `batch.candidates`."""
    has_mle = True
    """Whether `step` gives a term of the ground truth's likelihood. `one+another` has one at most."""
    batch_on_host = False
    """Whether `step` takes its batch in the host's memory: masks and indices computed there do not make the host wait
    for the device, and `policy.predict` and the losses send what they are given. Otherwise the batch comes on the
    policy's device."""

    def __init__(self, config: Config):
        self.config = config

    @property
    def static_target(self) -> StaticTarget:
        """Which text of a row is masked."""
        return "ground_truth"

    @property
    def mask_where(self) -> str | None:
        """Which of its words may be masked; None: all."""
        return None

    @property
    def rl_ratio(self) -> float | None:
        """Target ratio of RL to MLE gradient norm; None: the weights of the terms are those of `step`."""
        return None

    @property
    def repeats(self) -> int:
        """Steps in a row that a batch is trained on with one rollout; 0: the method has no `roll_out`."""
        return 0

    def roll_out(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> Rollout:
        """What `step` finds in `batch.rollout`: made in the first of these steps, and part of a checkpoint."""
        raise NotImplementedError

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        """The loss terms and metrics of one micro-batch."""
        raise NotImplementedError

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """Parameters with a learning rate of their own, which the schedule scales as it does the other."""
        return []

    def prepare(self, policy: Policy, examples: Examples) -> None:
        """Called once, before training, with the tokenised training data: for what must be computed or added first."""

    def save(self, folder: Path) -> None:
        """Write what the method itself has learnt into a checkpoint."""

    def load(self, folder: Path) -> None:
        """Read it back."""


RLConfig = TypeVar("RLConfig", bound=RLSettings)


class RLMethod(BaseMethod[RLConfig]):
    """A method that scores samples and has an RL term."""

    needs_reward = True
    batch_on_host = True

    @property
    def rl_ratio(self) -> float | None:
        return self.config.rl_ratio
