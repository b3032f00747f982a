"""Check a model when a policy is made: run one tiny batch in each of the ways that training and decoding use."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from semioffline.algorithm.tensors import Row, Text
from semioffline.errors import UserError
from semioffline.policy.decoding import Decoding

if TYPE_CHECKING:
    from semioffline.policy.policy import Policy

logger = logging.getLogger(__name__)
SUPPORTED = "encoder-decoder models such as BART, T5, Pegasus and Marian; "
SUPPORTED += "decoder-only models such as GPT-2, OPT, Llama, Qwen, Mistral and Gemma"
TOLERANCES = {torch.float64: 0.01, torch.float32: 0.01, torch.bfloat16: 0.15, torch.float16: 0.1}
"""Largest difference of logits, relative to their spread over the vocabulary. Rounding stays below it: about 1e-6 in
float32, 1e-3 with TF32, 1e-2 in bfloat16. Wrong positions or a missing mask change logits by 0.3 and more."""
REFUSED = {"reformer": "in training, its texts must be as long as a multiple of its chunks"}
"""Architectures with a problem that a tiny batch does not show."""
POSITIONS = 16
"""More than the longest sequence of the tiny batch."""


class Unsupported(UserError):
    """The error for an architecture that this library cannot train or decode."""


class Abilities(NamedTuple):
    """The results of `check_model`."""

    shares_prompt: bool
    """Whether rows that share a source may be packed into one sequence."""
    pads_left: bool
    """Whether `generate` may pad prompts on the left."""


def check_model(policy: Policy) -> Abilities:
    """Run a tiny batch and compare plain rows with a row alone, packed rows with plain rows, and a padded prompt with
    the prompt alone.

    Raises a UserError if the model cannot be run, if a prediction depends on later tokens, or if plain rows depend on
    padding: training would then optimise something else, without any error. Models that only cannot take packed rows or
    padded prompts are run without them. The random state, the meter and the model's mode stay as they were.
    """
    if policy.config.model_type in REFUSED:
        raise _unsupported(policy, REFUSED[policy.config.model_type])
    unknown = Abilities(policy.share_prompt, True)
    if not _can_run(policy):
        return unknown
    source, rows = _tiny_batch(policy)
    tolerance = TOLERANCES[policy.base.dtype]
    with _undisturbed(policy):
        try:
            plain = _logits(policy, source, rows, packed=False)
            _check_plain(policy, source, rows[1], plain[1], tolerance)
            shares = policy.share_prompt and _packs(policy, source, rows, plain, tolerance)
            # packed rows that are right have shown that the mask and the positions are respected
            pads = policy.is_encoder_decoder or shares or _pads_left(policy, source, plain[0][4:5], tolerance)
        except (Unsupported, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if policy.base.dtype == torch.float16 and policy.device.type == "cpu":  # not all kernels exist there
                return unknown
            what = " ".join(str(error).split())[:160]
            raise _unsupported(
                policy, f"running it ends in {type(error.__cause__ or error).__name__}: {what}"
            ) from error
    return Abilities(shares, pads)


def _unsupported(policy: Policy, why: str) -> Unsupported:
    return Unsupported(f"the architecture {policy.config.model_type} is not supported: {why}. Supported: {SUPPORTED}.")


def _can_run(policy: Policy) -> bool:
    """Return whether the model can run on its present device. It may be moved to another one before it is used."""
    base, most = policy.base, policy.max_positions()
    whole = all(parameter.numel() > 0 and not parameter.is_meta for parameter in base.parameters())
    kernel = getattr(base.config, "_attn_implementation", None) in ("sdpa", "eager", None)
    plain = base.dtype in TOLERANCES and getattr(base, "hf_quantizer", None) is None
    return whole and kernel and plain and (most is None or most >= POSITIONS)


@contextmanager
def _undisturbed(policy: Policy) -> Iterator[None]:
    modes = [(module, module.training) for module in policy.model.modules()]
    devices = [policy.device] if policy.device.type == "cuda" else []
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # its hints on padding are not about what the user runs
    policy.model.eval()
    try:
        with torch.no_grad(), policy.meter.paused(), torch.random.fork_rng(devices):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        for module, training in modes:
            module.training = training


def _tiny_batch(policy: Policy) -> tuple[Text, list[Row]]:
    """Return two inputs with two rows each, all of different lengths, with ordinary tokens only."""
    words = policy.allowed.nonzero().squeeze(1).cpu()

    def text(lengths: tuple[int, int], start: int) -> Text:
        keep = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        at = start + 7 * torch.arange(keep.numel()).view_as(keep)
        ids = words[at % len(words)].masked_fill(~keep, policy.tokens.pad_id)
        return Text(ids, keep, torch.zeros_like(ids))

    targets = [text((4, 3), 1), text((3, 5), 3)]
    return text((5, 3), 0), [Row(t.ids, t.keep_mask, t.keep_mask) for t in targets]


def _logits(policy: Policy, source: Text, rows: list[Row], packed: bool) -> list[Tensor]:
    with policy.packed_rows(packed):
        return policy.predict(source, rows)


def _apart(found: Tensor, expected: Tensor) -> float:
    """Return the distance of two logits relative to their spread over the vocabulary, as a median over positions. NaN
    and infinite logits are left out. The median, because rounding may send a single token to other experts."""
    found, expected = found.float(), expected.float()
    kept = (found.abs() < 1e9) & (expected.abs() < 1e9)
    count = kept.sum(1, keepdim=True).clamp(min=1)
    found, expected = found.masked_fill(~kept, 0.0), expected.masked_fill(~kept, 0.0)
    difference = torch.where(kept, (found - expected) - (found - expected).sum(1, keepdim=True) / count, 0.0)
    spread = torch.where(kept, expected - expected.sum(1, keepdim=True) / count, 0.0)
    return (difference.norm(dim=1) / spread.norm(dim=1).clamp(min=1e-6)).median().item()


def _check_plain(policy: Policy, source: Text, row: Row, found: Tensor, tolerance: float) -> None:
    """Compare the second input's row, padded and in a batch, with the same row alone and with its beginning alone."""
    first, lengths = int(row.keep_mask[0].sum()), row.keep_mask.sum(1).tolist()
    short = Text(source.ids[1:, :3], source.keep_mask[1:, :3], source.words[1:, :3])

    def alone(length: int) -> float:
        ids, keep = row.ids[1:, :length], row.keep_mask[1:, :length]
        [logits] = _logits(policy, short, [Row(ids, keep, keep)], packed=False)
        return _apart(found[first : first + length], logits)

    if alone(lengths[1] - 2) <= tolerance:
        return
    if alone(lengths[1]) <= tolerance:
        raise _unsupported(policy, "its predictions depend on later tokens (it reads text in both directions)")
    raise _unsupported(policy, "its predictions change with padding or with other rows of the batch")


