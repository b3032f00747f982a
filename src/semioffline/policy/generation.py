"""Texts from a model, for evaluation, static targets and on-policy methods."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from semioffline.algorithm.sampling import Draws
from semioffline.algorithm.tensors import Text, send
from semioffline.cuda.decoding import can_replay, replayed_steps, static_cache
from semioffline.cuda.trunk import refuse_adapter
from semioffline.errors import UserError
from semioffline.policy.decoding import Decoding
from semioffline.policy.loading import is_peft
from semioffline.policy.packing import pad_left

logger = logging.getLogger(__name__)
NEUTRAL = {"repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "typical_p": 1.0}
NEUTRAL |= {"min_p": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
"""Settings that change a distribution, where they do not."""


class Generator:
    """The side of a policy that writes."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    is_encoder_decoder: bool
    layers_are_compiled: bool
    pad_id: int
    mask_id: int
    replays_decoding = False
    """Record a token's step when texts are generated, and replay it for the others: on a CUDA device."""

    @property
    def base(self) -> Any:
        """The Hugging Face model, without an adapter's wrapper."""
        return self.model.get_base_model() if is_peft(self.model) else self.model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def suppressed(self) -> set[int]:
        """Ids that are never generated."""
        return {*(self.base.generation_config.suppress_tokens or []), self.mask_id}

    def _as_attention_mask(self, mask: Tensor) -> Tensor:
        """True = attend -> what the model's attention takes: that, or numbers to add."""
        if self.base.config._attn_implementation != "eager":
            return mask
        dtype = self.base.get_input_embeddings().weight.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)

    def replay_decoding(self, must: bool = True) -> None:
        """From now on. Where the model or the device does not allow it: a UserError, or (must=False) a warning."""
        refuse_adapter(self.model)
        problem = None
        if self.device.type != "cuda":
            problem = f"needs a CUDA device, not {self.device}"
        elif not can_replay(self.base):
            problem = f"cannot replay the decoding of {type(self.base).__name__}, whose steps are not alike"
        if problem and must:
            raise UserError(f"cuda_graphs {problem}")
        if problem:
            logger.warning("cuda_graphs %s", problem)
        self.replays_decoding = problem is None

    @torch.no_grad()
    def generate(
        self, source: Text, decoding: Decoding, keep_end: bool = False, uniforms: Tensor | None = None
    ) -> list[list[int]]:
        """New tokens only, B * num_return_sequences lists, cut before EOS (keep_end: after it). uniforms: the numbers
        that samples are drawn with, one for each list and token; else they are torch's."""
        ids, keep = send(source.ids, self.device), send(source.keep_mask, self.device)
        if not self.is_encoder_decoder:
            ids, keep = pad_left(ids, keep, self.pad_id)
        own = self.base.generation_config
        ends = self.tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
        training = self.model.training
        self.model.eval()
        # a cache grows with every token: compiled layers would be compiled again and again
        stance = torch.compiler.set_stance("force_eager") if self.layers_are_compiled else nullcontext()
        try:
            with stance:
                out = self._generate(ids, keep, ends, decoding, uniforms)
        finally:
            self.model.train(training)
        new = out[:, 1:] if self.is_encoder_decoder else out[:, ids.shape[1] :]
        ends = set(ends) if isinstance(ends, list) else {ends}
        return [_until(row, ends, keep_end) for row in new.tolist()]

    def _generate(self, ids: Tensor, keep: Tensor, ends: Any, decoding: Decoding, uniforms: Tensor | None) -> Tensor:
        settings = decoding.generate_kwargs()
        if uniforms is not None:  # one token is left of each distribution, and sampling takes it
            draws = Draws(uniforms, decoding.temperature, decoding.top_k, decoding.top_p)
            settings |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "logits_processor": [draws]}
            own = self.base.generation_config  # what the model would add: samples are the policy's alone
            settings |= {name: value for name, value in NEUTRAL.items() if getattr(own, name, None) is not None}
        devices = [self.device] if self.device.type == "cuda" else []
        steps: Any = nullcontext()
        if self.replays_decoding and decoding.num_beams == 1:  # beams would move the cache
            settings |= static_cache(self.base, keep, decoding.max_new_tokens)
            steps = replayed_steps(self.base.get_decoder(), self._as_attention_mask)
        fork = torch.random.fork_rng(devices, enabled=uniforms is not None)  # `generate` draws where one is left
        with steps, shared_keys(), fork:
            return self.model.generate(
                input_ids=ids,
                attention_mask=keep.long(),
                suppress_tokens=sorted(self.suppressed),
                pad_token_id=self.pad_id,
                eos_token_id=ends,
                use_cache=True,
                **settings,
            )


@contextmanager
def shared_keys() -> Iterator[None]:
    """While texts are generated: heads that share keys and values read them where they are. To take a mask, the usual
    function copies them for every head, in every layer and step: most of the time of a step with many texts."""
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
    """One new token's query in each of the heads that share a key is as many queries in one head."""
    rows, heads, length, size = query.shape
    shared = getattr(module, "num_key_value_groups", 1) > 1 and kwargs.get("position_bias") is None
    if not shared or length > 1 or attention_mask is None or attention_mask.shape[1] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    queries = query.reshape(rows, key.shape[1], -1, size)
    found, _ = sdpa_attention_forward(_UNSHARED, queries, key, value, attention_mask, **kwargs)
    return found.transpose(1, 2).reshape(rows, 1, heads, -1), None


_UNSHARED = torch.nn.Module()
"""Stands for a layer whose heads have keys of their own."""


def _until(ids: list[int], ends: set[int], keep_end: bool) -> list[int]:
    return next((ids[: i + keep_end] for i, token in enumerate(ids) if token in ends), ids)
