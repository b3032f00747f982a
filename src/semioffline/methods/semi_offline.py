"""Semi-offline RL: mask part of a static target, run the model once, draw K samples from that one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from semioffline.algorithm.counterfactual import swap_coefficients
from semioffline.algorithm.losses import Advantages, advantages, reinforce, sample_weights
from semioffline.algorithm.masking import choose_hidden, cover, mask_uniforms, with_end
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import allow_end, complete, sampling_logits
from semioffline.algorithm.tensors import Batch, Observation, Row, StepOutput, Term, Text, send
from semioffline.config import StaticTarget
from semioffline.cuda.functions import Replayed
from semioffline.data.examples import Examples, choose_static
from semioffline.methods.shared.base import RLMethod
from semioffline.methods.shared.completions import SampleLog
from semioffline.methods.shared.estimator import Drawn, EstimatorSettings, draw_tokens
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.schedule import scheduled_rate, training_steps
from semioffline.methods.shared.settings import MaskingSettings
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer


@dataclass
class SemiOfflineConfig(MaskingSettings, EstimatorSettings):
    """Settings of `semi_offline`: K samples from one forward pass over a masked text.

    Example:
        ```python
        args = SemiOfflineConfig(output_dir="run", num_samples=64, mask_rate=0.4, rl_ratio=1.0, learning_rate=1e-5)
        ```
    """

    method: ClassVar[str] = "semi_offline"


class Method(RLMethod[SemiOfflineConfig]):
    """L = L_MLE + rl_weight * L_RL, with L_RL = (1/K) sum_k -(R_k - b) sum_{t masked} log p(a_t^k | o_t).

    Section 3.3 of the paper; loss_scale="token" multiplies L_RL by K / |M|. `algorithm.losses.reinforce` is L_RL.
    """

    config_class: ClassVar[type[SemiOfflineConfig]] = SemiOfflineConfig
    masks_target = True

    def __init__(self, config: SemiOfflineConfig):
        super().__init__(config)
        self.total_steps: int = config.max_steps
        self._weights = Replayed(self._compute_weights) if config.cuda_graphs else self._compute_weights

    @property
    def static_target(self) -> StaticTarget:
        return self.config.static_target

    @property
    def mask_where(self) -> str | None:
        return self.config.mask_where

    def prepare(self, policy: Policy, examples: Examples) -> None:
        self.total_steps = training_steps(self.config, examples)

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        static = choose_static(batch, randomness)
        observation = self.observe(policy, batch, static, randomness)  # mask
        mle_logits, drawn = self.predict_and_draw(policy, batch, static, observation, randomness)
        scores = score(drawn.samples, batch)

        masked_counts = send(observation.hidden.sum(1), drawn.logits.device)  # (B,)
        rl = reinforce(drawn.logits, lambda: self.coefficients(drawn, scores.rewards, masked_counts), scores.ready)
        # Backward visits the newest term first: the MLE term, while rewards are still computed.
        mle = mle_term(mle_logits, batch, config.label_smoothing_factor)

        log = SampleLog(policy.tokens, batch, observation, drawn.samples, drawn.probabilities, scores, self._advantages)
        return StepOutput(
            terms=[mle, Term("rl", rl.total, per="row", weight=config.first_rl_weight, value=rl.value)],
            metrics={
                "entropy": drawn.entropy.mean() if drawn.entropy.numel() else 0.0,
                "mask_rate": int((observation.hidden & static.ordinary).sum()) / max(int(static.ordinary.sum()), 1),
            },
            late_metrics=lambda: scores.metrics,
            completions=log.completions if config.log_completions else None,
            tokens=log.tokens if config.log_completions else None,
        )

    def observe(self, policy: Policy, batch: Batch, static: Text, randomness: Randomness) -> Observation:
        """Mask a share of the static target (Definition 4)."""
        config = self.config
        rate = scheduled_rate(config.mask_rate, config.mask_rate_end, randomness.step, self.total_steps)
        uniforms = mask_uniforms(static, batch.index, randomness, "mask")
        hidden = choose_hidden(static, rate, uniforms, config.mask_unit, config.mask_pattern, config.mask_span)
        if config.draw_end and config.eos_after is not None:
            hidden = with_end(static, hidden, policy.tokens.eos_id, config.eos_after)
        return cover(static, hidden, policy.tokens.mask_id)

    def predict_and_draw(
        self, policy: Policy, batch: Batch, static: Text, observation: Observation, randomness: Randomness
    ) -> tuple[Tensor, Drawn]:
        """Run one forward pass. Return the logits of the MLE row, and K draws at each masked position."""
        mle_row = masked_target_row(policy, batch, self.config, randomness)
        rl_row = Row(observation.ids, static.keep_mask, wanted=observation.hidden, purpose="rl")
        mle_logits, rl_logits = policy.predict(batch.source, [mle_row, rl_row])
        return mle_logits, self.sample(policy, rl_logits, batch, static, observation, randomness)

    def sample(
        self,
        policy: Policy,
        logits: Tensor,
        batch: Batch,
        static: Text,
        observation: Observation,
        randomness: Randomness,
    ) -> Drawn:
        """Draw K samples from the (M, V) logits of the masked positions."""
        config, allowed, end_id = self.config, policy.allowed, None
        if config.eos_after is not None:
            end_id = policy.tokens.eos_id
            allowed = allow_end(allowed, static, observation, end_id, config.eos_after)
        z = sampling_logits(logits, allowed, config.temperature, config.top_k, config.top_p)
        drawn, swaps = draw_tokens(z, observation, batch.index, config, randomness)
        drawn_logits = logits.gather(1, drawn.ids) / config.temperature  # no softmax: see `reinforce`
        samples = complete(static, observation, drawn.ids, end_id)
        return Drawn(samples, drawn_logits, drawn.entropy, drawn.probabilities, swaps)

    def coefficients(self, drawn: Drawn, rewards: Tensor, masked_counts: Tensor) -> Tensor:
        """(M, K) the weights of the drawn logits, from (B, K) rewards. masked_counts: (B,) on the device of the
        logits."""
        rewards, rows = rewards.to(masked_counts.device), drawn.samples.places[0]
        if drawn.swaps is not None:
            return swap_coefficients(drawn.swaps, rewards, rows, masked_counts, self.config.loss_scale)
        return self._weights(rewards, masked_counts)[rows]

    def _advantages(self, rewards: Tensor) -> Advantages:
        return advantages(rewards, self.config.baseline, self.config.scale_rewards)

    def _compute_weights(self, rewards: Tensor, masked_counts: Tensor) -> Tensor:
        return sample_weights(self._advantages(rewards), masked_counts, self.config.loss_scale)
