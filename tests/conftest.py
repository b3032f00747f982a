"""Tiny random models of every supported kind, with a word-level tokenizer; nothing is downloaded."""

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers as hf
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from semioffline.algorithm.tensors import Batch
from semioffline.config import MethodConfig
from semioffline.data.examples import Collator, Examples
from semioffline.methods.shared.registry import config_class
from semioffline.policy.policy import Policy
from semioffline.tasks import ads

BOS, PAD, EOS = 0, 1, 2
SPECIAL: dict[str, Any] = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}
BART_SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "forced_eos_token_id": None,
}
T5_SIZES: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": PAD,
}
LLAMA_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
GPT2_SIZES: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128}
GPT2_SIZES |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GEMMA2_SIZES: dict[str, Any] = {"head_dim": 8, "sliding_window": 6, "final_logit_softcapping": 2.0}
OPT_SIZES: dict[str, Any] = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "num_hidden_layers": 2}
OPT_SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 128, "dropout": 0.0}

KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig, BART_SIZES | {"decoder_start_token_id": EOS}),
    "mbart": (hf.MBartForConditionalGeneration, hf.MBartConfig, BART_SIZES | {"decoder_start_token_id": EOS}),
    "marian": (hf.MarianMTModel, hf.MarianConfig, BART_SIZES | {"decoder_start_token_id": PAD}),
    "pegasus": (hf.PegasusForConditionalGeneration, hf.PegasusConfig, BART_SIZES | {"decoder_start_token_id": PAD}),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config, T5_SIZES | {"tie_word_embeddings": False}),  # no output scale
    "t5_tied": (hf.T5ForConditionalGeneration, hf.T5Config, T5_SIZES | {"tie_word_embeddings": True}),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA_SIZES),
    "llama_tied": (hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA_SIZES | {"tie_word_embeddings": True}),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, LLAMA_SIZES),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, GPT2_SIZES),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, LLAMA_SIZES | {"sliding_window": 6}),
    "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config, LLAMA_SIZES | GEMMA2_SIZES),
    "opt": (hf.OPTForCausalLM, hf.OPTConfig, OPT_SIZES),
    "bloom": (hf.BloomForCausalLM, hf.BloomConfig, {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
}
"""kind -> model, its config, sizes. mistral has a sliding window, gemma2 one too and soft-capped logits, bloom no
position ids: none of the three takes a packed prompt."""
DECODER_ONLY = ("llama", "llama_tied", "qwen2", "gpt2", "mistral", "gemma2", "opt", "bloom")
TEMPLATES = {"bart": "<s> $A </s>"} | dict.fromkeys(DECODER_ONLY, "<s> $A")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


def pytest_collection_finish() -> None:
    """Full collections, which every training makes, pass over what was imported: a quarter of a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes, in modules that have checked that Ray is installed."""
    from tests.engines.clusters import start_cluster

    with start_cluster() as found:
        yield found


def _build_tokenizer(
    kind: str = "bart", mask: bool = True, extra: tuple[str, ...] = (), template: str | None = None
) -> Any:
    """The words of the ads task; special tokens at 0 to 3, and <mask> at 4 where asked."""
    special = ["<s>", "<pad>", "</s>", "<unk>"] + ["<mask>"] * mask
    ids = {token: number for number, token in enumerate([*special, *ads.vocabulary(), *extra])}
    backend = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    template = template or TEMPLATES.get(kind, "$A </s>")
    backend.post_processor = TemplateProcessing(single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    names |= {"mask_token": "<mask>"} if mask else {}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **names,
    )


def _untie(model: Any) -> None:
    """A head of its own, as in T5 1.1 and Flan-T5.

    Transformers 5 ties every new T5. One that is loaded from a checkpoint with two different tables stays untied, and
    its head is taken out of `all_tied_weights_keys`.
    """
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.4)
    model.all_tied_weights_keys.pop("lm_head.weight")


def _build_model(kind: str, vocab_size: int, seed: int = 0, **changes: Any) -> Any:
    """Weights large enough that distributions are neither flat nor alike from one position to the next."""
    model_class, config_class, sizes = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = config_class(vocab_size=vocab_size, **(SPECIAL | sizes | changes))
        model = model_class(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1 and parameter.requires_grad:
                    parameter.normal_(0, 0.4)
            if kind == "t5":
                _untie(model)
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias.normal_(0, 0.4)
    return model


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """tiny_tokenizer(kind, mask=True, extra=(), template=None)"""
    return _build_tokenizer


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    """tiny_model(kind, vocab_size, seed=0, **config)"""
    return _build_model


@pytest.fixture(scope="session")
def tiny_policy() -> Any:
    """tiny_policy(kind, mask=True, extra_ids=0, dtype=None, seed=0, **options of Policy) -> a new policy, in eval mode.

    mask: whether the tokenizer has a mask token of its own; extra_ids: embedding rows without a token.
    """

    def build(
        kind: str,
        mask: bool = True,
        extra_ids: int = 0,
        dtype: Any = None,
        seed: int = 0,
        config: Any = None,
        **options: Any,
    ) -> Policy:
        tokenizer = _build_tokenizer(kind, mask)
        model = _build_model(kind, len(tokenizer) + extra_ids, seed, **(config or {}))
        return Policy(model if dtype is None else model.to(dtype), tokenizer, **options).eval()

    return build


@pytest.fixture(scope="session")
def tiny_data() -> Dataset:
    """Eight rows of the ads task, cut so that prompts and completions have different lengths."""
    rows = ads.build({"train": 8})["train"].to_list()
    for number, row in enumerate(rows):
        row["prompt"] = " ".join(row["prompt"].split()[: 19 - 2 * (number % 5)])
        row["completion"] = " ".join(row["completion"].split()[: 7 + 3 * (number % 3)])
    return Dataset.from_list(rows)


@pytest.fixture(scope="session")
def tiny_batch(tiny_data: Dataset) -> Any:
    """tiny_batch(policy, size=4) -> a Batch with padding in source and target."""

    def build(policy: Policy, size: int = 4) -> Batch:
        examples = Examples(tiny_data, policy, max_prompt_length=40, max_completion_length=40)
        return Collator(policy.tokens.pad_id)([examples[n] for n in range(size)])

    return build


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """settings(method="semi_offline", **changes) -> the config of a method, for the CPU; with an `observation`, that of
    its ablations."""
    folder = str(tmp_path_factory.mktemp("run"))

    def build(method: str = "semi_offline", **changes: Any) -> MethodConfig:
        if changes.get("observation") == "masked":
            del changes["observation"]
        method = "ablations" if "observation" in changes else method
        return config_class(method)(output_dir=folder, use_cpu=True, report_to="none", **changes)

    return build


@pytest.fixture
def one_thread():
    """The order of sums, and so the last bit, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
