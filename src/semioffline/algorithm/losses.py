"""Losses and their parts, as pure functions on tensors. Losses are sums; the trainer divides them by the counts of the
whole optimizer step."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from semioffline.algorithm.deferred import DeferredSum
from semioffline.algorithm.tensors import send

Baseline = Literal["mean", "leave_one_out"]
LossScale = Literal["token", "sequence"]
PreferenceLoss = Literal["sigmoid", "ipo"]


def mle(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the summed negative log-likelihood of `labels` (N,) under `logits` (N, V).

    With smoothing e: (1 - e) * NLL + e * mean over the vocabulary of -log p. The paper's printed formula has no sign.
    """
    labels = send(labels, logits.device)
    return F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)


class Advantages(NamedTuple):
    """Advantages of samples.

    values: (B, K), 0 for samples without a reward; they sum to 0 in every row. counts: (B,) number of samples with a
    reward.
    """

    values: Tensor
    counts: Tensor
    valid: Tensor | None = None
    """(B, K) False at samples without a reward; None means that all have one."""

    def to(self, device: torch.device) -> "Advantages":
        return Advantages(*(None if part is None else send(part, device) for part in self))  # type: ignore[arg-type]


def advantages(rewards: Tensor, baseline: Baseline = "mean", scale: bool = False) -> Advantages:
    """Return reward minus baseline for each sample. Samples with a NaN reward are left out.

    mean: b = mean of the row's K rewards. It contains the sample itself, so the expected gradient is (K-1)/K of the
    exact one. leave_one_out: b_k = mean of the others' rewards, A_k = K/(K-1) * (R_k - mean): the expected
    gradient is exact. scale: divide by the standard deviation of the row's rewards. If all rewards of a row are equal,
    its advantages are exactly 0.
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


def equal_rewards(rewards: Tensor) -> Tensor:
    """Return (B,), True if all counted samples of a row have the same reward, so that nothing can be learned from it.
    rewards: (B, K)."""
    high = rewards.nan_to_num(nan=-torch.inf).amax(1)
    low = rewards.nan_to_num(nan=torch.inf).amin(1)
    return high <= low


def sample_weights(advantages: Advantages, masked: Tensor, loss_scale: LossScale = "token") -> Tensor:
    """Return (B, K), the weight w of each sample in `reinforce`. masked: (B,) the number of masked positions of each
    row.

    sequence: w = A_k / K, the printed formula. token: w = A_k / |M|, the scale of the published lambda (sum over K,
    mean over the row's masked positions): K / |M| times the printed formula.
    """
    divisors = advantages.counts if loss_scale == "sequence" else masked
    return advantages.values / divisors.clamp(min=1)[:, None]


def reinforce(drawn_logits: Tensor, weights: Callable[[], Tensor], ready: bool = False) -> DeferredSum:
    """Return the RL loss of semi-offline RL, summed over rows (section 3.3 of the paper, simplified as explained
    below):

        L_RL = - sum_b sum_k w_bk sum_{t masked} log p(a_t^k | o_t) = - sum_b sum_k w_bk sum_{t masked} z_t[a_t^k]

    All K samples of a row share its masked positions and their distributions, and the weights of a row sum to 0: so the
    normaliser of log p cancels, in value and gradient, and only the K drawn logits of a position get a gradient. It
    would not cancel with clipped or importance weights. Samples that do not share distributions (the fully observable
    variant) pass log p itself.

    Args:
        drawn_logits: (M, K) z_t[a_t^k] / temperature at the M masked positions.
        weights: gives (M, K) w of each position's row, see `sample_weights`; it may wait for rewards. Other weights
            whose sum over a position is 0, such as those of `swap_coefficients`, are as good.
        ready: whether the rewards are there, so that `weights` does not wait.
    """
    return DeferredSum(lambda: [-weights()], drawn_logits, ready=ready)


def _count(places: Tensor, number: int) -> Tensor:
    """Return (number,) how often each of 0 ... number - 1 occurs. torch.bincount would make the host wait for the
    device."""
    ones = torch.ones_like(places)
    return torch.zeros(number, dtype=torch.long, device=places.device).index_add(0, places, ones)


class TokenAdvantages(NamedTuple):
    """One entry for every pair of a masked position and a token that was drawn there."""

    positions: Tensor
    tokens: Tensor
    counts: Tensor
    values: Tensor


def token_advantages(draws: Tensor, rows: Tensor, advantages: Advantages) -> TokenAdvantages:
    """Return the estimated advantage of each drawn token at each position (Proposition 3).

    For token i drawn C times at position t: mean reward of those samples minus the baseline. Then
    L_RL (sequence scale) = sum_t sum_i -(C/K) * value * log p(i | o_t). Samples left out are not counted.
    """
    size = int(draws.max()) + 1 if draws.numel() else 1
    places = torch.arange(len(draws), device=draws.device)[:, None] * size
    pairs, inverse = torch.unique((places + draws).view(-1), return_inverse=True)
    weights = advantages.values[rows].reshape(-1)
    valid = torch.ones_like(weights) if advantages.valid is None else advantages.valid[rows].reshape(-1).to(weights)
    counts = torch.zeros(len(pairs), device=draws.device, dtype=weights.dtype).index_add_(0, inverse, valid)
    sums = torch.zeros_like(counts).index_add_(0, inverse, weights)
    seen = counts > 0
    pairs, counts = pairs[seen], counts[seen]
    return TokenAdvantages(pairs // size, pairs % size, counts, sums[seen] / counts)


def token_log_p(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return (N,) log-probabilities of `tokens` (N,) under `logits` (N, V). Logits of -inf are outside the
    distribution."""
    return -F.cross_entropy(logits.float(), send(tokens, logits.device), reduction="none")


def kl_divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """Return (N,), KL(p || p_0) = sum_v p(v) (log p(v) - log p_0(v)) in nats at N positions. logits, reference: (N,
    V)."""
    log_p, log_q = logits.float().log_softmax(1), reference.float().log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def text_scores(values: Tensor, texts: Tensor, number: int, alpha: float = 1.0) -> Tensor:
    """Return f(y) = sum_t v_t / |y|**alpha for each of `number` texts. With v_t = log p it is BRIO's score (appendix
    D).

    values: (P,) one for each position; texts: (P,) the text it belongs to. |y| counts the positions given.
    """
    texts = send(texts, values.device)
    lengths = _count(texts, number).clamp(min=1)
    return values.new_zeros(number).index_add(0, texts, values) / lengths.to(values.dtype) ** alpha


def ranking(scores: Tensor, rewards: Tensor, margin: float) -> Tensor:
    """Return BRIO's loss, summed over rows and pairs: sum_{i<j} max(0, f_j - f_i + (j - i) * margin).

    scores, rewards: (B, N), best candidate first. Candidates with equal rewards, or with NaN (padding), form no pair.
    BRIO's code ranks candidates of equal reward too, in the order of the data.
    """
    number = scores.shape[1]
    ranks = torch.arange(number, device=scores.device)
    gaps = ranks[None, :] - ranks[:, None]  # (N, N), j - i
    pairs = (rewards[:, :, None] > rewards[:, None, :]) & (gaps > 0)
    hinge = (scores[:, None, :] - scores[:, :, None] + gaps * margin).clamp(min=0)
    return torch.where(pairs, hinge, 0.0).sum()


def preference(ratios: Tensor, pairs: Tensor, beta: float, loss: PreferenceLoss = "sigmoid") -> Tensor:
    """Return DPO's loss: a mean over the pairs of each row, summed over rows. A row without a pair adds 0.

    sigmoid: -log sigmoid(beta * (h_i - h_j)), Rafailov et al. 2023, equation 7. ipo: (h_i - h_j - 1 / (2 beta))**2,
    Azar et al. 2023, equation 17.

    Args:
        ratios: (B, n) h = log p / p_0 of n texts.
        pairs: (B, n, n) True at [b, i, j] where text i of row b is preferred to text j.
    """
    gaps = ratios[:, :, None] - ratios[:, None, :]
    losses = -F.logsigmoid(beta * gaps) if loss == "sigmoid" else (gaps - 1.0 / (2.0 * beta)).square()
    return (torch.where(pairs, losses, 0.0).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)).sum()


