"""RAML: reward-augmented maximum likelihood, on random edits of the ground truth. Nothing is generated."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.methods.shared.settings import EditSettings
from semioffline.methods.shared.weighted import Target, WeightedMethod
from semioffline.validation import POSITIVE, setting


@dataclass
class RAMLConfig(EditSettings):
    """Settings of `raml`."""

    method: ClassVar[str] = "raml"
    raml_temperature: float = setting(0.01, "tau, the temperature: rewards are divided by it.", "RAML", POSITIVE)


class Method(WeightedMethod[RAMLConfig]):
    """L = - E_q[log p(y | x)] with q(y) ∝ exp(R(y) / tau): `erpo` with alpha = 0, beta = tau.

    Norouzi et al. 2016. The K texts are edits of the ground truth, drawn from q_edit(y) ∝ exp(-e(y) / tau') with the
    Hamming distance e, exactly, stratified by e, and weighted by exp(R / tau) / q_edit, self-normalised. Departures:
    tau' is chosen by the share of tokens that it replaces (`edit_rate`; `algorithm.edits.draw_edits` has the formula);
    a text is replaced token by token, never made longer or shorter; the reward is any function, not the distance.
    """

    config_class = RAMLConfig

    @property
    def target(self) -> Target:
        config = self.config
        return Target(0.0, config.raml_temperature, config.num_samples, config.edit_rate)
