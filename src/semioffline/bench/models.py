"""Models of published sizes with random weights, a tokenizer with as many words, and texts of exact lengths.

The cost of a step does not depend on the weights, so nothing is downloaded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from semioffline.errors import unknown
from semioffline.policy.policy import Policy


class Shape(NamedTuple):
    """The number of tokens of a source and of a target."""

    source: int
    target: int


SHAPES: dict[str, Shape] = {
    "cnndm": Shape(781, 56),
    "samsum": Shape(124, 23),
    "squad": Shape(148, 11),
    "xsum": Shape(431, 23),
    "tiny": Shape(48, 16),
    "ads": Shape(32, 32),
}
"""The paper's four datasets, by the mean lengths of their texts; one for --small; the longest texts of the ads task."""

_LARGE = {"d_model": 1024, "encoder_attention_heads": 16, "decoder_attention_heads": 16}
_LARGE |= {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024}
_TINY = {"d_model": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 256}
_TINY |= {"encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "encoder_layers": 2, "decoder_layers": 2}
MODELS: dict[str, tuple[str, Mapping[str, object]]] = {
    "bart-large": ("Bart", {"vocab_size": 50265, "encoder_layers": 12, "decoder_layers": 12} | _LARGE),
    "pegasus-large": (
        "Pegasus",
        {"vocab_size": 96103, "encoder_layers": 16, "decoder_layers": 16, "activation_function": "relu"} | _LARGE,
    ),
    "t5-large": (
        "T5",
        {"vocab_size": 32128, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    ),
    "smollm2-135m": (
        "Llama",
        {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}
        | {"tie_word_embeddings": True},
    ),
    "bart-tiny": ("Bart", {"vocab_size": 2048} | _TINY),
    "llama-tiny": (
        "Llama",
        {"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3}
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    ),
}
"""name -> class and sizes"""

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def words(number: int) -> list[str]:
    """Return distinct pronounceable words, short ones first."""
    syllables = [consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou"]

    def spell(n: int) -> str:
        text = syllables[n % len(syllables)]
        while n >= len(syllables):
            n = n // len(syllables) - 1
            text += syllables[n % len(syllables)]
        return text

    return [spell(n) for n in range(number)]


def build_tokenizer(size: int, is_encoder_decoder: bool) -> Any:
    """Build a tokenizer of `size` tokens, special ones included, with one token for each word."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: n for n, token in enumerate([*SPECIAL, *words(size - len(SPECIAL))])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    ends = [("<s>", 0), ("</s>", 2)]
    backend.post_processor = TemplateProcessing(
        single="$A </s>" if is_encoder_decoder else "<s> $A", special_tokens=ends
    )
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def build_policy(name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> Policy:
    """Build a policy with random weights if the name is in MODELS; else load one from a folder or the Hub."""
    import transformers

    if name == "ads":
        from semioffline.tasks import ads

        return Policy(ads.build_model(), ads.build_tokenizer()).to(device)
    if name not in MODELS:
        if "/" not in name:
            raise unknown("model", name, [*MODELS, "ads", "NAME/ON-THE-HUB", "path/to/folder"])
        policy = Policy.load(name, dtype=dtype)
        policy.to(device)
        return policy
    kind, sizes = MODELS[name]
    causal = kind == "Llama"
    config_class = getattr(transformers, f"{kind}Config")
    model_class = getattr(transformers, f"{kind}ForCausalLM" if causal else f"{kind}ForConditionalGeneration")
    start = {} if causal else {"decoder_start_token_id": 2 if kind == "Bart" else 1, "forced_eos_token_id": None}
    config = config_class(**sizes, bos_token_id=0, pad_token_id=1, eos_token_id=2, **start)
    torch.manual_seed(0)
    with torch.device(device):
        model = model_class(config)
    policy = Policy(model.to(dtype), build_tokenizer(config.vocab_size, not causal))
    policy.to(device)
    return policy


class Texts:
    """Rows of random words, slightly longer than `shape`, so that truncation gives every text its exact length."""

    def __init__(self, number: int, shape: Shape, vocabulary: Sequence[str], candidates: int = 0, seed: int = 0):
        rng = random.Random(seed)
        weights = list(accumulate(1 / (rank + 10) for rank in range(len(vocabulary))))  # Zipf's law, flat at the top

        def write(length: int) -> str:
            return " ".join(rng.choices(vocabulary, cum_weights=weights, k=length))

        self.columns: dict[str, list[Any]] = {
            "prompt": [write(shape.source + 1) for _ in range(number)],
            "completion": [write(shape.target) for _ in range(number)],
        }
        if candidates:
            self.columns["candidates"] = [[write(shape.target) for _ in range(candidates)] for _ in range(number)]
            self.columns["candidate_rewards"] = [[1 / (n + 1) for n in range(candidates)] for _ in range(number)]

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(self.columns["prompt"])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}
