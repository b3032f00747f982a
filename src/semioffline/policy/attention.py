"""Attention: the masks that a model takes, and a faster function for generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def as_attention_mask(model: Any, mask: Tensor) -> Tensor:
    """Convert a boolean mask (True = attend) to the mask that the model takes: boolean, or numbers to add."""
    if model.config._attn_implementation != "eager":
        return mask
    dtype = model.get_input_embeddings().weight.dtype
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


@contextmanager
def shared_keys() -> Iterator[None]:
    """During generation, let heads that share keys and values read them without copying.

    With a mask, the usual function copies them for every head, in every layer and step. With many texts, this takes
    most of the time of a step. Transformers looks the function up by name in a table of the process, so this block puts
    another function into the table and removes it at the end.
    """
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is not sdpa_attention_forward:  # somebody's own, or ours in another thread
        yield
        return
    ALL_ATTENTION_FUNCTIONS["sdpa"] = _attend
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]  # which leaves the one before


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Any]:
    """Grouped-query attention with one new token: the queries of the heads that share a key are treated as several
    queries of one head."""
    rows, heads, length, size = query.shape
    shared = getattr(module, "num_key_value_groups", 1) > 1 and kwargs.get("position_bias") is None
    if not shared or length > 1 or attention_mask is None or attention_mask.shape[1] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    queries = query.reshape(rows, key.shape[1], -1, size)
    found, _ = sdpa_attention_forward(_UNSHARED, queries, key, value, attention_mask, **kwargs)
    return found.transpose(1, 2).reshape(rows, 1, heads, -1), None


_UNSHARED = torch.nn.Module()
"""Passed instead of the layer: a module whose heads do not share keys."""
