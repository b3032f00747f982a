"""Load a Hugging Face model, and add the mask token and adapters."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from semioffline.errors import UserError, short
from semioffline.storage.untrusted import loading

logger = logging.getLogger(__name__)
LOCAL_CODE: dict[str, Any] = {"trust_remote_code": False}
"""Arguments with which code that comes with a model never runs. Without them Transformers would ask in the terminal."""


def load_model(name: str, tokenizer: PreTrainedTokenizerBase | None, dtype: Any) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer by a name on the Hub or a folder: a full model, or an adapter saved by this
    library."""
    with loading(f"the model '{name}'"):
        if (Path(name) / "adapter_config.json").is_file():
            return _load_adapter(name, tokenizer, dtype)
        return _load_base(name, dtype), tokenizer or AutoTokenizer.from_pretrained(name, **LOCAL_CODE)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.eos_token_id is None:
        raise UserError(
            "the tokenizer has no EOS token, so no output could ever end: set tokenizer.eos_token before training"
        )
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise UserError(
            "the tokenizer has only special tokens: check that the model's folder contains the tokenizer's files"
        )


def _load_base(name: str, dtype: Any) -> Any:
    config = AutoConfig.from_pretrained(name, **LOCAL_CODE)
    if not config.is_encoder_decoder and getattr(config, "is_decoder", None) is False and _reads_both_ways(config):
        raise UserError(
            f"the model '{name}' ({config.model_type}) reads text in both directions and cannot generate: choose a "
            "decoder-only or an encoder-decoder model"
        )
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model, found = auto.from_pretrained(name, dtype=dtype, output_loading_info=True, **LOCAL_CODE)  # type: ignore[misc]
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        logger.warning("'%s' lacks these weights, which are initialised at random: %s%s", name, missing[0], more)
    return model


def _reads_both_ways(config: Any) -> bool:
    return config.model_type in (
        "bert",
        "roberta",
        "electra",
        "camembert",
        "xlm-roberta",
        "roformer",
        "ernie",
        "megatron-bert",
    )


def add_mask_token(model: Any, tokenizer: PreTrainedTokenizerBase, adapted: bool = False) -> int:
    """Return the id of the mask token. If the tokenizer has none, add one, with the embedding of a T5 sentinel or the
    mean embedding.

    adapted: the model gets an adapter. The embedding then has exactly as many rows as the tokenizer has tokens, as peft
    makes it when it loads the adapter.
    """
    new = tokenizer.mask_token_id is None
    rows_before = model.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > rows_before:  # without added tokens: some models have more of these than they know
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model has {rows_before:,}: use the model's "
            "own tokenizer"
        )
    if new:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    mask_id = tokenizer.mask_token_id
    if mask_id >= rows_before:
        _grow(model, len(tokenizer), multiple=64 if rows_before % 64 == 0 and not adapted else 1)
    if new:
        sentinel = tokenizer.get_vocab().get("<extra_id_0>")
        with torch.no_grad():
            embedding = model.get_input_embeddings().weight
            mean = embedding[:rows_before].float().mean(0).to(embedding.dtype)
            embedding[mask_id] = mean if sentinel is None else embedding[sentinel]
    return mask_id


def _grow(model: Any, size: int, multiple: int) -> None:
    """Add rows to the embedding and the output head, each the mean of the old ones. An untied head stays untied."""
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


