"""Generate texts with a model, for evaluation, static targets and on-policy methods."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from semioffline.algorithm.sampling import DrawsProcessor
from semioffline.algorithm.tensors import Text, send
from semioffline.cuda.decoding import Recorder, can_replay, replayed_steps, static_cache
from semioffline.cuda.trunk import Trunk, refuse_adapter
from semioffline.errors import UserError, told_in_one_line
from semioffline.policy.attention import as_attention_mask, shared_keys
from semioffline.policy.decoding import Decoding
from semioffline.policy.heads import Perturbation
from semioffline.policy.loading import base_of, first_position
from semioffline.policy.neutral import banned, neutral
from semioffline.policy.packing import pad_left
from semioffline.policy.tokens import Codec

logger = logging.getLogger(__name__)


class Generator:
    """Generates texts with a model."""

    def __init__(self, model: Any, tokens: Codec, trunk: Trunk):
        self.model, self.tokens, self.trunk = model, tokens, trunk
        self.replays_decoding = False
        """Whether the step of one token is captured and replayed when texts are generated."""
        self._record: Recorder | None = None
        self._perturbation: Perturbation | None = None
        self.pads_left = True
        """Whether prompts of different lengths are padded on the left. Else prompts of one length are generated at a
        time."""

    def group_lengths(self) -> None:
        """Generate for prompts of one length at a time from now on, because the model reads left padding as text."""
        self.pads_left = False

    @property
    def _base(self) -> Any:
        return base_of(self.model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def suppressed(self) -> set[int]:
        """Token ids that are never generated."""
        return {*banned(self._base.generation_config, self.ends), self.tokens.mask_id}

    @property
    def ends(self) -> set[int]:
        """Token ids that end a text."""
        own = self._base.generation_config.eos_token_id
        own = self.tokens.eos_id if own is None else own
        return set(own) if isinstance(own, list) else {own}

    def perturb(self, scores: Callable[[Tensor], Tensor]) -> None:
        """Add scores to the logits from now on. scores: decoder states (N, D) -> (N, V). Samples with their own random
        numbers are not changed."""
        self._perturbation = Perturbation(self._base.get_decoder(), scores)

    def replay_decoding(self, must: bool = True, record: Recorder | None = None) -> None:
        """Replay decoding from now on, if the model and the device allow it.

        Args:
            must: otherwise raise a UserError; else log a warning.
            record: captures a step instead of CUDA, on any device.
        """
        refuse_adapter(self.model)
        problem = None
        if record is None and self.device.type != "cuda":
            problem = f"needs a CUDA device, not {self.device}"
        elif not can_replay(self._base):
            problem = f"cannot replay the decoding of {type(self._base).__name__}, whose steps are not alike"
        if problem and must:
            raise UserError(f"cuda_graphs {problem}")
        if problem:
            logger.warning("cuda_graphs %s", problem)
        self.replays_decoding, self._record = problem is None, record

    @torch.no_grad()
    def generate(
        self, source: Text, decoding: Decoding, keep_end: bool = False, uniforms: Tensor | None = None
    ) -> list[list[int]]:
        """Generate B * num_return_sequences token lists, without the prompt, cut before EOS (keep_end: after it).
        uniforms: random numbers for the samples, one for each list and token; None: those of torch."""
        if not self.pads_left and not source.keep_mask.all():
            generate = partial(self.generate, decoding=decoding, keep_end=keep_end)
            return one_length_after_the_other(generate, source, decoding.num_return_sequences, uniforms)
        ids, keep = send(source.ids, self.device), send(source.keep_mask, self.device)
        is_encoder_decoder = bool(self._base.config.is_encoder_decoder)
        if not is_encoder_decoder:
            ids, keep = pad_left(ids, keep, self.tokens.pad_id)
        training = self.model.training
        self.model.eval()
        # a cache grows with every token: compiled layers would be compiled again and again
        stance = torch.compiler.set_stance("force_eager") if self.trunk.layers_are_compiled else nullcontext()
        try:
            with stance, told_in_one_line(ValueError):  # settings that the architecture does not take: RWKV and beams
                out = self._generate(ids, keep, decoding, uniforms)
        finally:
            self.model.train(training)
        new = out[:, 1:] if is_encoder_decoder else out[:, ids.shape[1] :]
        return [_until(row, self.ends, keep_end) for row in new.tolist()]

    def _generate(self, ids: Tensor, keep: Tensor, decoding: Decoding, uniforms: Tensor | None) -> Tensor:
        settings = decoding.generate_kwargs()
        if uniforms is not None:  # one token is left of each distribution, and sampling takes it
            draws = DrawsProcessor(uniforms, decoding.temperature, decoding.top_k, decoding.top_p)
            settings |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "logits_processor": [draws]}
            settings |= neutral(self._base.generation_config, bool(self._base.config.is_encoder_decoder))
        if first_position(self._base):  # `generate` itself counts from 0, the forward pass from there
            settings["position_ids"] = (keep.long().cumsum(1) - 1).clamp(min=0) + first_position(self._base)
        devices = [self.device] if self.device.type == "cuda" else []
        perturbed: Any = nullcontext()
        if self._perturbation is not None and uniforms is None:
            settings["logits_processor"] = [self._perturbation]
            perturbed = self._perturbation.watching()
        steps: Any = nullcontext()
        if self.replays_decoding and decoding.num_beams == 1:  # beams would move the cache
            settings |= static_cache(self._base, keep, decoding.max_new_tokens)
            as_mask = partial(as_attention_mask, self._base)
            steps = replayed_steps(self._base.get_decoder(), as_mask, self._record)
        fork = torch.random.fork_rng(devices, enabled=uniforms is not None)  # `generate` draws where one is left
        with steps, shared_keys(), fork, perturbed:
            return self.model.generate(
                input_ids=ids,
                attention_mask=keep.long(),
                suppress_tokens=sorted(self.suppressed),
                pad_token_id=self.tokens.pad_id,
                eos_token_id=sorted(self.ends),
                use_cache=True,
                **settings,
            )


def one_length_after_the_other(
    generate: Callable[..., list[list[int]]], source: Text, num_samples: int, uniforms: Tensor | None
) -> list[list[int]]:
    """Call `generate` without padding, for models that read padding as text or count it: recurrent ones, and some with
    learned positions."""
    lengths = source.keep_mask.sum(1)
    outputs: list[list[list[int]]] = [[] for _ in lengths]
    for length in lengths.unique().tolist():
        chosen = (lengths == length).nonzero().squeeze(1)
        part = Text(*(tensor[chosen, :length] for tensor in (source.ids, source.keep_mask, source.words)))
        numbers = None
        if uniforms is not None:
            numbers = uniforms.unflatten(0, (-1, num_samples))[chosen.to(uniforms.device)].flatten(0, 1)
        texts = generate(part, uniforms=numbers)
        for place, row in enumerate(chosen.tolist()):
            outputs[row] = texts[place * num_samples : (place + 1) * num_samples]
    return [text for texts in outputs for text in texts]


def _until(ids: list[int], ends: set[int], keep_end: bool) -> list[int]:
    return next((ids[: i + keep_end] for i, token in enumerate(ids) if token in ends), ids)