def target_weights(log_p: Tensor, rewards: Tensor, log_proposal: Tensor, alpha: float, beta: float) -> Tensor:
    """Return (B, K), self-normalised importance weights of K texts for the target q ∝ exp((alpha log p + R) / (alpha +
    beta)).

    w_k = q(y_k) / proposal(y_k), divided by the row's sum; no gradient. q maximises E_q[R] - alpha KL(q || p) + beta
    H(q): Tan et al. 2019, equations 4 and 5. Texts without a reward (NaN) have the weight 0.

    Args:
        log_p, rewards, log_proposal: (B, K) log-probabilities under the policy, rewards, and log-probabilities with
            which the texts were drawn.
    """
    scores = (alpha * log_p.detach() + rewards) / (alpha + beta) - log_proposal
    weights = scores.masked_fill(rewards.isnan(), -torch.inf).softmax(1)
    return weights.nan_to_num(nan=0.0)  # a row without any reward


def reward_to_go(rewards: Tensor, horizon: int, discount: float, after_end: float) -> Tensor:
    """Return (B, T), the discounted mean of each position's reward and the `horizon` rewards after it. rewards: (B, T).

    Q_t = sum_{k=0..h} g^k r_{t+k} / sum_{k=0..h} g^k. A text that has ended earns `after_end` for ever.
    """
    padded = F.pad(rewards, (0, horizon), value=after_end)
    factors = discount ** torch.arange(horizon + 1, device=rewards.device, dtype=rewards.dtype)
    return (padded.unfold(1, horizon + 1, 1) * factors).sum(2) / factors.sum()


def gold(log_p: Tensor, returns: Tensor, floor: float) -> Tensor:
    """Return GOLD's loss, - sum_t max(p_t, floor) * Q_t * log p_t, with weights without gradient. log_p, returns:
    (N,)."""
    return -(log_p.detach().exp().clamp(min=floor) * returns * log_p).sum()
