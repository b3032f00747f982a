"""Losses as pure functions on tensors. Each returns a sum; the trainer divides by the count of the whole step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from semioffline.algorithm.tensors import send

BASELINES = ("mean", "leave_one_out")
LOSS_SCALES = ("token", "sequence")
GOLD_REWARDS = ("s", "p")
ANCHORS = ("mle", "gold")


def mle(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Summed negative log-likelihood of `labels` (N,) under `logits` (N, V).

    With smoothing e: (1 - e) * NLL + e * mean over the vocabulary of -log p. The paper's printed formula has no sign.
    """
    labels = send(labels, logits.device)
    return F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)


class Advantages(NamedTuple):
    """values: (B, K), 0 for samples left out; they sum to 0 in every row. counts: (B,) samples that count."""

    values: Tensor
    counts: Tensor
    valid: Tensor | None = None
    """(B, K) False at samples left out; None means that all count."""

    def to(self, device: torch.device) -> "Advantages":
        return Advantages(*(None if part is None else send(part, device) for part in self))  # type: ignore[arg-type]


def advantages(rewards: Tensor, baseline: str = "mean", scale: bool = False) -> Advantages:
    """Reward minus baseline; NaN rewards are left out.

    mean: b = mean of the row's K rewards. It contains the sample itself, so the expected gradient is (K-1)/K of the
    exact one. leave_one_out: b_k = mean of the others' rewards, A_k = K/(K-1) * (R_k - mean): all of the gradient.
    scale: divide by the standard deviation of the row's rewards. Equal rewards give exactly zero, however rounded.
    """
    valid = ~torch.isnan(rewards)
    counts = valid.sum(1)
    kept = valid & ~equal_rewards(rewards)[:, None]
    values = torch.where(kept, rewards, 0.0)
    for _ in range(2):  # the second time takes off what rounding left of the mean
        values = torch.where(kept, values - (values.sum(1) / counts.clamp(min=1))[:, None], 0.0)
    deviation = (values.square().sum(1) / (counts - 1).clamp(min=1)).sqrt()
    if baseline == "leave_one_out":
        values = values * (counts / (counts - 1).clamp(min=1))[:, None]
    if scale:
        values = values / (deviation[:, None] + 1e-6)
    return Advantages(values, counts, valid)


def advantages_of_masks(rewards: Tensor, number: int, baseline: str = "mean", scale: bool = False) -> list[Advantages]:
    """One for each mask: the first K / number samples belong to the first and so on; b is the mean of its own."""
    return [advantages(part, baseline, scale) for part in rewards.chunk(number, dim=1)]


def equal_rewards(rewards: Tensor) -> Tensor:
    """(B, K) -> (B,) True where all samples that count have the same reward: nothing to learn from that row."""
    high = rewards.nan_to_num(nan=-torch.inf).amax(1)
    low = rewards.nan_to_num(nan=torch.inf).amin(1)
    return high <= low


def _row_weights(advantages: Advantages, hidden: Tensor, loss_scale: str) -> Tensor:
    """(B, K) factor of log p(a_t^k) in the loss, without the minus sign. hidden: (B,) the row's hidden positions.

    sequence: A_k / K, the printed formula. token: A_k / |M|, the scale of the published lambda (sum over K, mean over
    the row's hidden positions): K / |M| times the printed formula.
    """
    divisors = advantages.counts if loss_scale == "sequence" else hidden
    return advantages.values / divisors.clamp(min=1)[:, None]


def _weights(advantages: Advantages, rows: Tensor, loss_scale: str) -> Tensor:
    """(M, K) the same for each hidden position."""
    return _row_weights(advantages, _count(rows, len(advantages.counts)), loss_scale)[rows]


def _count(places: Tensor, number: int) -> Tensor:
    """(number,) how often each of 0 ... number - 1 occurs. torch.bincount would make the host wait for the device."""
    ones = torch.ones_like(places)
    return torch.zeros(number, dtype=torch.long, device=places.device).index_add(0, places, ones)


