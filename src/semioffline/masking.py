"""Which positions of a target the model must decide."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from semioffline.types import Observation, Randomness, Text

MASK_UNITS = ("token", "word")


def hide(text: Text, rate: float | Tensor, mask_id: int, uniforms: Tensor, unit: str = "token") -> Observation:
    """Replace each ordinary token by the mask token with probability `rate` (Definition 4 of the paper).

    M_t ~ Bernoulli(rate) for every ordinary position t; the observation has the mask token where M_t = 1 and the
    text's own token where M_t = 0. Special tokens and padding are never hidden. With unit "word" one number decides
    for all pieces of a word (the published code instead lets a masked piece pull in the pieces after it, which hides
    more than the rate says).

    uniforms: (B, T) numbers in [0, 1); rate: a number or (B, 1).
    """
    if unit == "word":
        uniforms = uniforms.gather(1, _word_starts(text.words))
    hidden = (uniforms < rate) & text.ordinary
    return Observation(ids=text.ids.masked_fill(hidden, mask_id), hidden=hidden)


def _word_starts(words: Tensor) -> Tensor:
    """(B, T) word numbers -> the position of the first token of each token's word."""
    positions = torch.arange(words.shape[1], device=words.device).expand_as(words)
    begins = torch.ones_like(words, dtype=torch.bool)
    begins[:, 1:] = words[:, 1:] != words[:, :-1]
    return torch.where(begins, positions, 0).cummax(1).values


def mask_uniforms(text: Text, index: Tensor, randomness: Randomness, purpose: str) -> Tensor:
    """(B, T) numbers for `hide`; a row's numbers do not depend on the padding of its batch."""
    rows = randomness.uniform(purpose, index, text.lengths)
    padded = pad_sequence(rows, batch_first=True, padding_value=1.0)
    missing = text.ids.shape[1] - padded.shape[1]
    return torch.nn.functional.pad(padded, (0, missing), value=1.0).to(text.ids.device)
