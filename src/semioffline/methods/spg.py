"""SPG: softmax policy gradient, on samples of the policy weighted by exp(R)."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.methods.shared.settings import DrawingSettings, WeightedSettings
from semioffline.methods.shared.weighted import Target, WeightedMethod
from semioffline.validation import POSITIVE, setting


@dataclass
class SPGConfig(DrawingSettings, WeightedSettings):
    """Settings of `spg`."""

    method: ClassVar[str] = "spg"
    spg_temperature: float = setting(0.05, "tau, the temperature: rewards are divided by it.", "SPG", POSITIVE)


class Method(WeightedMethod[SPGConfig]):
    """L = - E_q[log p(y | x)] with q(y) ∝ p(y | x) exp(R(y) / tau): `erpo` with alpha = tau, beta = 0.

    Ding and Soricut 2017; Tan et al. 2019 show that it is ERPO with alpha = 1, where rewards are not divided. The K
    texts are samples of p, so their weights are exp(R / tau), self-normalised. Departures: Ding and Soricut draw from q
    token by token, with increments of the reward and, at random, without them ("bang-bang"); here q is sampled by
    weights on whole texts, so that any reward will do.
    """

    config_class = SPGConfig

    @property
    def target(self) -> Target:
        return Target(self.config.spg_temperature, 0.0, drawing=self.config)
