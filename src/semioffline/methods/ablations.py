"""The paper's variants of semi-offline RL (sections 3.1 and 4.4), which test its way of masking.

NAT is `semi_offline` with mask_rate=1; data+ and data- are its static_target=best and worst.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from semioffline.algorithm.masking import mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import complete, draw, draw_uniforms, sampling_logits
from semioffline.algorithm.tensors import Batch, Observation, Row, Text
from semioffline.errors import UserError
from semioffline.methods.semi_offline import Method as SemiOffline
from semioffline.methods.semi_offline import SemiOfflineConfig
from semioffline.methods.shared.estimator import Drawn
from semioffline.methods.shared.frozen import predict_only
from semioffline.methods.shared.in_turn import draw_in_turn
from semioffline.methods.shared.mle import masked_target_row
from semioffline.policy.policy import Policy
from semioffline.validation import SHARE, setting

ObservationKind = Literal["full", "no_mask", "noisy", "all", "pre"]


@dataclass
class AblationsConfig(SemiOfflineConfig):
    """Settings of `ablations`: those of `semi_offline`, and what the policy sees at masked positions."""

    method: ClassVar[str] = "ablations"
    observation: ObservationKind = setting(
        "full", "What the policy sees at masked positions: full | no_mask | noisy | all | pre.", "Ablations"
    )
    noise_rate: float = setting(
        0.3, "observation=noisy: share of the masked positions that show the static token.", "Ablations", SHARE
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if self.eos_after is not None and self.observation == "full":
            found.append(
                "eos_after cannot be combined with observation='full', whose samples keep the length of the static "
                "target"
            )
        if self.estimator == "counterfactual" and self.observation == "full":
            found.append(
                "estimator='counterfactual' cannot be combined with observation='full', where samples do not share "
                "distributions"
            )
        return found


class Method(SemiOffline):
    """`semi_offline` with another observation.

    full: (c1), a masked position sees the draws of its own sample before it. no_mask: -Mask, scheduled sampling with
    two passes. noisy: part of the masked positions show the static token. all: the static target is appended to the
    source. pre: the embedding of the masked token is added to that of the mask token.
    """

    config_class: ClassVar[type[AblationsConfig]] = AblationsConfig
    config: AblationsConfig

    def observe(self, policy: Policy, batch: Batch, static: Text, randomness: Randomness) -> Observation:
        observation = super().observe(policy, batch, static, randomness)
        if self.config.observation == "noisy":
            uniforms = mask_uniforms(static, batch.index, randomness, "noise")
            return add_noise(observation, static, self.config.noise_rate, uniforms)
        if self.config.observation == "no_mask":
            return self._show_predictions(policy, batch, static, observation, randomness)
        return observation

    def predict_and_draw(
        self, policy: Policy, batch: Batch, static: Text, observation: Observation, randomness: Randomness
    ) -> tuple[Tensor, Drawn]:
        if self.config.observation in ("noisy", "no_mask"):
            return super().predict_and_draw(policy, batch, static, observation, randomness)
        target_row = masked_target_row(policy, batch, self.config, randomness)
        if self.config.observation == "full":
            return draw_in_turn(policy, batch, static, observation, target_row, self.config, randomness)
        masked_row = Row(observation.ids, static.keep_mask, wanted=observation.hidden, purpose="rl")
        if self.config.observation == "pre":
            masked_row = replace(masked_row, added_ids=static.ids.masked_fill(~observation.hidden, -1))
            target_logits, logits = policy.predict(batch.source, [target_row, masked_row])
        else:  # the MLE row keeps the plain source: the static target may be its answer
            source = append_target(batch.source, static, policy.tokens.eos_id, policy.tokens.pad_id)
            _check_fits(policy, source, static)
            [target_logits] = policy.predict(batch.source, [target_row])
            [logits] = policy.predict(source, [masked_row])
        return target_logits, self.sample(policy, logits, batch, static, observation, randomness)

    def _show_predictions(
        self, policy: Policy, batch: Batch, static: Text, observation: Observation, randomness: Randomness
    ) -> Observation:
        """Run a first pass over the static target, and replace the mask tokens by its predictions."""
        hidden = observation.hidden
        [logits] = predict_only(policy, batch.source, [Row(static.ids, static.keep_mask, hidden, purpose="rl")])
        uniforms = draw_uniforms(observation, batch.index, 1, randomness, "prediction")
        config = self.config
        z = sampling_logits(logits, policy.allowed, config.temperature, config.top_k, config.top_p)
        draws = draw(z, uniforms).ids
        predicted = complete(static, observation, draws).ids[:, 0]
        return Observation(torch.where(hidden, predicted, static.ids), hidden)


def add_noise(observation: Observation, text: Text, rate: float, uniforms: Tensor) -> Observation:
    """Show the static token at a share `rate` of the masked positions (+Noisy Mask), as if it were not to be
    predicted."""
    shown = observation.hidden & (uniforms < rate)
    return Observation(torch.where(shown, text.ids, observation.ids), observation.hidden)


def append_target(source: Text, text: Text, separator_id: int, pad_id: int) -> Text:
    """Append the static target to the source (+ALL), after a separator unless the source ends with one."""
    ids, words = [], []
    for b in range(len(source.ids)):
        own, whole = source.ids[b][source.keep_mask[b]], text.ids[b][text.keep_mask[b]]
        between = own.new_full((0 if len(own) and own[-1] == separator_id else 1,), separator_id)
        ids.append(torch.cat([own, between, whole]))
        words.append(torch.full_like(ids[-1], -1))
    kept = [torch.ones_like(row, dtype=torch.bool) for row in ids]
    return Text(
        pad_sequence(ids, batch_first=True, padding_value=pad_id),
        pad_sequence(kept, batch_first=True, padding_value=False),
        pad_sequence(words, batch_first=True, padding_value=-1),
    )


def _check_fits(policy: Policy, source: Text, static: Text) -> None:
    limit = policy.max_positions()
    used = source.ids.shape[1] + (0 if policy.is_encoder_decoder else static.ids.shape[1])
    if limit is not None and used > limit:
        raise UserError(
            f"observation='all' appends the static target to the source: {used} tokens, but the model has {limit} "
            "positions; lower max_prompt_length or max_completion_length"
        )
