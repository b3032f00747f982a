"""Sample texts from the policy and compute their log-probabilities: shared by avg, self_critic, actor_critic and
others."""

import torch
from torch import Tensor

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import drawn_log_p, text_uniforms
from semioffline.algorithm.tensors import Batch, Row, Text
from semioffline.data.examples import Tokens, pad
from semioffline.methods.shared.settings import DrawingSettings
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.policy.tokens import Encoded


def sample_texts(
    policy: Policy, batch: Batch, config: DrawingSettings, randomness: Randomness, num_samples: int
) -> list[list[int]]:
    """Sample B * num_samples token lists from the policy, the samples of an input together, with EOS where they ended.

    The random numbers depend on (seed, step, example): an example has the same samples in any batch, if the model
    computes the same numbers there and its positions allow the same length.
    """
    longest = policy.longest_output(batch.source, config.max_completion_length)
    uniforms = text_uniforms(batch.index, num_samples, longest, randomness, "on-policy")
    decoding = Decoding(
        do_sample=True,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        max_new_tokens=longest,
        num_return_sequences=num_samples,
    )
    return policy.generate(batch.source, decoding, keep_end=True, uniforms=uniforms)


def greedy_texts(policy: Policy, batch: Batch, max_completion_length: int | None) -> list[list[int]]:
    """Return the greedy output of each input, with EOS where it ended."""
    longest = policy.longest_output(batch.source, max_completion_length)
    return policy.generate(batch.source, Decoding(max_new_tokens=longest), keep_end=True)


def as_text(texts: list[list[int]], pad_id: int) -> Text:
    """Put token lists into a padded Text. None of its tokens may be masked."""
    return pad([Tokens.of(Encoded(ids, [-1] * len(ids), False)) for ids in texts], pad_id)


def sampled_row(policy: Policy, batch: Batch, texts: list[list[int]], max_completion_length: int | None) -> Row:
    """Return one sample of each input as a row to run with gradient. Tokens that `generate` forces are left out,
    because the policy did not choose them."""
    padded = as_text(texts, policy.tokens.pad_id)
    wanted = padded.keep_mask.clone()
    forced = policy.base.generation_config
    if policy.is_encoder_decoder and forced.forced_bos_token_id is not None:
        wanted[:, 0] = False
    last = policy.longest_output(batch.source, max_completion_length) - 1
    if forced.forced_eos_token_id is not None and last < wanted.shape[1]:
        wanted[:, last] = False
    return Row(padded.ids, padded.keep_mask, wanted, purpose="grad")


def sampled_log_p(policy: Policy, logits: Tensor, row: Row, config: DrawingSettings) -> Tensor:
    """Return (P,) log-probabilities of a row's wanted tokens under the distribution that they were drawn from, with
    temperature, top_k, top_p and without suppressed tokens."""
    allowed = torch.ones_like(policy.allowed)
    allowed[sorted(policy.generator.suppressed)] = False
    return drawn_log_p(logits, row.ids[row.wanted], allowed, config.temperature, config.top_k, config.top_p)


def rows_of(row: Row) -> Tensor:
    """Return (P,), the input that each predicted position belongs to."""
    return row.wanted.nonzero()[:, 0]


def mean_length(texts: list[list[int]]) -> float:
    return sum(map(len, texts)) / len(texts)