def reinforce_dense(
    logits: Tensor, draws: Tensor, rows: Tensor, advantages: Advantages, loss_scale: str = "token"
) -> Tensor:
    """REINFORCE over the hidden positions, summed over rows: - sum_k w_k sum_t log p(a_t^k | o_t).

    logits: (M, V) of the distribution drawn from (after temperature and restriction); draws: (M, K); rows: (M,).
    """
    log_p = logits.float().log_softmax(1).gather(1, draws)
    return -(_weights(advantages, rows, loss_scale) * log_p).sum()


def reinforce_sparse(drawn_logits: Tensor, rows: Tensor, advantages: Advantages, loss_scale: str = "token") -> Tensor:
    """The same loss without the normaliser: - sum_k w_k sum_t z_t[a_t^k].

    All samples of a row share its distributions and sum_k A_k = 0, so the logsumexp cancels, in value and gradient.
    drawn_logits: (M, K), z_t[a_t^k] / temperature.
    """
    return -(_weights(advantages, rows, loss_scale) * drawn_logits.float()).sum()


def sparse_factors(
    rewards: Tensor, hidden: Tensor, baseline: str = "mean", scale: bool = False, loss_scale: str = "token"
) -> Tensor:
    """(n, B, K / n) what `reinforce_sparse` multiplies the drawn logits of a row and sample with: it is linear in them.

    hidden: (n, B) the number of positions that each of n masks hides.
    """
    parts = advantages_of_masks(rewards, len(hidden), baseline, scale)
    weights = torch.stack([_row_weights(part, own, loss_scale) for part, own in zip(parts, hidden, strict=True)])
    return -weights / len(hidden) if loss_scale == "sequence" else -weights  # 1/K is of the samples of all masks


class Late:
    """sum f * x over `inputs` x with factors f that are not known yet: those of the RL loss wait for the rewards of
    samples, while the device goes on.

    `factors` gives a tensor for each input and may wait for as long as it takes. `total` stands for the sum in the
    loss: backward waits when it gets there, and autograd gets there after everything that was made later. Until then
    `total` is 0, or NaN where an input is not finite, so that a loss that is not finite is seen without waiting.
    """

    def __init__(self, factors: Callable[[], list[Tensor]], *inputs: Tensor, ready: bool = False):
        """ready: `factors` does not have to wait, so `total` has its value at once."""
        self._sum = _Sum(factors, [tensor.detach() for tensor in inputs])
        self.total: Tensor = _LateSum.apply(self._sum, ready, *inputs)  # type: ignore[assignment]

    def value(self) -> Tensor:
        return self._sum.compute()[0]


class _Sum:
    """What `total` remembers. It does not know of `total`: a circle would keep a step's graph until somebody collects
    garbage, and a CUDA graph cannot be recorded beside it."""

    def __init__(self, factors: Callable[[], list[Tensor]], inputs: list[Tensor]):
        self._factors, self._inputs = factors, inputs
        self._known: tuple[Tensor, list[Tensor]] | None = None

    def compute(self) -> tuple[Tensor, list[Tensor]]:
        """The sum and the factors, in float32."""
        if self._known is None:
            with torch.no_grad():
                factors = self._factors()
                parts = [(f * x.float()).sum() for f, x in zip(factors, self._inputs, strict=True)]
                self._known = (parts[0] if len(parts) == 1 else torch.stack(parts).sum()), factors
            self._inputs = []
        return self._known


class _LateSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, late: _Sum, ready: bool, *inputs: Tensor) -> Tensor:
        ctx.late, ctx.types = late, [tensor.dtype for tensor in inputs]
        if ready:
            return late.compute()[0].clone()
        return torch.stack([tensor.sum(dtype=torch.float32) for tensor in inputs]).sum() * 0.0

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _, factors = ctx.late.compute()
        return None, None, *((scale * f).to(kind) for f, kind in zip(factors, ctx.types, strict=True))


