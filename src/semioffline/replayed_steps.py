"""Generation at the speed of the device: a token's step is recorded once for each batch of texts and then replayed.

Decoding one token takes hundreds of small kernels, and the host needs many times as long to launch them as the device
to run them. With transformers' static cache, which has its full size from the start and counts its tokens on the
device, each step launches what the one before launched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache, StaticCache

from semioffline.errors import UserError
from semioffline.graphs import record_call

PLAIN = 2
"""Steps of one token that run as they are, which loads the kernels; recording must not."""


class _Cache(StaticCache):
    """With one type for keys and values: under autocast, rotated keys come in float32, values in half precision."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)


def static_cache(model: Any, keep: Tensor, max_new_tokens: int) -> dict[str, Any]:
    """What `generate` needs so that all its steps are alike. keep: which tokens of the sources are no padding."""
    rows, length = keep.shape
    never = {"disable_compile": True}
    if not model.config.is_encoder_decoder:
        return never | {"past_key_values": _Cache(model.config, length + max_new_tokens)}
    caches = (_Cache(model.config, 1 + max_new_tokens), _Cache(model.config, length))
    # without a mask BART makes one whose size it asks the device for
    mask = torch.ones(rows, 1, dtype=torch.long, device=keep.device)
    return never | {"past_key_values": EncoderDecoderCache(*caches), "decoder_attention_mask": mask}


Recorder = Callable[[Callable[[], Any]], Callable[[], Any]]
record_alone: Recorder = partial(record_call, alone=True)


@contextmanager
def replayed_steps(decoder: nn.Module, record: Recorder = record_alone) -> Iterator[None]:
    """While one batch of texts is generated with a static cache."""
    own = vars(decoder).get("forward")
    decoder.forward = ReplayedSteps(decoder, record)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del decoder.forward
        else:
            decoder.forward = own  # type: ignore[method-assign]


class ReplayedSteps:
    """Stands for the decoder's forward: the prompt and the first tokens run plainly, then a step is recorded."""

    def __init__(self, decoder: nn.Module, record: Recorder):
        self.plain, self._record = decoder.forward, record
        self._names = list(inspect.signature(type(decoder).forward).parameters)[1:]
        self._steps = 0
        self._before: dict[str, Tensor] = {}
        """What the step before was given."""
        self._places: dict[str, Tensor] = {}
        """What the recorded step reads."""
        self._replay: Callable[[], Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(zip(self._names, args, strict=False)) | kwargs
        tokens = kwargs["input_ids"] if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
        self._steps += tokens.shape[1] == 1
        if self._steps <= PLAIN:
            self._before = tensors
            return self.plain(**kwargs)
        if self._replay is None:
            self._replay = self._recorded(tensors, kwargs)
        for name, place in self._places.items():
            if place.data_ptr() != tensors[name].data_ptr():
                place.copy_(tensors[name])
        return self._replay()

    def _recorded(self, tensors: dict[str, Tensor], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """What is the same in every step (the encoder's states) stays where it is."""
        same = {name for name, tensor in tensors.items() if self._before.get(name) is tensor}
        self._places = {name: tensor if name in same else tensor.clone() for name, tensor in tensors.items()}
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a weight that is cast while recording has no value yet
        try:
            return self._record(lambda: self.plain(**kwargs | self._places))
        except RuntimeError as error:
            raise UserError(
                f"cuda_graphs: a decoding step of this model cannot be recorded ({error}): do without"
            ) from error
        finally:
            torch.set_autocast_cache_enabled(cached)
