"""Kinds of model, as far as they want their prompts in different forms."""

import json
from functools import cache
from pathlib import Path

from semioffline.errors import UserError

KINDS = ("t5", "encoder_decoder", "decoder_only")
"""t5 models are trained with a few words in front that name the job; other encoder-decoder models (BART, Pegasus) read
the plain source; decoder-only models need a text that the answer continues."""
_T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


@cache
def model_kind(name: str) -> str:
    """The kind of the model with this name or in this folder (its own, or the one that its adapter was made for)."""
    from transformers import AutoConfig

    adapter = Path(name) / "adapter_config.json"
    if adapter.is_file():
        return model_kind(json.loads(adapter.read_text())["base_model_name_or_path"])
    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model '{name}': {str(error).strip().splitlines()[0]}") from error
    if config.model_type in _T5:
        return "t5"
    return "encoder_decoder" if config.is_encoder_decoder else "decoder_only"