class TokenAdvantages(NamedTuple):
    """One entry for every (hidden position, token drawn there at least once)."""

    positions: Tensor
    tokens: Tensor
    counts: Tensor
    values: Tensor


def token_advantages(draws: Tensor, rows: Tensor, advantages: Advantages) -> TokenAdvantages:
    """Proposition 3: the estimated advantage of one token at one position.

    For token i drawn C times at position t: mean reward of those samples minus the baseline. Then
    L_RL (sequence scale) = sum_t sum_i -(C/K) * value * log p(i | o_t). Samples left out are not counted.
    """
    positions = torch.arange(len(draws), device=draws.device)[:, None].expand_as(draws)
    pairs, inverse = torch.unique(torch.stack([positions, draws], -1).view(-1, 2), dim=0, return_inverse=True)
    weights = advantages.values[rows].reshape(-1)
    valid = torch.ones_like(weights) if advantages.valid is None else advantages.valid[rows].reshape(-1).to(weights)
    counts = torch.zeros(len(pairs), device=draws.device, dtype=weights.dtype).index_add_(0, inverse, valid)
    sums = torch.zeros_like(counts).index_add_(0, inverse, weights)
    seen = counts > 0
    return TokenAdvantages(pairs[seen, 0], pairs[seen, 1], counts[seen], sums[seen] / counts[seen])


def token_log_p(logits: Tensor, tokens: Tensor) -> Tensor:
    """(N,) log-probability of `tokens` (N,) under `logits` (N, V); -inf logits are outside the distribution."""
    return -F.cross_entropy(logits.float(), send(tokens, logits.device), reduction="none")


def text_scores(values: Tensor, texts: Tensor, number: int, alpha: float = 1.0) -> Tensor:
    """f(y) = sum_t v_t / |y|**alpha for each of `number` texts (BRIO's score where v_t = log p, appendix D).

    values: (P,) one for each position; texts: (P,) the text it belongs to. |y| counts the positions given.
    """
    texts = send(texts, values.device)
    lengths = _count(texts, number).clamp(min=1)
    return values.new_zeros(number).index_add(0, texts, values) / lengths.to(values.dtype) ** alpha


def ranking(scores: Tensor, rewards: Tensor, margin: float) -> Tensor:
    """BRIO's loss, summed over rows and pairs: sum_{i<j} max(0, f_j - f_i + (j - i) * margin).

    scores, rewards: (B, N), best candidate first. Equal rewards make no pair; NaN rewards (fillers) neither.
    """
    number = scores.shape[1]
    ranks = torch.arange(number, device=scores.device)
    gaps = ranks[None, :] - ranks[:, None]  # (N, N), j - i
    pairs = (rewards[:, :, None] > rewards[:, None, :]) & (gaps > 0)
    hinge = (scores[:, None, :] - scores[:, :, None] + gaps * margin).clamp(min=0)
    return torch.where(pairs, hinge, 0.0).sum()


def reward_to_go(rewards: Tensor, horizon: int, discount: float, after_end: float) -> Tensor:
    """(B, T) -> (B, T): discounted mean of the reward now and of the `horizon` rewards that follow.

    Q_t = sum_{k=0..h} g^k r_{t+k} / sum_{k=0..h} g^k. A text that has ended earns `after_end` for ever.
    """
    padded = F.pad(rewards, (0, horizon), value=after_end)
    factors = discount ** torch.arange(horizon + 1, device=rewards.device, dtype=rewards.dtype)
    return (padded.unfold(1, horizon + 1, 1) * factors).sum(2) / factors.sum()


def gold(log_p: Tensor, returns: Tensor, floor: float) -> Tensor:
    """GOLD: - sum_t max(p_t, floor) * Q_t * log p_t, the weights without gradient. log_p, returns: (N,)."""
    return -(log_p.detach().exp().clamp(min=floor) * returns * log_p).sum()
