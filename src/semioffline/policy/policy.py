"""The policy: any Hugging Face text-generation model. Only this package tells encoder-decoder from decoder-only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from semioffline.algorithm.tensors import Row, Text, send
from semioffline.cuda.trunk import Trunk, refuse_adapter
from semioffline.policy.attention import as_attention_mask
from semioffline.policy.checks import check_model
from semioffline.policy.decoding import Decoding
from semioffline.policy.generation import Generator
from semioffline.policy.heads import value_head
from semioffline.policy.loading import (
    add_adapter,
    add_mask_token,
    base_of,
    check_adapters,
    check_tokenizer,
    first_position,
    is_peft,
    load_model,
    mask_row_trains,
    takes_block_mask,
    tokenizer_of,
)
from semioffline.policy.meter import Meter
from semioffline.policy.packing import (
    Layout,
    block_mask,
    hints,
    pack,
    pad_row,
    pad_text,
    places,
    side_by_side,
    widen,
    without_ids,
)
from semioffline.policy.tokens import Codec

logger = logging.getLogger(__name__)


class Policy(nn.Module):
    """A Hugging Face model and its tokenizer, with one interface for encoder-decoder and decoder-only models.

    Its parts: `tokens` encodes and decodes text, `generator` generates, `trunk` runs encoder and decoder (plain,
    compiled or as CUDA graphs), and `meter` counts forward passes.

    `forward` runs several target rows that share a source, and returns logits at the wanted positions only. A hook
    reduces the hidden states to these positions before the model's own head (scaling, bias, soft-capping, adapters).

    Sources and rows may stay on the host. Their layout is computed there and sent asynchronously, because a count or an
    index computed on the device would make the host wait for the device.
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
        check_tokenizer(tokenizer)
        check_adapters(model.peft_config.values() if is_peft(model) else [])
        base = base_of(model)
        self.is_encoder_decoder = bool(base.config.is_encoder_decoder)
        mask_id = add_mask_token(base, tokenizer, peft_config is not None or is_peft(model))
        self.model = add_adapter(model, peft_config, mask_id) if peft_config is not None else model
        if is_peft(self.model) and not mask_row_trains(self.base):
            logger.warning("the mask token's embedding is frozen: add it to the adapter's trainable_token_indices")
        decoder, encoder = base.get_decoder(), base.get_encoder() if self.is_encoder_decoder else None
        self.tokens = Codec(tokenizer, mask_id, self.is_encoder_decoder)
        self.trunk = Trunk([decoder] if encoder is None else [decoder, encoder])
        self.generator = Generator(self.model, self.tokens, self.trunk)
        self.share_prompt = share_prompt and takes_block_mask(base)
        allowed = self.tokens.allowed_ids(base.get_output_embeddings().weight.shape[0])
        self.register_buffer("allowed", allowed, persistent=False)
        self.value_head: nn.Module | None = None
        self._fixed: list[nn.Parameter] | None = None
        """All parameters, while CUDA graphs read them and they cannot be replaced."""
        self._selected: Tensor | None = None
        self._chosen: Tensor | None = None
        self._states: Tensor | None = None
        self._watched: dict[str, Tensor] | None = None
        self._runner: Callable[..., Any] | None = None
        self.meter = Meter(decoder, encoder)
        decoder.register_forward_hook(self._cut)
        if self.is_encoder_decoder and self.share_prompt and hasattr(decoder, "embed_positions"):
            decoder.embed_positions.register_forward_pre_hook(self._restart, with_kwargs=True)
        self.share_prompt, pads_left = check_model(self)
        if not pads_left:
            self.generator.group_lengths()

    # ---- loading and saving ----

    @classmethod
    def load(
        cls, name: str, tokenizer: PreTrainedTokenizerBase | None = None, dtype: Any = torch.float32, **kwargs: Any
    ) -> Policy:
        """Load a model, or an adapter that this library saved, by its name on the Hub or its folder."""
        model, tokenizer = load_model(name, tokenizer, dtype)
        return cls(model, tokenizer, **kwargs)

    @classmethod
    def of(cls, model: Any, tokenizer: PreTrainedTokenizerBase | None, **kwargs: Any) -> Policy:
        """Return the policy of a model object, a name on the Hub or a folder. A policy is returned as it is."""
        if isinstance(model, (str, Path)):
            return cls.load(str(model), tokenizer, **kwargs)
        return model if isinstance(model, Policy) else cls(model, tokenizer_of(model, tokenizer), **kwargs)

    def save(self, folder: str | Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write a checkpoint that loads without this library: a full model with AutoModelFor..., an adapter with
        peft's AutoPeftModelForCausalLM.from_pretrained(folder) or AutoPeftModelForSeq2SeqLM.

        If a mask token was added, these classes add its row to the base; PeftModel.from_pretrained(base, folder) fails.
        If a T5 embedding had to grow (those of T5 1.1 and Flan-T5 have room), only Policy.load restores the adapter,
        because Transformers ties T5's separate head when it resizes.
        """
        if state_dict is not None:
            state_dict = {k.removeprefix("model."): v for k, v in state_dict.items() if k.startswith("model.")}
        # peft would add the whole table, twice where it is tied, because the mask token has made it larger
        without_table = {"save_embedding_layers": False} if is_peft(self.model) else {}
        self.model.save_pretrained(folder, state_dict=state_dict, **without_table)
        self.tokens.tokenizer.save_pretrained(folder)

    # ---- what the trainer asks of a model ----

    def is_finite(self) -> bool:
        """Return whether no weight is NaN or infinite."""
        return all(bool(torch.isfinite(weight).all()) for weight in self.parameters())

    @property
    def base(self) -> Any:
        """The Hugging Face model, without an adapter's wrapper."""
        return base_of(self.model)

    @property
    def config(self) -> Any:
        return self.base.config

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def _keys_to_ignore_on_save(self) -> Any:
        return self.base._keys_to_ignore_on_save

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the parameters. They are stored while CUDA graphs are used, because walking over all modules several
        times per step would take as long as a small model's step."""
        return iter(self._fixed) if recurse and self._fixed is not None else super().parameters(recurse)

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        self.base.gradient_checkpointing_enable(*args, **kwargs)
        if is_peft(self.model):
            self.base.enable_input_require_grads()

    def use_cuda_graphs(self) -> None:
        """Replay the passes of the encoder and the decoder as CUDA graphs, until `leave_cuda_graphs`."""
        refuse_adapter(self.model)
        self._fixed = list(self.parameters())
        self.trunk.use_cuda_graphs()

    def leave_cuda_graphs(self) -> None:
        self.trunk.leave_cuda_graphs()
        self._fixed = None

    def max_positions(self) -> int | None:
        """Return the longest sequence that the model's position table allows; None if it has no table."""
        config = self.config.get_text_config(decoder=True)
        for name in ("max_position_embeddings", "n_positions"):
            limit = getattr(config, name, None)
            if limit is not None and limit > 0 and config.model_type not in ("t5", "mt5", "umt5", "longt5"):
                return int(limit) - first_position(self.base)
        return None

    def longest_output(self, source: Text, longest: int | None) -> int:
        """Return the maximum number of new tokens: `longest` or 128, or as many as the positions allow."""
        longest, most = longest or 128, self.max_positions()
        if most is None:
            return longest
        return max(min(longest, most - (0 if self.is_encoder_decoder else source.ids.shape[1])), 2)

    def generate(
        self, source: Text, decoding: Decoding, keep_end: bool = False, uniforms: Tensor | None = None
    ) -> list[list[int]]:
        """Generate token ids of one output per row (`Generator.generate`). Trainer gathers FSDP weights only here."""
        return self.generator.generate(source, decoding, keep_end, uniforms)

    # ---- the forward pass ----

    @property
    def runner(self) -> Callable[..., Any]:
        """The module that `predict` runs: this one, or its wrapper (DDP, FSDP)."""
        return self._runner or self

    @contextmanager
    def through(self, wrapped: Callable[..., Any]) -> Iterator[None]:
        """Run `predict` through `wrapped` (this module in DDP, FSDP, ...), which must see every use of a parameter."""
        before = self._runner
        object.__setattr__(self, "_runner", wrapped)  # not as a submodule: this module is inside it
        try:
            yield
        finally:
            object.__setattr__(self, "_runner", before)

    @contextmanager
    def watch(self, squares: dict[str, Tensor] | None) -> Iterator[None]:
        """Record, per loss term ("mle", "rl", ...), the squared gradient norm at the LM head's input.

        Args:
            squares: gets the numbers of the passes inside when their backward runs. None: nothing is recorded.
        """
        self._watched = squares
        try:
            yield
        finally:
            self._watched = None

    @contextmanager
    def packed_rows(self, packed: bool) -> Iterator[None]:
        """Inside the block, `predict` packs rows that share a prompt, or runs each row alone."""
        before, self.share_prompt = self.share_prompt, packed
        try:
            yield
        finally:
            self.share_prompt = before

    @overload
    def predict(self, source: Text, rows: list[Row], with_values: Literal[False] = False) -> list[Tensor]: ...

    @overload
    def predict(
        self, source: Text, rows: list[Row], with_values: Literal[True]
    ) -> tuple[list[Tensor], list[Tensor]]: ...

    def predict(self, source: Text, rows: list[Row], with_values: bool = False) -> Any:
        """Return for each row the logits (N, V) at its wanted positions, in row-major order, in one pass.

        with_values: (logits, values), what the value head gives at the same positions: (N,), or more dimensions.
        """
        return self.runner(source, rows, with_values)

    def forward(self, source: Text, rows: list[Row], with_values: bool = False) -> Any:
        with self.meter.announce([row.purpose for row in rows], len(source.ids)):
            logits = self._run_seq2seq(source, rows) if self.is_encoder_decoder else self._run_causal(source, rows)
        sizes = [int(row.wanted.sum()) for row in rows]
        if self._watched is not None and self._chosen is not None and self._chosen.requires_grad:
            names = ["mle" if row.purpose == "mle" else row.term for row in rows]
            self._chosen.register_hook(partial(_add_squares, self._watched, names, sizes))
        self._chosen = None
        if not with_values:
            return list(logits.split(sizes))
        if self.value_head is None or self._states is None:
            raise RuntimeError("with_values=True needs a value head: call policy.add_value_head() before training")
        values = self.value_head(self._states.float()).squeeze(1).float()
        self._states = None
        return list(logits.split(sizes)), list(values.split(sizes))

    def add_value_head(self, build: Callable[[int, int], nn.Module] = value_head) -> nn.Module:
        """Add a head on the detached decoder states. build: makes it from their width and the vocabulary size."""
        if self.value_head is None:
            vocabulary, width = self.base.get_output_embeddings().weight.shape
            self.value_head = build(width, vocabulary).to(self.device)
            self._fixed = None
        return self.value_head

    def _run_seq2seq(self, source: Text, rows: list[Row]) -> Tensor:
        """Encode the source once. The rows follow one another in one sequence under a block mask, so keys and values of
        the source are computed once. If the model takes no such mask, they are len(rows) * B sequences."""
        source = pad_text(source, self.trunk.pad_multiple, self.tokens.pad_id)
        rows = [pad_row(row, self.trunk.pad_multiple, self.tokens.pad_id) for row in rows]
        mask = self._source_mask(source.keep_mask)
        states = self.base.get_encoder()(input_ids=send(source.ids, self.device), attention_mask=mask)[0]
        together = self.share_prompt and (len(rows) > 1 or self.trunk.always_masked)
        layout = side_by_side(rows, self.config.decoder_start_token_id, self.tokens.pad_id, together)
        positions: Tensor | None = None
        more: dict[str, Any] = {}
        if together:
            more["decoder_attention_mask"] = self._block_mask(layout)
            positions = send(layout.positions[0], self.device)
        elif len(rows) > 1:
            states = states.repeat(len(rows), 1, 1)
            mask = None if mask is None else mask.repeat(len(rows), *[1] * (mask.dim() - 1))
        added = side_by_side(hints(rows), -1, -1, together).ids if hints(rows) else None
        with self.trunk.at(positions):
            return self._head_at(
                torch.cat(layout.predicts),
                added,
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                attention_mask=mask,
                decoder_input_ids=layout.ids,
                **more,
            )

    def _source_mask(self, keep: Tensor) -> Tensor | None:
        """Return the attention mask of the source; None without padding, because the fastest kernels take none. The
        mask is complete, so that the model need not look at its values, for which the host would wait."""
        if not keep.is_cuda and keep.all() and not self.trunk.always_masked:
            return None
        if not self.share_prompt:
            return send(keep.long(), self.device)
        return as_attention_mask(self.base, send(keep, self.device)[:, None, None, :])

    def _block_mask(self, layout: Layout) -> Tensor:
        return as_attention_mask(self.base, block_mask(send(layout.segments, self.device)))

    def _run_causal(self, source: Text, rows: list[Row]) -> Tensor:
        """Run the rows after one copy of the prompt under a block mask, or (if not supported) in one sequence each."""
        if self.share_prompt and (len(rows) > 1 or self.trunk.always_masked):
            layout = pack(source, rows, self.tokens.pad_id, self.trunk.pad_multiple)
            length = layout.ids.shape[1]
            selected = [places(layout.predicts[r], row.wanted, length) for r, row in enumerate(rows)]
            added = pack(without_ids(source), hints(rows), -1, self.trunk.pad_multiple).ids if hints(rows) else None
            return self._head_at(
                torch.cat(selected),
                added,
                input_ids=layout.ids,
                position_ids=layout.positions,
                attention_mask=self._block_mask(layout),
            )
        layouts = [pack(source, [row], self.tokens.pad_id, self.trunk.pad_multiple) for row in rows]
        length = max(layout.ids.shape[1] for layout in layouts)
        selected = [
            places(layout.predicts[0], row.wanted, length) + r * len(source.ids) * length
            for r, (layout, row) in enumerate(zip(layouts, rows, strict=True))
        ]
        ids = torch.cat([widen(layout.ids, length, self.tokens.pad_id) for layout in layouts])
        alone = [pack(without_ids(source), [row], -1).ids for row in hints(rows)]
        added = torch.cat([widen(one, length, -1) for one in alone]) if alone else None
        return self._head_at(torch.cat(selected), added, input_ids=ids)

    def _head_at(self, selected: Tensor, added: Tensor | None, **inputs: Any) -> Tensor:
        """Run the model; its LM head gets only the hidden states at `selected` of the flattened batch."""
        device = self.device
        inputs = {name: send(v, device) if isinstance(v, Tensor) else v for name, v in inputs.items()}
        self._selected = send(selected, device)
        try:
            with self._adding(None if added is None else send(added, device)):
                return self.base(**inputs, use_cache=False, return_dict=True).logits[0]
        finally:
            self._selected = None

    @contextmanager
    def _adding(self, added: Tensor | None) -> Iterator[None]:
        """Inside the block, the decoder's input embedding also adds the embeddings of `added` (B, L); -1 adds nothing.

        They come from the table's own forward, so that they are scaled, or adapted, like those of the input tokens.
        """
        if added is None:
            yield
            return

        def add(table: nn.Module, args: tuple, output: Tensor) -> Tensor:
            return output + table.forward(added.clamp(min=0)) * (added >= 0)[..., None]

        handle = self.base.get_decoder().get_input_embeddings().register_forward_hook(add)
        try:
            with self.trunk.plain():
                yield
        finally:
            handle.remove()

    def _cut(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self._selected is not None:
            states = output.last_hidden_state
            chosen = states.reshape(-1, states.shape[-1]).index_select(0, self._selected)
            output.last_hidden_state = chosen[None]
            self._chosen = chosen
            self._states = None if self.value_head is None else chosen.detach()
        return output

    def _restart(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Let the positions of each row in one sequence start at 0."""
        if self.trunk.positions is not None:
            kwargs = kwargs | {"position_ids": self.trunk.positions}
        return args, kwargs


def _add_squares(watched: dict[str, Tensor], names: list[str], sizes: list[int], gradient: Tensor) -> None:
    for name, part in zip(names, gradient.split(sizes), strict=True):
        watched[name] = part.float().square().sum() + watched.get(name, 0.0)
