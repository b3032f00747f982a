"""ILQL: values of tokens, learnt from texts and their rewards, that change what the model generates."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file
from torch import nn

from semioffline.algorithm.losses import text_scores
from semioffline.algorithm.proximal import generalized_advantages
from semioffline.algorithm.q_learning import conservative, expectile
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Row, StepOutput, Term, send
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.mle import masked_target_row, mle_term, target_row
from semioffline.methods.shared.perturbed import FILE, add_heads, save_heads
from semioffline.methods.shared.settings import MaskedMLESettings
from semioffline.policy.heads import QHeads
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.validation import FINITE, NOT_NEGATIVE, SHARE, setting


@dataclass
class ILQLConfig(MaskedMLESettings):
    """Settings of `ilql`."""

    method: ClassVar[str] = "ilql"
    beta: float = setting(10.0, "Weight of Q - V when it is added to the logits in generation.", "ILQL", FINITE)
    expectile: float = setting(
        0.7, "tau of the expectile loss. Near 1: V approaches the best Q in the data.", "ILQL", SHARE
    )
    gamma: float = setting(1.0, "Discount of a reward one token later.", "ILQL", SHARE)
    td_lambda: float = setting(
        0.9, "TD(lambda) of the targets of Q. 0: from the next V; 1: from the reward of the text.", "ILQL", SHARE
    )
    conservative_weight: float = setting(
        0.01, "Weight of the conservative loss, which lowers Q for tokens outside the data.", "ILQL", NOT_NEGATIVE
    )
    polyak: float = setting(0.1, "Share by which the slow copy of Q moves towards Q per step.", "ILQL", SHARE)
    head_learning_rate: float | None = setting(
        None, "Learning rate of the heads. Default: that of the model.", "ILQL", NOT_NEGATIVE
    )


class Method(BaseMethod[ILQLConfig]):
    """L = L_MLE + L_Q + L_V + conservative_weight * L_C on the ground truth and the candidates, with their rewards:

    L_Q = sum_i (G_t - Q_i(s_t, y_t))**2, L_V = expectile(min_i Q'_i(s_t, y_t) - V(s_t)),
    L_C = sum_i logsumexp_a Q_i(s_t, a) - Q_i(s_t, y_t); i = 1, 2; Q' are slow copies. Snell et al. 2023. The last token
    has the reward r. G_t = r_t + gamma ((1 - td_lambda) V(s_{t+1}) + td_lambda G_{t+1}); td_lambda = 0 as published.
    Means over the tokens of a text, the texts of a row, the rows. Texts are generated from log p(a | s_t) + beta
    (min_i Q'_i(s_t, a) - V(s_t)). Departures: the heads read detached states, so that the model itself is the
    fine-tuned one, and p has no model of its own; one hidden layer, as wide as the states.
    """

    config_class = ILQLConfig
    needs_reward = True
    needs_candidates = True
    batch_on_host = True

    def __init__(self, config: ILQLConfig):
        super().__init__(config)
        self.heads: QHeads | None = None
        self._step: int | None = None

    def prepare(self, policy: Policy, examples: Examples) -> None:
        self.heads = add_heads(policy, self.config.beta)

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        rate = self.config.head_learning_rate
        if rate is None or self.heads is None:
            return []
        return [([parameter for parameter in self.heads.parameters() if parameter.requires_grad], rate)]

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        config = self.config
        candidates, rewards = batch.candidates, batch.candidate_rewards
        if candidates is None or rewards is None or self.heads is None:
            raise UserError("ilql needs the columns candidates and candidate_rewards: see `semioffline candidates`")
        if randomness.step not in (0, self._step):  # the first micro-batch of a step
            self.heads.follow(config.polyak)
        self._step = randomness.step
        number, target = rewards.shape[1], batch.target
        truth = score.score_ids(
            [ids[keep].tolist() for ids, keep in zip(target.ids, target.keep_mask, strict=True)], batch, 1
        )
        texts = [target_row(batch)] + [
            Row(candidates.ids[n::number], keep, keep)
            for n, keep in enumerate(candidates.keep_mask[n::number] for n in range(number))
        ]
        rows = [Row(text.ids, text.keep_mask, text.wanted, "rl", "q") for text in texts]
        known = torch.cat([truth.rewards.cpu(), rewards.cpu()], dim=1)  # (B, 1 + N)
        shares = (~known.isnan()).float() / (~known.isnan()).sum(1, keepdim=True).clamp(min=1)

        logits, values = policy.predict(
            batch.source, [masked_target_row(policy, batch, config, randomness), *rows], with_values=True
        )
        sums = {name: torch.zeros((), device=policy.device) for name in ("q", "v", "conservative")}
        means = []
        for n, (row, found) in enumerate(zip(rows, values[1:], strict=True)):
            text, actions = row.wanted.nonzero()[:, 0], send(row.ids[row.wanted], policy.device)
            v, (q1, q2, slow) = found[:, 0, 0], found[:, 1:].unbind(1)
            wanted, whole = send(row.wanted, policy.device), torch.zeros(row.wanted.shape, device=policy.device)
            whole[wanted] = v.detach()
            rewards_now = send(known[:, n].nan_to_num(nan=0.0), policy.device)
            goals = generalized_advantages(rewards_now, whole, wanted, config.gamma, config.td_lambda).returns[wanted]
            chosen = [q.gather(1, actions[:, None])[:, 0] for q in (q1, q2, slow)]
            losses = {
                "q": (goals - chosen[0]).square() + (goals - chosen[1]).square(),
                "v": expectile(chosen[2].detach() - v, config.expectile),
                "conservative": conservative(q1, actions) + conservative(q2, actions),
            }
            for name, loss in losses.items():
                sums[name] = (
                    sums[name] + (text_scores(loss, text, len(batch)) * send(shares[:, n], policy.device)).sum()
                )
            means.append(torch.stack([chosen[2].detach().mean(), v.detach().mean()]))
        q, value = torch.stack(means).mean(0)
        weights = {"conservative": config.conservative_weight}
        return StepOutput(
            terms=[
                mle_term(logits[0], batch, config.label_smoothing_factor),
                *(Term(name, total, per="row", weight=weights.get(name, 1.0)) for name, total in sums.items()),
            ],
            metrics={**truth.metrics, "q": q, "value": value},
        )

    def save(self, folder: Path) -> None:
        if self.heads is not None:
            save_heads(self.heads, self.config.beta, folder)

    def load(self, folder: Path) -> None:
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}: it was not saved by ilql; start without resuming")
        if self.heads is not None:
            self.heads.load_state_dict(load_file(folder / FILE))
