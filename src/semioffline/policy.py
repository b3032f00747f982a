"""The policy: any Hugging Face text-generation model. The one place that knows encoder-decoder from decoder-only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from semioffline.cost import Meter
from semioffline.decoding import Decoding
from semioffline.layout import block_mask, pack
from semioffline.model_setup import (
    add_adapter,
    add_mask_token,
    check_tokenizer,
    is_peft,
    load_model,
    mask_row_trains,
    takes_block_mask,
)
from semioffline.types import Row, Text

logger = logging.getLogger(__name__)
TRUNCATION_SIDES = ("left", "right")


class Encoded(NamedTuple):
    """One tokenised text."""

    ids: list[int]
    words: list[int]
    truncated: bool


class Policy(nn.Module):
    """Wraps a model and its tokenizer, and hides the difference between the two kinds of model.

    `forward` runs several target rows that share a source and returns logits only at the positions that are wanted.
    They pass through the model's own output map (scaling, bias, soft-capping, adapters): a hook cuts the trunk's hidden
    states down to those positions before the model's own forward applies its head.
    """

    model: Any
    allowed: Tensor
    """(V,) True at ids that may be drawn."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        peft_config: Any = None,
        share_prompt: bool = True,
    ):
        super().__init__()
        self.tokenizer = tokenizer
        check_tokenizer(tokenizer)
        base = model.get_base_model() if is_peft(model) else model
        self.is_encoder_decoder = bool(base.config.is_encoder_decoder)
        self.mask_id = add_mask_token(base, tokenizer)
        self.model = add_adapter(model, peft_config, self.mask_id) if peft_config is not None else model
        if is_peft(self.model) and not mask_row_trains(self.base):
            logger.warning("the mask token's embedding is frozen: add it to the adapter's trainable_token_indices")
        pad_id = tokenizer.pad_token_id
        self.pad_id: int = tokenizer.eos_token_id if pad_id is None else pad_id
        self.share_prompt = share_prompt and not self.is_encoder_decoder and takes_block_mask(base)
        self.register_buffer("allowed", self._allowed_ids(), persistent=False)
        self.value_head: nn.Linear | None = None
        self._selected: Tensor | None = None
        self._states: Tensor | None = None
        self._runner: Callable[..., Any] | None = None
        self.meter = Meter(base.get_decoder(), base.get_encoder() if self.is_encoder_decoder else None)
        base.get_decoder().register_forward_hook(self._cut)

    # ---- loading and saving ----

    @classmethod
    def load(
        cls, name: str, tokenizer: PreTrainedTokenizerBase | None = None, dtype: Any = torch.float32, **kwargs: Any
    ) -> Policy:
        """From a hub name or a folder: a full model, or an adapter saved by this library."""
        model, tokenizer = load_model(name, tokenizer, dtype)
        return cls(model, tokenizer, **kwargs)

    def save(self, folder: str | Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write a checkpoint that loads with plain AutoModelFor.../PeftModel, without this library."""
        if state_dict is not None:
            state_dict = {k.removeprefix("model."): v for k, v in state_dict.items() if k.startswith("model.")}
        self.model.save_pretrained(folder, state_dict=state_dict)
        self.tokenizer.save_pretrained(folder)

    # ---- what the trainer asks of a model ----

    @property
    def base(self) -> Any:
        """The Hugging Face model, without an adapter's wrapper."""
        return self.model.get_base_model() if is_peft(self.model) else self.model

    @property
    def config(self) -> Any:
        return self.base.config

    @property
    def _keys_to_ignore_on_save(self) -> Any:
        return self.base._keys_to_ignore_on_save

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        self.base.gradient_checkpointing_enable(*args, **kwargs)
        if is_peft(self.model):
            self.base.enable_input_require_grads()

    def max_positions(self) -> int | None:
        """The longest sequence that the model's position table allows, if it has one."""
        for name in ("max_position_embeddings", "n_positions"):
            limit = getattr(self.config, name, None)
            if limit is not None and self.config.model_type not in ("t5", "mt5", "umt5", "longt5"):
                return int(limit)
        return None

    def longest_output(self, source: Text, longest: int | None) -> int:
        """How many new tokens there may be: `longest`, or 128, as far as the positions allow after these sources."""
        longest, most = longest or 128, self.max_positions()
        if most is None:
            return longest
        return max(min(longest, most - (0 if self.is_encoder_decoder else source.ids.shape[1])), 2)

    # ---- text to tokens and back ----

    def _allowed_ids(self) -> Tensor:
        """(V,) True at ids that may be drawn: tokens of the tokenizer that are not special."""
        size = self.base.get_output_embeddings().weight.shape[0]
        special = set(self.tokenizer.all_special_ids)
        special |= {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        ids = [i for i in self.tokenizer.get_vocab().values() if i < size and i not in special]
        allowed = torch.zeros(size, dtype=torch.bool)
        allowed[ids] = True
        return allowed

    def encode_sources(self, texts: Sequence[str], max_length: int, truncation_side: str = "right") -> list[Encoded]:
        encoded = self._encode(list(texts), max_length, truncation_side)
        if self.is_encoder_decoder:
            return encoded
        start = self.tokenizer.bos_token_id
        start = self.tokenizer.eos_token_id if start is None else start
        return [e if e.ids else Encoded([start], [-1], False) for e in encoded]

    def encode_targets(self, texts: Sequence[str], prompts: Sequence[str], max_length: int) -> list[Encoded]:
        """Targets end with EOS. In decoder-only models a space joins them to a prompt that ends in no white space."""
        texts = [text.strip() for text in texts]
        eos = self.tokenizer.eos_token_id
        if self.is_encoder_decoder:
            encoded = self._encode(texts, max_length, "right", target=True)
            if all(eos in e.ids for e in encoded):
                return encoded
            encoded = self._encode(texts, max_length - 1, "right", target=True)  # the tokenizer's template adds none
            return [Encoded([*e.ids, eos], [*e.words, -1], e.truncated) for e in encoded]
        joined = [t if not p or p[-1].isspace() else " " + t for t, p in zip(texts, prompts, strict=True)]
        encoded = self._encode(joined, max_length - 1, "right", special=False)
        return [Encoded([*e.ids, eos], [*e.words, -1], e.truncated) for e in encoded]

    def _encode(
        self, texts: list[str], max_length: int, side: str, target: bool = False, special: bool = True
    ) -> list[Encoded]:
        def run(texts: list[str], **kwargs: Any) -> list[tuple[list[int], list[int]]]:
            given = {"text_target": texts} if target else {"text": texts}
            out = self.tokenizer(**given, add_special_tokens=special, verbose=False, **kwargs)
            return [(ids, self._words(out, i, ids)) for i, ids in enumerate(out["input_ids"])]

        encoded = [Encoded(ids, words, False) for ids, words in run(texts)] if texts else []
        long = [i for i, e in enumerate(encoded) if len(e.ids) > max_length]
        if long:
            side_before, self.tokenizer.truncation_side = self.tokenizer.truncation_side, side
            try:
                cut = run([texts[i] for i in long], truncation=True, max_length=max_length)
            finally:
                self.tokenizer.truncation_side = side_before
                if self.tokenizer.is_fast:
                    self.tokenizer.backend_tokenizer.no_truncation()
            for i, (ids, words) in zip(long, cut, strict=True):
                encoded[i] = Encoded(ids, words, True)
        return encoded

    def _words(self, out: Any, number: int, ids: list[int]) -> list[int]:
        """The word that each token belongs to; -1 at special tokens. Without a fast tokenizer every token is a word."""
        special = set(self.tokenizer.all_special_ids)
        if not self.tokenizer.is_fast:
            return [-1 if token in special else i for i, token in enumerate(ids)]
        words = out.word_ids(number)
        if len({word for word in words if word is not None}) == 1:  # a pre-tokenizer that does not split at spaces
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            starts = [i == 0 or str(token).startswith(("▁", "Ġ", " ")) for i, token in enumerate(tokens)]
            words = [None if word is None else number for word, number in zip(words, accumulate(starts), strict=True)]
        return [-1 if word is None or token in special else word for word, token in zip(words, ids, strict=True)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Plain text, without special tokens (the mask token is one) and without white space around it."""
        if self.tokenizer.is_fast:
            texts = self.tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=True)
        else:
            texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [text.strip() for text in texts]

    def show(self, ids: list[int]) -> str:
        """Text with the special tokens in it, for the log of masked targets."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False)).strip()

    # ---- the forward pass ----

    @contextmanager
    def through(self, wrapped: nn.Module) -> Iterator[None]:
        """Run `predict` through `wrapped` (this module in DDP, FSDP, ...), which must see every use of a parameter."""
        object.__setattr__(self, "_runner", wrapped)  # not as a submodule: this module is inside it
        try:
            yield
        finally:
            object.__setattr__(self, "_runner", None)

    @overload
    def predict(self, source: Text, rows: list[Row], with_values: Literal[False] = False) -> list[Tensor]: ...

    @overload
    def predict(
        self, source: Text, rows: list[Row], with_values: Literal[True]
    ) -> tuple[list[Tensor], list[Tensor]]: ...

    def predict(self, source: Text, rows: list[Row], with_values: bool = False) -> Any:
        """For each row, the logits (N, V) at its wanted positions, in row-major order. One pass over the source.

        with_values: (logits, values), the value head's (N,) numbers at the same positions beside them.
        """
        return (self._runner or self)(source, rows, with_values)

    def forward(self, source: Text, rows: list[Row], with_values: bool = False) -> Any:
        with self.meter.announce([row.purpose for row in rows], len(source.ids)):
            logits = self._run_seq2seq(source, rows) if self.is_encoder_decoder else self._run_causal(source, rows)
        sizes = [int(row.wanted.sum()) for row in rows]
        if not with_values:
            return list(logits.split(sizes))
        if self.value_head is None or self._states is None:
            raise RuntimeError("with_values=True needs a value head: call policy.add_value_head() before training")
        values = self.value_head(self._states.float()).squeeze(1).float()
        self._states = None
        return list(logits.split(sizes)), list(values.split(sizes))

    def add_value_head(self) -> nn.Linear:
        """A linear map from decoder states to a number, 0 at first. The states are detached: it trains alone."""
        if self.value_head is None:
            head = self.base.get_output_embeddings()
            self.value_head = nn.Linear(head.weight.shape[1], 1, device=self.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        return self.value_head

    def _run_seq2seq(self, source: Text, rows: list[Row]) -> Tensor:
        """Encode once; decode the rows as a batch of len(rows) * B."""
        encoder_states = self.base.get_encoder()(input_ids=source.ids, attention_mask=source.keep_mask.long())[0]
        length = max(row.ids.shape[1] for row in rows)
        shown = torch.cat([_widen(row.ids, length, self.pad_id) for row in rows])
        wanted = torch.cat([_widen(row.wanted, length, False) for row in rows])
        start = torch.full_like(shown[:, :1], self.config.decoder_start_token_id)
        hints = [_widen(row.ids, length, -1) for row in _hints(rows)]
        added = torch.cat([torch.full_like(start, -1), torch.cat(hints)[:, :-1]], dim=1) if hints else None
        return self._head_at(
            wanted.reshape(-1).nonzero().squeeze(1),
            added,
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_states.repeat(len(rows), 1, 1)),
            attention_mask=source.keep_mask.long().repeat(len(rows), 1),
            decoder_input_ids=torch.cat([start, shown[:, :-1]], dim=1),
        )

    def _run_causal(self, source: Text, rows: list[Row]) -> Tensor:
        """Rows behind one copy of the prompt under a block mask, or (where the model takes none) one sequence each."""
        if self.share_prompt and len(rows) > 1:
            layout = pack(source, rows, self.pad_id)
            mask = block_mask(layout.segments)
            if self.config._attn_implementation == "eager":
                dtype = self.base.get_input_embeddings().weight.dtype
                mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
            places = [_places(layout.predicts[r], row.wanted, layout.ids.shape[1]) for r, row in enumerate(rows)]
            hints = _hints(rows)
            added = pack(_without_ids(source), hints, -1).ids if hints else None
            return self._head_at(
                torch.cat(places), added, input_ids=layout.ids, position_ids=layout.positions, attention_mask=mask
            )
        layouts = [pack(source, [row], self.pad_id) for row in rows]
        length = max(layout.ids.shape[1] for layout in layouts)
        places = [
            _places(layout.predicts[0], row.wanted, length) + r * len(source.ids) * length
            for r, (layout, row) in enumerate(zip(layouts, rows, strict=True))
        ]
        ids = torch.cat([_widen(layout.ids, length, self.pad_id) for layout in layouts])
        alone = [pack(_without_ids(source), [row], -1).ids for row in _hints(rows)]
        added = torch.cat([_widen(hints, length, -1) for hints in alone]) if alone else None
        return self._head_at(torch.cat(places), added, input_ids=ids)

    def _head_at(self, places: Tensor, added: Tensor | None, **inputs: Any) -> Tensor:
        """Run the model; its own output map sees only the hidden states at `places` of the flattened batch."""
        self._selected = places
        try:
            with self._adding(added):
                return self.base(**inputs, use_cache=False, return_dict=True).logits[0]
        finally:
            self._selected = None

    @contextmanager
    def _adding(self, added: Tensor | None) -> Iterator[None]:
        """Inside, the decoder's input embedding also adds the embeddings of `added` (B, L); -1 adds nothing.

        The table's own forward gives them, so that they are scaled, or adapted, as those of the tokens shown.
        """
        if added is None:
            yield
            return

        def add(table: nn.Module, args: tuple, output: Tensor) -> Tensor:
            return output + table.forward(added.clamp(min=0)) * (added >= 0)[..., None]

        handle = self.base.get_decoder().get_input_embeddings().register_forward_hook(add)
        try:
            yield
        finally:
            handle.remove()

    def _cut(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self._selected is not None:
            states = output.last_hidden_state
            chosen = states.reshape(-1, states.shape[-1])[self._selected]
            output.last_hidden_state = chosen[None]
            self._states = None if self.value_head is None else chosen.detach()
        return output

    # ---- generation ----

    @torch.no_grad()
    def generate(self, source: Text, decoding: Decoding, keep_end: bool = False) -> list[list[int]]:
        """New tokens only, B * num_return_sequences lists, cut before EOS (keep_end: after it)."""
        ids, keep = source.ids, source.keep_mask
        if not self.is_encoder_decoder:
            ids, keep = _pad_left(ids, keep, self.pad_id)
        own = self.base.generation_config
        ends = self.tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
        training = self.model.training
        self.model.eval()
        try:
            out = self.model.generate(
                input_ids=ids,
                attention_mask=keep.long(),
                suppress_tokens=sorted({*(own.suppress_tokens or []), self.mask_id}),
                pad_token_id=self.pad_id,
                eos_token_id=ends,
                use_cache=True,
                **decoding.generate_kwargs(),
            )
        finally:
            self.model.train(training)
        new = out[:, 1:] if self.is_encoder_decoder else out[:, ids.shape[1] :]
        ends = set(ends) if isinstance(ends, list) else {ends}
        return [_until(row, ends, keep_end) for row in new.tolist()]


def _widen(tensor: Tensor, length: int, value: Any) -> Tensor:
    return nn.functional.pad(tensor, (0, length - tensor.shape[1]), value=value)


def _hints(rows: list[Row]) -> list[Row]:
    """The rows with added ids in the place of ids, -1 where nothing is added; none where no row adds anything."""
    if all(row.added_ids is None for row in rows):
        return []
    return [replace(row, ids=torch.full_like(row.ids, -1) if row.added_ids is None else row.added_ids) for row in rows]


def _without_ids(source: Text) -> Text:
    return replace(source, ids=torch.full_like(source.ids, -1))


def _places(predicts: Tensor, wanted: Tensor, length: int) -> Tensor:
    offsets = torch.arange(len(predicts), device=predicts.device)[:, None] * length
    return (predicts + offsets)[wanted]


def _pad_left(ids: Tensor, keep: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Right padding to left padding: roll each row by its number of padding tokens."""
    length = ids.shape[1]
    places = (torch.arange(length, device=ids.device)[None] + keep.sum(1, keepdim=True)) % length
    keep = keep.gather(1, places)
    return ids.gather(1, places).masked_fill(~keep, pad_id), keep


def _until(ids: list[int], ends: set[int], keep_end: bool) -> list[int]:
    return next((ids[: i + keep_end] for i, token in enumerate(ids) if token in ends), ids)
