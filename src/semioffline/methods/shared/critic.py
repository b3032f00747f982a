"""The critic of actor_critic and ppo: a value head on the policy's states, with its own learning rate."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Term
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.methods.shared.base import RLMethod
from semioffline.methods.shared.settings import LengthSettings, RLSettings
from semioffline.policy.policy import Policy
from semioffline.validation import NOT_NEGATIVE, setting

FILE = "value_head.safetensors"


@dataclass
class CriticSettings(LengthSettings, RLSettings):
    """Settings of the critic."""

    critic_weight: float = setting(1.0, "Weight of the critic's squared error.", "Critic", NOT_NEGATIVE)
    critic_learning_rate: float | None = setting(
        None, "Learning rate of the critic. Default: that of the policy.", "Critic", NOT_NEGATIVE
    )
    critic_warmup_steps: int = setting(
        0, "Number of first steps without the RL term, in which only the critic learns.", "Critic", NOT_NEGATIVE
    )


CriticConfig = TypeVar("CriticConfig", bound=CriticSettings)


class CriticMethod(RLMethod[CriticConfig]):
    """A method with a value head: a linear map from the decoder's detached states to a number."""

    def __init__(self, config: CriticConfig):
        super().__init__(config)
        self.value_head: nn.Module | None = None

    def prepare(self, policy: Policy, examples: Examples) -> None:
        self.value_head = policy.add_value_head()

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        rate = self.config.critic_learning_rate
        return [] if rate is None or self.value_head is None else [(list(self.value_head.parameters()), rate)]

    def is_warming_up(self, randomness: Randomness) -> bool:
        return randomness.step < self.config.critic_warmup_steps

    def terms(self, mle: Term, rl: Tensor, critic: Tensor, randomness: Randomness) -> list[Term]:
        """Return the loss terms of a step. The RL term is left out while the critic warms up."""
        trained = [Term("critic", critic, per="row", weight=self.config.critic_weight)]
        if not self.is_warming_up(randomness):
            trained.insert(0, Term("rl", rl, per="row", weight=self.config.first_rl_weight))
        return [mle, *trained]

    def save(self, folder: Path) -> None:
        if self.value_head is not None:
            save_file({name: t.cpu().contiguous() for name, t in self.value_head.state_dict().items()}, folder / FILE)

    def load(self, folder: Path) -> None:
        if self.value_head is None:
            return
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}: it was not saved by {self.config.method}; start without resuming")
        with torch.no_grad():
            self.value_head.load_state_dict(load_file(folder / FILE))
