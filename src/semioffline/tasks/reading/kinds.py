"""Kinds of models that need different forms of prompts."""

from functools import cache
from pathlib import Path

from semioffline.storage.untrusted import loading, parse_json

KINDS = ("t5", "encoder_decoder", "decoder_only")
"""t5 models are trained with a few words before the prompt that name the task; other encoder-decoder models (BART,
Pegasus) read the plain source; decoder-only models need a text that the answer continues."""
_T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


@cache
def model_kind(name: str) -> str:
    """Return the kind of a model, given its name or folder. For an adapter, it is that of its base model."""
    from transformers import AutoConfig

    adapter = Path(name) / "adapter_config.json"
    with loading(f"the model '{name}'"):
        if adapter.is_file():
            name = str(parse_json(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if config.model_type in _T5:
        return "t5"
    return "encoder_decoder" if config.is_encoder_decoder else "decoder_only"