def tokenizer_of(model: Any, tokenizer: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model object: the given one, or that of the place that the model was loaded from."""
    if not isinstance(getattr(model, "config", None), PretrainedConfig):
        raise UserError(f"model={short(repr(model))} must be a Hub name, a folder, a Policy or a model of Transformers")
    if tokenizer is None and not model.config._name_or_path:
        raise UserError(
            "pass processing_class=tokenizer: this model object has no name or folder from which the tokenizer could "
            "be loaded"
        )
    if tokenizer is None:
        with loading(f"the tokenizer of '{model.config._name_or_path}'"):
            return AutoTokenizer.from_pretrained(model.config._name_or_path, **LOCAL_CODE)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(f"processing_class={short(repr(tokenizer))} must be a tokenizer of Transformers")
    return tokenizer


def is_peft(model: nn.Module) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def base_of(model: Any) -> Any:
    """Return the Hugging Face model, without an adapter's wrapper."""
    return model.get_base_model() if is_peft(model) else model


def check_adapters(configs: Iterable[Any]) -> None:
    """Reject adapters that put virtual tokens before the text: rows are run through the base model, which has none."""
    for config in configs:
        if getattr(config, "is_prompt_learning", False):
            name = str(getattr(config.peft_type, "value", config.peft_type))
            raise UserError(
                f"the adapter type {name} is not supported: it adds virtual tokens to the text. "
                "Supported: adapters that change weights, such as LoRA (LoraConfig), or full fine-tuning"
            )


def lora_config(rank: int, alpha: int) -> Any:
    """Return a config of LoRA adapters on all linear layers."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise UserError("--lora_r needs the package peft: pip install 'semioffline[peft]'") from error
    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")


def add_adapter(model: Any, peft_config: Any, mask_id: int) -> nn.Module:
    """Attach the adapter; the mask token's embedding row is trained and saved with it."""
    from peft import PeftConfig, get_peft_model

    if not isinstance(peft_config, PeftConfig):
        raise UserError(f"peft_config={short(repr(peft_config))} must be a peft.PeftConfig, such as LoraConfig(...)")
    check_adapters([peft_config])
    if hasattr(peft_config, "trainable_token_indices") and not peft_config.trainable_token_indices:
        table = model.get_decoder().get_input_embeddings()
        name = next(name for name, module in model.named_modules() if module is table)
        peft_config = copy.deepcopy(peft_config)
        peft_config.trainable_token_indices = {name: [mask_id]}
    return get_peft_model(model, peft_config)


def mask_row_trains(base: Any) -> bool:
    table = base.get_decoder().get_input_embeddings()
    return any(parameter.requires_grad for parameter in table.parameters())


def _load_adapter(name: str, tokenizer: Any, dtype: Any) -> tuple[nn.Module, Any]:
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(name)
    check_adapters([config])
    base_name = config.base_model_name_or_path
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(name, **LOCAL_CODE)
    base = _load_base(base_name, dtype)
    add_mask_token(base, tokenizer, adapted=True)
    return PeftModel.from_pretrained(base, name, is_trainable=True), tokenizer


def takes_block_mask(model: Any) -> bool:
    """Return whether several rows can be in one sequence of the model's decoder: it takes a 4-d attention mask and
    positions, and has no window, no recurrence and no flash kernel."""
    config = model.config
    if config._attn_implementation not in ("sdpa", "eager"):
        return False
    if config.is_encoder_decoder:
        return config.model_type in _RELATIVE or (config.model_type in _POSITIONED and _takes_positions(model))
    config = config.get_text_config(decoder=True)  # models that also see pictures have one inside
    layers = getattr(config, "layer_types", None)
    full = (
        all(kind == "full_attention" for kind in layers) if layers else getattr(config, "sliding_window", None) is None
    )
    local = ("attention_types", "alibi", "attention_chunk_size")  # GPT-Neo, Falcon and Llama 4 attend in other ways
    plain = full and not any(getattr(config, name, None) for name in local)
    return plain and "position_ids" in inspect.signature(model.forward).parameters


_RELATIVE = ("t5", "mt5")
"""Models with relative positions: within a row they are right wherever the row is in the sequence."""
_POSITIONED = ("bart", "mbart", "marian", "pegasus", "plbart", "blenderbot", "blenderbot-small")
"""Models whose decoder calls its position table with the argument position_ids."""


def _takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.get_decoder().embed_positions.forward).parameters


def first_position(model: Any) -> int:
    """Return the row of the position table for the first token of a text. In RoBERTa, positions begin after the padding
    id."""
    if model.config.is_encoder_decoder:
        return 0
    table = getattr(getattr(model.get_decoder(), "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0: those of layers, those that models keep as attributes, and those that layers
    look up in the config. The latter get a copy of the config, because the model's own is saved with it."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        _without_dropout(module)
        config = vars(module).get("config")
        if isinstance(config, PretrainedConfig) and not isinstance(module, PreTrainedModel):
            if id(config) not in configs:
                configs[id(config)] = _without_dropout(copy.deepcopy(config))
            module.config = configs[id(config)]


def _without_dropout(place: Any) -> Any:
    for name, value in list(vars(place).items()):
        if isinstance(value, float) and any(part in name for part in ("dropout", "pdrop", "layerdrop")):
            setattr(place, name, 0.0)
    return place
