"""Semi-offline RL: hide part of a static target, run the model once, draw K samples from that one pass."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.losses import Late, advantages_of_masks, sparse_factors
from semioffline.algorithm.masking import (
    add_noise,
    append_target,
    choose_hidden,
    cover,
    mask_uniforms,
    scheduled_rate,
    with_end,
)
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import (
    allow_alike,
    allow_end,
    complete,
    draw,
    draw_uniforms,
    drawn_log_p,
    join,
    sampling_logits,
)
from semioffline.algorithm.tensors import Batch, Observation, Row, Samples, StepOutput, Term, Text, send
from semioffline.cuda.functions import Replayed
from semioffline.data.candidates import FreshTargets
from semioffline.data.examples import pick_static
from semioffline.errors import UserError
from semioffline.methods import BaseMethod
from semioffline.methods.ft import mle_row, mle_term
from semioffline.methods.gold import Method as Gold
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import PendingScores, Scorer, Scores


class Decision(NamedTuple):
    """What the policy chose at the M hidden positions of one mask."""

    samples: Samples
    drawn: Tensor
    """(M, K) log p of the drawn tokens, with gradient; a constant in k may be missing (it cancels)."""
    entropy: Tensor
    """Of the distributions drawn from."""


class Method(BaseMethod):
    """L = L_MLE + rl_weight * L_RL, with L_RL = (1/K) sum_k -(R_k - b) sum_{t hidden} log p(a_t^k | o_t).

    Section 3.3 of the paper; the sum over k is taken in the sparse form (see `reinforce_sparse`). `observation` and
    `mask_pattern` choose the variants (sections 3.1 and 4.4). With complementary masks the first K/2 samples decide the
    positions of one mask, the others those of the other; the formula is the same, b is the mean of each half.
    With `anchor="gold"`, which is not in the paper, GOLD's loss takes the place of L_MLE: at the same cost, since it
    weighs the tokens of the row that is there for L_MLE.
    """

    needs_reward = True
    batch_on_host = True

    def __init__(self, args: Any):
        super().__init__(args)
        self.fresh = FreshTargets()
        self.gold = Gold(args) if args.anchor == "gold" else None
        self.steps_ahead = args.refresh_every
        self._upcoming: list[Batch] = []
        self.total_steps: int = args.max_steps
        factors = partial(sparse_factors, baseline=args.baseline, scale=args.scale_rewards, loss_scale=args.loss_scale)
        self._factors = Replayed(factors) if args.cuda_graphs else factors

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        args = self.args
        static = self._static(policy, batch, randomness)
        observations = self._observe(policy, batch, static, randomness)

        target_row = mle_row(policy, batch, randomness, args.mle_mask_rate, args.mle_mask_share)
        decide = decide_in_turn if args.observation == "full" else decide_at_once
        target_logits, decisions = decide(policy, batch, static, observations, target_row, args, randomness)

        scores = score(join([decision.samples for decision in decisions]), batch)
        rl = self._reinforce(decisions, scores)
        # made after the RL term, so that backward comes to it first and to the rewards last
        anchor, metrics = self._anchor(target_logits, batch)
        return StepOutput(
            terms=[*anchor, Term("rl", rl.total, per="row", weight=args.rl_weight, value=rl.value)],
            metrics=_describe(static, observations, decisions) | metrics,
            late_metrics=lambda: scores.metrics,
            completions=partial(self._log_rows, policy, batch, observations, static, scores)
            if args.log_completions
            else None,
        )

    def _anchor(self, logits: Tensor, batch: Batch) -> tuple[list[Term], dict[str, Tensor]]:
        """What keeps the policy near the ground truth, and what is logged of it."""
        if self.gold is not None:
            return self.gold.weigh(logits, batch)
        return [mle_term(logits, batch, self.args.label_smoothing_factor)], {}

    def _reinforce(self, decisions: list[Decision], scores: Scores | PendingScores) -> Late:
        """L_RL, which waits for the rewards."""
        device = decisions[0].drawn.device
        hidden = send(torch.stack([decision.samples.hidden.sum(1) for decision in decisions]), device)

        def factors() -> list[Tensor]:
            of_rows = self._factors(scores.rewards.to(device), hidden)
            return [own[decision.samples.places[0]] for own, decision in zip(of_rows, decisions, strict=True)]

        return Late(factors, *(decision.drawn for decision in decisions), ready=scores.ready)

    def _static(self, policy: Policy, batch: Batch, randomness: Randomness) -> Text:
        """The text that is partly hidden: the batch's own, one of its candidates, or the policy's last sample."""
        static = batch.static
        if batch.static_counts is not None:
            uniforms = randomness.uniform("static", batch.index, [1] * len(batch))
            static = pick_static(batch.static, batch.static_counts, uniforms)
        if self.args.refresh_every:
            self.fresh.refresh(policy, batch, self._upcoming, self.args, randomness)
            self._upcoming = []
            static = self.fresh.replace(static, batch.index, policy.pad_id)
        return static

    def _observe(self, policy: Policy, batch: Batch, static: Text, randomness: Randomness) -> list[Observation]:
        """What is hidden, and what is shown there: one observation, or two with complementary masks."""
        args = self.args
        uniforms = mask_uniforms(static, batch.index, randomness, "mask")
        rate = self.mask_rate(randomness.step)
        masks = choose_hidden(static, rate, uniforms, args.mask_unit, args.mask_pattern, args.mask_span)
        if args.draw_end:
            end_id = policy.tokenizer.eos_token_id
            masks = [with_end(static, hidden, end_id, args.eos_after) for hidden in masks]
        observations = [cover(static, hidden, policy.mask_id) for hidden in masks]
        if args.observation == "noisy":
            noise = mask_uniforms(static, batch.index, randomness, "noise")
            return [add_noise(observation, static, args.noise_rate, noise) for observation in observations]
        if args.observation == "no_mask":
            return _show_predictions(policy, batch, static, observations, args, randomness)
        return observations

    def _log_rows(
        self,
        policy: Policy,
        batch: Batch,
        observations: list[Observation],
        static: Text,
        scores: Scores | PendingScores,
    ) -> list[dict[str, Any]]:
        args = self.args
        given = advantages_of_masks(scores.rewards, len(observations), args.baseline, args.scale_rewards)
        advantage = torch.cat([part.values for part in given], dim=1).tolist()
        rewards, texts = scores.rewards.tolist(), scores.texts
        rows = []
        for b, example in enumerate(batch.index.tolist()):
            keep = static.keep_mask[b]
            shown = [policy.show(observation.ids[b][keep].tolist()) for observation in observations]
            for k, text in enumerate(texts[b]):
                rows.append(
                    {
                        "example": example,
                        "prompt": batch.columns["prompt"][b],
                        "masked_target": shown[k * len(shown) // len(texts[b])],
                        "sample": text,
                        "reward": rewards[b][k],
                        "advantage": advantage[b][k],
                    }
                )
        return rows

    def mask_rate(self, step: int) -> float:
        """p_m at this step."""
        if self.args.mask_rate_end is not None and self.total_steps <= 0:
            raise UserError("mask_rate_end needs the number of training steps: set max_steps")
        return scheduled_rate(self.args.mask_rate, self.args.mask_rate_end, step, self.total_steps)

    def look_ahead(self, batches: list[Batch]) -> None:
        self._upcoming = batches

    def prepare(self, policy: Policy, examples: Any) -> None:
        """Count the steps of training, as transformers.Trainer does, where max_steps does not say."""
        args = self.args
        if self.gold is not None:
            self.gold.prepare(policy, examples)
        if args.max_steps <= 0 and hasattr(examples, "__len__"):
            rounded = math.floor if args.dataloader_drop_last else math.ceil
            batches = rounded(rounded(len(examples) / args.train_batch_size) / args.world_size)
            updates = max(math.ceil(batches / args.gradient_accumulation_steps), 1)
            self.total_steps = math.ceil(args.num_train_epochs * updates)

    def save(self, folder: Path) -> None:
        if self.args.refresh_every:
            self.fresh.save(folder)
        if self.gold is not None:
            self.gold.save(folder)

    def load(self, folder: Path) -> None:
        if self.args.refresh_every:
            self.fresh.load(folder)
        if self.gold is not None:
            self.gold.load(folder)


# ---- how the hidden positions are decided ----


def decide_at_once(
    policy: Policy,
    batch: Batch,
    static: Text,
    observations: list[Observation],
    target_row: Row,
    args: Any,
    randomness: Randomness,
) -> tuple[Tensor, list[Decision]]:
    """One pass; every hidden position draws K tokens from its one distribution. Also the logits of the MLE row."""
    masked_rows = [_masked_row(observation, static, args.observation == "pre") for observation in observations]
    if args.observation == "all":  # the MLE row keeps the plain source: the static target may be its answer
        source = append_target(batch.source, static, policy.tokenizer.eos_token_id, policy.pad_id)
        _check_fits(policy, source, static)
        [target_logits] = policy.predict(batch.source, [target_row])
        logits = policy.predict(source, masked_rows)
    else:
        target_logits, *logits = policy.predict(batch.source, [target_row, *masked_rows])

    decisions = []
    numbers = _numbers(observations, batch, args, randomness)
    for observation, masked_logits, own_numbers in zip(observations, logits, numbers, strict=True):
        allowed, end_id = _allowed(policy, static, observation, args), None
        if args.eos_after is not None:
            end_id = policy.tokenizer.eos_token_id
            allowed = allow_end(allowed, static, observation, end_id, args.eos_after)
        z = sampling_logits(masked_logits, allowed, args.temperature, args.top_k, args.top_p)
        draws, entropy = draw(z, own_numbers)
        drawn_logits = masked_logits.gather(1, draws)
        if args.temperature != 1.0:
            drawn_logits = drawn_logits / args.temperature
        decisions.append(Decision(complete(static, observation, draws, end_id), drawn_logits, entropy))
    return target_logits, decisions


def _allowed(policy: Policy, static: Text, observation: Observation, args: Any) -> Tensor:
    """(V,) or (M, V) True at what may be drawn, but for the end."""
    if not args.draw_alike:
        return policy.allowed
    return allow_alike(policy.allowed, policy.kinds, static, observation)


def _masked_row(observation: Observation, static: Text, with_hints: bool) -> Row:
    row = Row(observation.ids, static.keep_mask, wanted=observation.hidden, purpose="rl")
    if not with_hints:
        return row
    return replace(row, added_ids=static.ids.masked_fill(~observation.hidden, -1))


def decide_in_turn(
    policy: Policy,
    batch: Batch,
    static: Text,
    observations: list[Observation],
    target_row: Row,
    args: Any,
    randomness: Randomness,
) -> tuple[Tensor, list[Decision]]:
    """Fully observable, (c1) in the paper: a hidden position sees what its own sample has at those before.

    Sampling costs K * sum_t M_t passes (Proposition 1); one more, for all samples, gives log p with gradient. Samples
    do not share distributions, so the normaliser does not cancel and log p is complete.
    """
    numbers = _numbers(observations, batch, args, randomness)
    drawn = [
        _fill_in_turn(policy, batch, static, observation, args, own_numbers)
        for observation, own_numbers in zip(observations, numbers, strict=True)
    ]
    rows = [
        Row(ids, static.keep_mask, wanted=observation.hidden, purpose="grad")
        for observation, (samples, _) in zip(observations, drawn, strict=True)
        for ids in samples.ids.unbind(1)
    ]
    target_logits, *logits = policy.predict(batch.source, [target_row, *rows])
    decisions = []
    for observation, (samples, entropy) in zip(observations, drawn, strict=True):
        allowed = _allowed(policy, static, observation, args)
        own, logits = logits[: samples.draws.shape[1]], logits[samples.draws.shape[1] :]
        log_p = [
            drawn_log_p(z, draws, allowed, args.temperature, args.top_k, args.top_p)
            for z, draws in zip(own, samples.draws.unbind(1), strict=True)
        ]
        decisions.append(Decision(samples, torch.stack(log_p, dim=1), entropy))
    return target_logits, decisions


@torch.no_grad()
def _fill_in_turn(
    policy: Policy, batch: Batch, static: Text, observation: Observation, args: Any, numbers: Tensor
) -> tuple[Samples, Tensor]:
    """K samples, position after position, each drawn by its number in `numbers` (M, K); and the entropies (M, K)."""
    many = numbers.shape[1]
    rows, positions = observation.hidden.nonzero(as_tuple=True)  # (M,)
    turn = observation.hidden.cumsum(1)[rows, positions]  # (M,) its place among the hidden positions of its row
    samples = complete(static, observation, torch.zeros_like(numbers, dtype=torch.long))
    ids, entropy = samples.ids, torch.zeros_like(numbers)  # (B, K, T), (M, K)
    allowed = _allowed(policy, static, observation, args).expand(len(numbers), -1)
    for now in range(1, int(observation.hidden.sum(1).max()) + 1):
        at = (turn == now).nonzero().squeeze(1)  # (n,) one hidden position of each row that has any left
        row, position = rows[at], positions[at]
        length = int(position.max()) + 1
        wanted = torch.arange(length, device=position.device) == position[:, None]  # (n, length)
        source = Text(batch.source.ids[row], batch.source.keep_mask[row], batch.source.words[row])
        keep_mask = static.keep_mask[row, :length]
        shown = [Row(tokens[:, :length], keep_mask, wanted, "rl") for tokens in ids[row].unbind(1)]  # K of (n, length)
        logits = torch.stack(_look(policy, source, shown), dim=1).flatten(0, 1)  # (n * K, V)
        own = allowed[send(at, allowed.device)].repeat_interleave(many, 0)
        z = sampling_logits(logits, own, args.temperature, args.top_k, args.top_p)
        draws, spread = draw(z, numbers[at].reshape(-1, 1))
        samples.draws[at] = draws.view(-1, many).to(ids.device)
        ids[row, :, position] = samples.draws[at]
        entropy[at] = spread.view(-1, many).to(ids.device)
    return samples, entropy


@torch.no_grad()
def _show_predictions(
    policy: Policy, batch: Batch, static: Text, observations: list[Observation], args: Any, randomness: Randomness
) -> list[Observation]:
    """-Mask, scheduled sampling: a first pass over the static target; its predictions stand where masks would."""
    hidden = torch.stack([observation.hidden for observation in observations]).any(0)
    [logits] = _look(policy, batch.source, [Row(static.ids, static.keep_mask, wanted=hidden, purpose="rl")])
    union = Observation(static.ids, hidden)
    allowed = _allowed(policy, static, union, args)
    z = sampling_logits(logits, allowed, args.temperature, args.top_k, args.top_p)
    draws, _ = draw(z, draw_uniforms(union, batch.index, 1, randomness, "prediction"))
    predicted = complete(static, union, draws).ids[:, 0]
    return [Observation(torch.where(o.hidden, predicted, static.ids), o.hidden) for o in observations]


def _look(policy: Policy, source: Text, rows: list[Row]) -> list[Tensor]:
    """A pass without gradient or dropout. It does not go through DDP's wrapper: processes may need different numbers
    of them, and the wrapper would wait for the others."""
    training = policy.model.training
    policy.model.eval()
    try:
        return policy(source, rows)
    finally:
        policy.model.train(training)


def _numbers(observations: list[Observation], batch: Batch, args: Any, randomness: Randomness) -> list[Tensor]:
    """For each mask, the (M, K / number of masks) uniform numbers of its draws."""
    many = args.num_samples // len(observations)
    purposes = ["draw", "draw 2"][: len(observations)]
    return [
        draw_uniforms(observation, batch.index, many, randomness, purpose)
        for observation, purpose in zip(observations, purposes, strict=True)
    ]


def _check_fits(policy: Policy, source: Text, static: Text) -> None:
    most = policy.max_positions()
    used = source.ids.shape[1] + (0 if policy.is_encoder_decoder else static.ids.shape[1])
    if most is not None and used > most:
        raise UserError(
            f"observation='all' puts the static target behind the source: {used} tokens, but the model has {most} "
            "positions; lower max_prompt_length or max_completion_length"
        )


def _describe(static: Text, observations: list[Observation], decisions: list[Decision]) -> dict[str, float | Tensor]:
    entropy = torch.cat([decision.entropy.reshape(-1) for decision in decisions])
    hidden = sum(int((observation.hidden & static.ordinary).sum()) for observation in observations)
    ordinary = max(int(static.ordinary.sum()), 1) * len(observations)
    return {"entropy": entropy.mean() if len(entropy) else 0.0, "mask_rate": hidden / ordinary}
