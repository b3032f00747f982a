"""Scheduled sampling: fine-tune on inputs in which the model's own predictions replace a growing share of tokens."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from semioffline.algorithm.masking import choose_hidden, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import complete, draw, draw_uniforms, sampling_logits
from semioffline.algorithm.tensors import Batch, Observation, Row, StepOutput
from semioffline.data.examples import Examples
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.frozen import predict_only
from semioffline.methods.shared.mle import mle_term
from semioffline.methods.shared.schedule import Decay, decayed_rate, training_steps
from semioffline.methods.shared.settings import DrawingSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import SHARE, setting


@dataclass
class ScheduledSamplingConfig(DrawingSettings):
    """Settings of `scheduled_sampling`."""

    method: ClassVar[str] = "scheduled_sampling"
    teacher_forcing_decay: Decay = setting(
        "linear", "Schedule of the teacher-forcing rate: linear | exponential | inverse_sigmoid | constant.",
        "Scheduled sampling",
    )  # fmt: skip
    teacher_forcing_end: float = setting(
        0.5, "Share of decoder inputs from the ground truth at the last step.", "Scheduled sampling",
        SHARE,
    )  # fmt: skip

    def problems(self) -> list[str]:
        curved = self.teacher_forcing_decay in ("exponential", "inverse_sigmoid")
        curved = curved and not 0.0 < self.teacher_forcing_end < 1.0
        told = f"teacher_forcing_decay={self.teacher_forcing_decay} needs a teacher_forcing_end between 0 and 1"
        return super().problems() + [told] * curved


class Method(BaseMethod[ScheduledSamplingConfig]):
    """L = - sum_t log p(y_t | x, s_<t), where s_t is y_t with probability e, else a prediction of y_t given x and y_<t.

    Mihaylova and Martins 2019, the two-pass form of Bengio et al. 2015 for Transformers: one pass over the ground truth
    predicts all positions at once, and a second one is trained on the mixture. e falls over training. Departures: the
    first pass has neither gradient nor dropout; its predictions are tokens (drawn, or the most likely with top_k=1),
    not mixtures of embeddings; special tokens are neither replaced nor predicted.
    """

    config_class = ScheduledSamplingConfig
    batch_on_host = True

    def __init__(self, config: ScheduledSamplingConfig):
        super().__init__(config)
        self.total_steps: int = config.max_steps

    def prepare(self, policy: Policy, examples: Examples) -> None:
        self.total_steps = training_steps(self.config, examples)

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config, target = self.config, batch.target
        rate = decayed_rate(config.teacher_forcing_decay, config.teacher_forcing_end, randomness.step, self.total_steps)
        replaced = choose_hidden(target, 1.0 - rate, mask_uniforms(target, batch.index, randomness, "scheduled"))
        shown = self.predict(policy, batch, replaced, randomness) if replaced.any() else target.ids
        [logits] = policy.predict(batch.source, [Row(shown, target.keep_mask, wanted=target.keep_mask)])
        right = (shown == target.ids)[replaced].float()
        return StepOutput(
            [mle_term(logits, batch, config.label_smoothing_factor)],
            {"teacher_forcing": rate, "predicted_right": right.mean()},  # NaN, left out of the log, where none is
        )

    def predict(self, policy: Policy, batch: Batch, replaced: Tensor, randomness: Randomness) -> Tensor:
        """Return (B, T), the ground truth with predicted tokens at the positions `replaced` (B, T)."""
        config, target = self.config, batch.target
        row = Row(target.ids, target.keep_mask, wanted=replaced, purpose="rl")
        [logits] = predict_only(policy, batch.source, [row])
        z = sampling_logits(logits, policy.allowed, config.temperature, config.top_k, config.top_p)
        chosen = Observation(target.ids, replaced)
        draws = draw(z, draw_uniforms(chosen, batch.index, 1, randomness, "scheduled token")).ids
        return complete(target, chosen, draws).ids[:, 0]