def _packs(policy: Policy, source: Text, rows: list[Row], plain: list[Tensor], tolerance: float) -> bool:
    """Return whether the logits stay the same if rows are packed into one sequence. Log a warning if not."""
    try:
        packed = _logits(policy, source, rows, packed=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = f"raises {type(error).__name__}"
    else:
        apart = max(_apart(one, other) for one, other in zip(packed, plain, strict=True))
        if not apart > tolerance:
            return True
        reason = f"changes its logits (relative difference {apart:.2g})"
    logger.warning(
        "%s: packing the rows of one input into one sequence %s. They are not packed (share_prompt=False). Results are "
        "the same, but it costs more computation.",
        policy.config.model_type,
        reason,
    )
    return False


def _pads_left(policy: Policy, source: Text, plain: Tensor, tolerance: float) -> bool:
    """Return whether a padded prompt has the next-token logits of the prompt alone, which must be those of the forward
    pass.

    plain: (1, V) what the forward pass predicts after the second input's prompt.
    """
    short = Text(source.ids[1:, :3], source.keep_mask[1:, :3], source.words[1:, :3])
    alone = _first_logits(policy, short)
    if _apart(alone, plain) > tolerance:
        raise _unsupported(policy, "it generates with other probabilities than those of its forward pass")
    return not _apart(_first_logits(policy, source)[1:], alone) > tolerance


def _first_logits(policy: Policy, source: Text) -> Tensor:
    """Return (B, V), the logits of the first token that `generate` chooses; the second token uses the cache."""
    seen: list[Tensor] = []

    def record(module: Any, args: tuple, output: Any) -> None:
        seen.append(output.logits[:, -1])

    handle = policy.base.register_forward_hook(record)
    try:
        policy.generate(source, Decoding(max_new_tokens=2))
    finally:
        handle.remove()
    return seen[0]
