"""Generation at the speed of the device: a token's step is recorded once for each batch of texts and then replayed.

Decoding one token takes hundreds of small kernels, and the host needs many times as long to launch them as the device
to run them. With a cache that has its full size from the start and counts its tokens on the device, each step launches
what the one before launched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, StaticLayer

from semioffline.cuda.functions import put, record_call
from semioffline.cuda.replaced import replaced
from semioffline.cuda.trunk import is_plain, uncached_casts
from semioffline.errors import UserError

PLAIN = 2
"""Steps of one token that run as they are, which loads the kernels; recording must not."""
LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers whose state is keys and values."""

Recorder = Callable[[Callable[[], Any]], Callable[[], Any]]


def can_replay(model: Any) -> bool:
    """Whether the model's steps are alike with a static cache: transformers says so of those that compile whole."""
    kinds = set(getattr(_config(model), "layer_types", None) or LAYERS)
    return bool(getattr(model, "_can_compile_fullgraph", False)) and kinds <= LAYERS


def _config(model: Any) -> Any:
    """Of the decoder."""
    return model.get_decoder().config.get_text_config(decoder=True)


class _Cache(Cache):
    """Keys and values of every token in every layer: if a layer attends only to the last ones, its mask does that. They
    have one type: under autocast, rotated keys come in float32, values in half precision."""

    def __init__(self, model: Any, length: int):
        super().__init__(layers=[StaticLayer(length) for _ in range(_config(model).num_hidden_layers)])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)


def static_cache(model: Any, keep: Tensor, max_new_tokens: int) -> dict[str, Any]:
    """What `generate` needs so that all its steps are alike. keep: which tokens of the sources are no padding."""
    rows, length = keep.shape
    settings = {"disable_compile": True, "cache_implementation": None}
    if not model.config.is_encoder_decoder:
        return settings | {"past_key_values": _Cache(model, length + max_new_tokens)}
    caches = (_Cache(model, 1 + max_new_tokens), _Cache(model, length))
    # without a mask BART makes one whose size it asks the device for
    mask = torch.ones(rows, 1, dtype=torch.long, device=keep.device)
    return settings | {"past_key_values": EncoderDecoderCache(*caches), "decoder_attention_mask": mask}


@contextmanager
def replayed_steps(
    decoder: nn.Module, as_mask: Callable[[Tensor], Tensor], record: Recorder | None = None
) -> Iterator[None]:
    """While one batch of texts is generated with a static cache. as_mask: True = attend -> what the model's attention
    takes."""
    device = next(decoder.parameters()).device
    steps = ReplayedSteps(decoder, as_mask, record or partial(_record, device))
    with replaced(decoder, "forward", steps), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


def _record(device: torch.device, function: Callable[[], Any]) -> Callable[[], Any]:
    if device.type != "cuda":
        raise UserError(f"cuda_graphs needs a CUDA device, not {device}")
    return record_call(function, alone=True)


class ReplayedSteps:
    """Replaces the decoder's forward. The prompt and the first tokens run plainly, then a step is captured."""

    def __init__(self, decoder: nn.Module, as_mask: Callable[[Tensor], Tensor], record: Recorder):
        self.plain, self._record, self._as_mask = decoder.forward, record, as_mask
        self._names = list(inspect.signature(type(decoder).forward).parameters)[1:]
        self._steps = 0
        self._source_mask: Tensor | None = None
        self._before: dict[str, Tensor] = {}
        """What the step before was given."""
        self._places: dict[str, Tensor] = {}
        """The tensors that the captured step reads."""
        self._replay: Callable[[], Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = self._with_source_mask(dict(zip(self._names, args, strict=False)) | kwargs)
        tokens = kwargs["input_ids"] if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
        self._steps += tokens.shape[1] == 1
        tensors = _tensors(kwargs)
        if self._steps <= PLAIN:
            self._before = tensors
            return self.plain(**kwargs)
        if self._replay is None:
            self._replay = self._recorded(tensors, kwargs)
        put(self._places.values(), (tensors[name] for name in self._places))
        return self._replay()

    def _with_source_mask(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The mask of the source as attention takes it: from another one transformers makes it in every step, except
        where nothing is padded, but always while recording, with kernels that never ran before."""
        given = kwargs.get("encoder_attention_mask")
        if given is None or given.ndim != 2:
            return kwargs
        if self._source_mask is None:
            self._source_mask = self._as_mask(given.bool()[:, None, None, :])
        return kwargs | {"encoder_attention_mask": self._source_mask}

    def _recorded(self, tensors: dict[str, Tensor], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """The tensors that are the same in every step (the encoder's states) keep their addresses."""
        same = {name for name, tensor in tensors.items() if self._before.get(name) is tensor}
        self._places = {name: tensor if name in same else tensor.clone() for name, tensor in tensors.items()}
        kwargs = _replaced(kwargs, self._places)
        try:
            with uncached_casts(next(iter(tensors.values())).device.type):
                return self._record(lambda: self.plain(**kwargs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"cuda_graphs: a decoding step of this model cannot be captured ({reason}): set cuda_graphs to false"
            ) from error


def _tensors(kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """Models with several kinds of layers are given a mask for each, in a dict."""
    found = {}
    for name, value in kwargs.items():
        each = value if isinstance(value, dict) else {"": value}
        for key, part in each.items():
            if isinstance(part, Tensor):
                found[f"{name}/{key}"] = part
            elif not (is_plain(part) or isinstance(part, Cache)):
                raise UserError(
                    f"cuda_graphs: decoding with {name}={type(part).__name__} cannot be captured: "
                    "set cuda_graphs to false"
                )
    return found


def _replaced(kwargs: dict[str, Any], places: dict[str, Tensor]) -> dict[str, Any]:
    """The arguments, with the tensors that a captured step reads."""
    return {
        name: {key: places.get(f"{name}/{key}", part) for key, part in value.items()}
        if isinstance(value, dict)
        else places.get(f"{name}/", value)
        for name, value in kwargs.items()
    }
