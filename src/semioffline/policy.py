"""The policy: any Hugging Face text-generation model. The one place that knows encoder-decoder from decoder-only."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput

from semioffline.cost import Meter
from semioffline.decoding import Decoding
from semioffline.errors import UserError
from semioffline.layout import block_mask, pack
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
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no EOS token, so no output could ever end: set tokenizer.eos_token before training"
            )
        base = model.get_base_model() if _is_peft(model) else model
        self.is_encoder_decoder = bool(base.config.is_encoder_decoder)
        self.mask_id = add_mask_token(base, tokenizer)
        self.model = _add_adapter(model, peft_config, self.mask_id) if peft_config is not None else model
        if _is_peft(self.model) and not _mask_row_trains(self.base):
            logger.warning("the mask token's embedding is frozen: add it to the adapter's trainable_token_indices")
        pad_id = tokenizer.pad_token_id
        self.pad_id: int = tokenizer.eos_token_id if pad_id is None else pad_id
        self.share_prompt = share_prompt and not self.is_encoder_decoder and _takes_block_mask(base)
        self.register_buffer("allowed", self._allowed_ids(), persistent=False)
        self._selected: Tensor | None = None
        self._runner: Callable[..., list[Tensor]] | None = None
        self.meter = Meter(base.get_decoder(), base.get_encoder() if self.is_encoder_decoder else None)
        base.get_decoder().register_forward_hook(self._cut)

    # ---- loading and saving ----

    @classmethod
    def load(
        cls, name: str, tokenizer: PreTrainedTokenizerBase | None = None, dtype: Any = torch.float32, **kwargs: Any
    ) -> Policy:
        """From a hub name or a folder: a full model, or an adapter saved by this library."""
        try:
            if (Path(name) / "adapter_config.json").is_file():
                model, tokenizer = _load_adapter(name, tokenizer, dtype)
            else:
                config = AutoConfig.from_pretrained(name)
                auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
                model = auto.from_pretrained(name, dtype=dtype)
                tokenizer = tokenizer or AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"cannot load the model '{name}': {reason}") from error
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
        return self.model.get_base_model() if _is_peft(self.model) else self.model

    @property
    def config(self) -> Any:
        return self.base.config

    @property
    def _keys_to_ignore_on_save(self) -> Any:
        return self.base._keys_to_ignore_on_save

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict | None = None) -> None:
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=gradient_checkpointing_kwargs)
        if _is_peft(self.model):
            self.base.enable_input_require_grads()

    def max_positions(self) -> int | None:
        """The longest sequence that the model's position table allows, if it has one."""
        for name in ("max_position_embeddings", "n_positions"):
            limit = getattr(self.config, name, None)
            if limit is not None and self.config.model_type not in ("t5", "mt5", "umt5", "longt5"):
                return int(limit)
        return None

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
        self._runner = wrapped
        try:
            yield
        finally:
            self._runner = None

    def predict(self, source: Text, rows: list[Row]) -> list[Tensor]:
        """For each row, the logits (N, V) at its wanted positions, in row-major order. One pass over the source."""
        return (self._runner or self)(source, rows)

    def forward(self, source: Text, rows: list[Row]) -> list[Tensor]:
        with self.meter.announce([row.purpose for row in rows], len(source.ids)):
            logits = self._run_seq2seq(source, rows) if self.is_encoder_decoder else self._run_causal(source, rows)
        return list(logits.split([int(row.wanted.sum()) for row in rows]))

    def _run_seq2seq(self, source: Text, rows: list[Row]) -> Tensor:
        """Encode once; decode the rows as a batch of len(rows) * B."""
        encoder_states = self.base.get_encoder()(input_ids=source.ids, attention_mask=source.keep_mask.long())[0]
        length = max(row.ids.shape[1] for row in rows)
        shown = torch.cat([_widen(row.ids, length, self.pad_id) for row in rows])
        wanted = torch.cat([_widen(row.wanted, length, False) for row in rows])
        start = torch.full_like(shown[:, :1], self.config.decoder_start_token_id)
        return self._head_at(
            wanted.reshape(-1).nonzero().squeeze(1),
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
            return self._head_at(
                torch.cat(places), input_ids=layout.ids, position_ids=layout.positions, attention_mask=mask
            )
        layouts = [pack(source, [row], self.pad_id) for row in rows]
        length = max(layout.ids.shape[1] for layout in layouts)
        places = [
            _places(layout.predicts[0], row.wanted, length) + r * len(source.ids) * length
            for r, (layout, row) in enumerate(zip(layouts, rows, strict=True))
        ]
        ids = torch.cat([_widen(layout.ids, length, self.pad_id) for layout in layouts])
        return self._head_at(torch.cat(places), input_ids=ids)

    def _head_at(self, places: Tensor, **inputs: Any) -> Tensor:
        """Run the model; its own output map sees only the hidden states at `places` of the flattened batch."""
        self._selected = places
        try:
            return self.base(**inputs, use_cache=False, return_dict=True).logits[0]
        finally:
            self._selected = None

    def _cut(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self._selected is not None:
            states = output.last_hidden_state
            output.last_hidden_state = states.reshape(-1, states.shape[-1])[self._selected][None]
        return output

    # ---- generation ----

    @torch.no_grad()
    def generate(self, source: Text, decoding: Decoding) -> list[list[int]]:
        """New tokens only, B * num_return_sequences lists, cut before EOS."""
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
        return [_before(row, set(ends) if isinstance(ends, list) else {ends}) for row in new.tolist()]


def add_mask_token(model: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's own mask token, or a new one whose embedding is that of a T5 sentinel or the mean embedding."""
    new = tokenizer.mask_token_id is None
    if new:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    mask_id = tokenizer.mask_token_id
    rows_before = model.get_input_embeddings().weight.shape[0]
    if mask_id >= rows_before:
        _grow(model, len(tokenizer), multiple=64 if rows_before % 64 == 0 else 1)
    if new:
        sentinel = tokenizer.get_vocab().get("<extra_id_0>")
        with torch.no_grad():
            embedding = model.get_input_embeddings().weight
            mean = embedding[:rows_before].float().mean(0).to(embedding.dtype)
            embedding[mask_id] = mean if sentinel is None else embedding[sentinel]
    return mask_id


def _grow(model: Any, size: int, multiple: int) -> None:
    """More rows in the embedding and the output head, each the mean of the old ones; an untied head stays untied."""
    before = model.get_input_embeddings().weight.shape[0]
    head = model.get_output_embeddings()
    untied = None if head.weight is model.get_input_embeddings().weight else head.weight.detach().clone()
    model.resize_token_embeddings(size, pad_to_multiple_of=multiple, mean_resizing=False)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[before:] = embedding[:before].float().mean(0).to(embedding.dtype)
        if untied is not None:
            head = model.get_output_embeddings()
            rest = untied.float().mean(0).to(untied.dtype).expand(len(embedding) - before, -1)
            head.weight = nn.Parameter(torch.cat([untied, rest]))
            name = next(name for name, module in model.named_modules() if module is head)
            model.all_tied_weights_keys.pop(f"{name}.weight", None)


def _is_peft(model: nn.Module) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def _add_adapter(model: Any, peft_config: Any, mask_id: int) -> nn.Module:
    """Attach the adapter; the mask token's embedding row is trained and saved with it."""
    from peft import get_peft_model

    if hasattr(peft_config, "trainable_token_indices") and not peft_config.trainable_token_indices:
        table = model.get_decoder().get_input_embeddings()
        name = next(name for name, module in model.named_modules() if module is table)
        peft_config = copy.deepcopy(peft_config)
        peft_config.trainable_token_indices = {name: [mask_id]}
    return get_peft_model(model, peft_config)


def _mask_row_trains(base: Any) -> bool:
    table = base.get_decoder().get_input_embeddings()
    return any(parameter.requires_grad for parameter in table.parameters())


def _load_adapter(name: str, tokenizer: Any, dtype: Any) -> tuple[nn.Module, Any]:
    from peft import PeftConfig, PeftModel

    base_name = PeftConfig.from_pretrained(name).base_model_name_or_path
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(name)
    config = AutoConfig.from_pretrained(base_name)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    base = auto.from_pretrained(base_name, dtype=dtype)
    add_mask_token(base, tokenizer)
    return PeftModel.from_pretrained(base, name, is_trainable=True), tokenizer


def _takes_block_mask(model: Any) -> bool:
    """Whether a model takes a 4-d attention mask and position ids: no window, no recurrence, no flash kernel."""
    config = model.config
    layers = getattr(config, "layer_types", None)
    full = (
        all(kind == "full_attention" for kind in layers) if layers else getattr(config, "sliding_window", None) is None
    )
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    return full and takes_positions and config._attn_implementation in ("sdpa", "eager")


def _widen(tensor: Tensor, length: int, value: Any) -> Tensor:
    return nn.functional.pad(tensor, (0, length - tensor.shape[1]), value=value)


def _places(predicts: Tensor, wanted: Tensor, length: int) -> Tensor:
    offsets = torch.arange(len(predicts), device=predicts.device)[:, None] * length
    return (predicts + offsets)[wanted]


def _pad_left(ids: Tensor, keep: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Right padding to left padding: roll each row by its number of padding tokens."""
    length = ids.shape[1]
    places = (torch.arange(length, device=ids.device)[None] + keep.sum(1, keepdim=True)) % length
    keep = keep.gather(1, places)
    return ids.gather(1, places).masked_fill(~keep, pad_id), keep


def _before(ids: list[int], ends: set[int]) -> list[int]:
    return next((ids[:i] for i, token in enumerate(ids) if token in ends), ids)
