"""ERPO: entropy-regularised policy optimisation, between likelihood and policy gradient."""

from dataclasses import dataclass
from typing import ClassVar

from semioffline.methods.shared.settings import DrawingSettings, EditSettings
from semioffline.methods.shared.weighted import Target, WeightedMethod
from semioffline.validation import NOT_NEGATIVE, SHARE, setting


@dataclass
class ERPOConfig(DrawingSettings, EditSettings):
    """Settings of `erpo`."""

    method: ClassVar[str] = "erpo"
    erpo_alpha: float = setting(
        0.05, "alpha, weight of KL(q || p): the larger, the nearer q is to the policy p.", "ERPO", NOT_NEGATIVE
    )
    erpo_beta: float = setting(0.001, "beta, weight of the entropy of q.", "ERPO", NOT_NEGATIVE)
    edit_share: float = setting(
        0.5, "Share of the texts that are edits of the ground truth; the others are samples.", "Sampling", SHARE
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if self.erpo_alpha + self.erpo_beta <= 0.0:
            found.append(
                "erpo_alpha and erpo_beta are both 0: one of them must be above 0, because q divides by their sum"
            )
        if self.edit_share > 0.0 and (self.top_k > 0 or self.top_p < 1.0):
            found.append(
                "top_k and top_p need edit_share=0: with them, edits of the ground truth can have probability 0"
            )
        return found


class Method(WeightedMethod[ERPOConfig]):
    """L = - E_q[log p(y | x)] with q(y) ∝ exp((alpha log p(y | x) + R(y)) / (alpha + beta)), by importance sampling.

    Tan et al. 2019 (arXiv:1811.09740), equations 4 to 6: q maximises E_q[R] - alpha KL(q || p) + beta H(q), p follows q
    by weighted likelihood. alpha = 0 is RAML (`raml`), beta = 0 softmax policy gradient (`spg`), a reward of 1 for the
    ground truth alone and alpha = 0 is MLE. K texts are drawn: edits of the ground truth, and samples of p.
    Departures: q is sampled by weights on whole texts, not token by token with increments of the reward, so that any
    reward will do; alpha and beta stay as they are instead of being annealed.
    """

    config_class = ERPOConfig

    @property
    def target(self) -> Target:
        config = self.config
        edits = round(config.edit_share * config.num_samples)
        return Target(config.erpo_alpha, config.erpo_beta, edits, config.edit_rate, drawing=config)
