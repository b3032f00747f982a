"""Fast generation with CUDA graphs: the step of one token is captured once for each batch of texts and then replayed.

Decoding one token takes hundreds of small kernels, and the host needs many times as long to launch them as the device
to run them. With a cache of full size that counts its tokens on the device, every step launches the same kernels.
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
"""Steps that run without a graph first, because they load kernels, which must not happen during capture."""
LAYERS = {"full_attention", "sliding_attention"}
"""Types of layers whose state is keys and values."""

Recorder = Callable[[Callable[[], Any]], Callable[[], Any]]


def can_replay(model: Any) -> bool:
    """Return whether all decoding steps of the model are alike with a static cache. Transformers says so of models that
    compile as a whole."""
    kinds = set(getattr(_config(model), "layer_types", None) or LAYERS)
    return bool(getattr(model, "_can_compile_fullgraph", False)) and kinds <= LAYERS


def _config(model: Any) -> Any:
    """Return the config of the decoder."""
    return model.get_decoder().config.get_text_config(decoder=True)


class _Cache(Cache):
    """Keys and values of every token in every layer. If a layer attends only to the last tokens, its mask does that.
    Keys and values get one type: under autocast, rotated keys come in float32 and values in half precision."""

    def __init__(self, model: Any, length: int):
        super().__init__(layers=[StaticLayer(length) for _ in range(_config(model).num_hidden_layers)])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)


def static_cache(model: Any, keep: Tensor, max_new_tokens: int) -> dict[str, Any]:
    """Return the arguments of `generate` with which all its steps are alike. keep: True at source tokens that are not
    padding."""
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
    """Replay decoding steps inside the block, for one batch of texts with a static cache. as_mask: converts a boolean
    mask (True = attend) to the one that the model takes."""
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
        """The arguments of the previous step."""
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
        """Add the source mask in the form that attention takes. From another form, Transformers would make a new one in
        every step."""
        given = kwargs.get("encoder_attention_mask")
        if given is None or given.ndim != 2:
            return kwargs
        if self._source_mask is None:
            self._source_mask = self._as_mask(given.bool()[:, None, None, :])
        return kwargs | {"encoder_attention_mask": self._source_mask}

    def _recorded(self, tensors: dict[str, Tensor], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Capture the step. Tensors that are the same in every step (the encoder's states) keep their addresses."""
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
    """Return all tensors among the arguments. Models with several kinds of layers get a dict with a mask for each."""
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
    """Return the arguments with the tensors that the captured step reads."""
    return {
        name: {key: places.get(f"{name}/{key}", part) for key, part in value.items()}
        if isinstance(value, dict)
        else places.get(f"{name}/", value)
        for name, value in kwargs.items()
    }
