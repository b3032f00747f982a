"""Prompt and target, tokenised apart, are the tokens of the text that they make."""

from typing import Any

import pytest
import transformers as hf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from semioffline.policy.joining import NO_CONTEXT, context_of
from semioffline.policy.policy import Policy
from semioffline.tasks import ads

TEXTS = ["discover zorvia the bold lamps", "name: zorvia", "city: oslo", "a lamp, a city. write: now meet it", "a a"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BYTES = [f"<0x{n:02X}>" for n in range(256)]
LLAMA_3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(pre_tokenizer: Any, alphabet: list[str], special: list[str], **options: Any) -> Tokenizer:
    backend = Tokenizer(models.BPE(unk_token="<unk>", **options))
    backend.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    backend.train_from_iterator([*TEXTS, " ".join(ads.vocabulary())] * 2, trainer)
    return backend


def byte_level(prefix: bool) -> Tokenizer:
    """GPT-2 and others."""
    before = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend = trained(before, pre_tokenizers.ByteLevel.alphabet(), SPECIAL)
    backend.decoder = decoders.ByteLevel()
    return backend


def llama_3() -> Tokenizer:
    parts = [
        pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    backend = trained(pre_tokenizers.Sequence(parts), pre_tokenizers.ByteLevel.alphabet(), SPECIAL)
    backend.decoder = decoders.ByteLevel()
    return backend


def sentence_piece(scheme: str, normalizer: bool) -> Tokenizer:
    """Llama 2: a normalizer that prepends, and no pre-tokenizer; or a Metaspace pre-tokenizer."""
    before = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    backend = trained(before, ["\u2581"], [*SPECIAL, *BYTES], byte_fallback=True, fuse_unk=True)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if normalizer:
        backend.pre_tokenizer = None
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return backend


KINDS = {
    "gpt2": lambda: byte_level(False),
    "gpt2 with a prefix space": lambda: byte_level(True),
    "llama 3": llama_3,
    "llama 2": lambda: sentence_piece("always", True),
    "metaspace always": lambda: sentence_piece("always", False),
    "metaspace first": lambda: sentence_piece("first", False),
    "metaspace never": lambda: sentence_piece("never", False),
}


@pytest.fixture(params=list(KINDS))
def policy(request: pytest.FixtureRequest, tiny_model: Any) -> Policy:
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=KINDS[request.param](), clean_up_tokenization_spaces=False, **names
    )
    return Policy(tiny_model("llama", len(tokenizer)), tokenizer)


PROMPTS = ["name: zorvia", "write: ", "write:\n", "write:\n\n", "a"]
TARGETS = ["meet the bold lamps", "a city, now", "Zorvia: a lamp\nnow"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_and_target_are_the_tokens_of_their_text(policy: Policy, prompt: str) -> None:
    """After a space that ends the prompt, and is a token of its own there, at least the text is the same."""
    joint = "" if prompt[-1].isspace() else " "
    targets = policy.tokens.encode_targets(TARGETS, [prompt] * len(TARGETS), 64)
    [source] = policy.tokens.encode_sources([prompt], 64)
    for target, text in zip(targets, TARGETS):
        together = source.ids + target.ids[:-1]
        whole = policy.tokens.tokenizer(prompt + joint + text)["input_ids"]
        assert policy.tokens.decode([together]) == policy.tokens.decode([whole])
        assert together == whole or prompt.endswith(" ")
        assert target.ids[-1] == policy.tokens.tokenizer.eos_token_id
        assert len(target.ids) == len(target.words)


def test_no_piece_is_doubled(policy: Policy) -> None:
    [target] = policy.tokens.encode_targets(["meet the bold lamps"], ["name: zorvia"], 64)
    pieces = policy.tokens.tokenizer.convert_ids_to_tokens(target.ids)
    assert pieces[0] not in ("\u2581", "\u2581\u2581", "\u0120")
    assert policy.tokens.decode([target.ids]) == ["meet the bold lamps"]


def test_targets_after_different_prompts_keep_their_order_and_length(policy: Policy) -> None:
    """Cut to the length that is asked, with EOS."""
    prompts = ["write:\n", "name: zorvia", "", "write:\n"]
    together = policy.tokens.encode_targets(["a city, now"] * 4, prompts, 4)
    for prompt, target in zip(prompts, together):
        assert policy.tokens.encode_targets(["a city, now"], [prompt], 4) == [target]
        assert (len(target.ids), target.truncated, target.words[0] in (0, 1), target.words[-1]) == (4, True, True, -1)
    [start] = policy.tokens.encode_targets(["meet it"], [""], 64)
    assert start.ids[:-1] == policy.tokens.tokenizer("meet it", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["gpt2", "llama 3"])
@pytest.mark.parametrize("end", ["", " ", "\n"])
def test_byte_level_tokenizers_need_no_context(name: str, end: str) -> None:
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=KINDS[name]())
    assert context_of(tokenizer, end) == NO_CONTEXT


@pytest.mark.parametrize("prompt", ["name: zorvia", "write: ", "write:\n", ""])
def test_offsets_are_places_in_the_target(policy: Policy, prompt: str) -> None:
    """Whatever stands before it while it is tokenised: a token's characters are what it is decoded to."""
    text = "meet the zorvia, a bold lamps"
    [target] = policy.tokens.encode_targets([f" {text}\n"], [prompt], 64, with_offsets=True)
    [plain] = policy.tokens.encode_targets([text], [prompt], 64)
    assert (target.ids, target.words) == (plain.ids, plain.words)
    assert len(target.offsets) == len(target.ids)
    assert not plain.offsets
    pieces = [policy.tokens.decode([[token]])[0] for token in target.ids[:-1]]
    covered = [text[start:end].strip() for start, end in target.offsets[:-1]]
    assert covered == pieces
    assert "".join(covered) == text.replace(" ", "")
