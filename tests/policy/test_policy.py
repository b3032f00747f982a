"""The policy against the bare Hugging Face model it wraps."""

import logging
from dataclasses import replace

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM, AutoPeftModelForSeq2SeqLM, LoraConfig, PeftModel
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
)

from semioffline.algorithm.losses import mle
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row, Text
from semioffline.errors import UserError
from semioffline.methods.semi_offline import Method
from semioffline.policy.decoding import Decoding
from semioffline.policy.loading import disable_dropout
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

SEQ2SEQ = ["bart", "mbart", "marian", "pegasus", "t5", "t5_tied"]
PACKED = ["llama", "llama_tied", "qwen2", "gpt2", "opt"]
UNPACKED = ["mistral", "gemma2", "bloom"]
MAIN = ["bart", "t5", "t5_tied", "llama", "llama_tied", "gpt2"]
TEXT = "discover zorvia the bold lamps from oslo"


def bare_logits(model, source, ids):
    """(T, V): the model's own logits for every token of `ids` after `source`, one example, no padding, no Policy."""
    if model.config.is_encoder_decoder:
        start = torch.tensor([model.config.decoder_start_token_id])
        return model(input_ids=source[None], decoder_input_ids=torch.cat([start, ids[:-1]])[None]).logits[0]
    return model(input_ids=torch.cat([source, ids])[None]).logits[0, len(source) - 1 : -1]


def expected(model, source: Text, row: Row):
    """What `predict` must give for a row, example by example."""
    parts = []
    for b in range(len(row.ids)):
        ids = row.ids[b][row.keep_mask[b]]
        logits = bare_logits(model, source.ids[b][source.keep_mask[b]], ids)
        parts.append(logits[row.wanted[b][: len(ids)]])
    return torch.cat(parts)


def three_rows(policy, batch):
    """The ground truth; the same with mask tokens, wanted there only; and a shorter text in a narrower tensor."""
    target = batch.target
    hidden = target.ordinary & (torch.arange(target.ids.shape[1]) % 3 == 1)
    short = target.ids.flip(0)[:, :6].clamp(min=5)
    keep = torch.arange(6)[None] < torch.tensor([6, 3, 1, 4])[:, None]
    return [
        Row(target.ids, target.keep_mask, target.keep_mask),
        Row(target.ids.masked_fill(hidden, policy.tokens.mask_id), target.keep_mask, hidden, "rl"),
        Row(short, keep, keep, "rl"),
    ]


def source_of(policy, texts):
    """Texts as a source, padded on the right."""
    encoded = [e.ids for e in policy.tokens.encode_sources(texts, 40)]
    length = max(map(len, encoded))
    ids = torch.tensor([e + [policy.tokens.pad_id] * (length - len(e)) for e in encoded])
    keep = torch.tensor([[n < len(e) for n in range(length)] for e in encoded])
    return Text(ids, keep, torch.zeros_like(ids))


# ---- the forward pass ----


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("kind", SEQ2SEQ + PACKED + UNPACKED)
@torch.no_grad()
def test_predictions_are_the_models_own_logits_at_the_wanted_positions(tiny_policy, tiny_batch, kind, number):
    """With padding in source and target, one row or several; the reference runs every example alone."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    assert not batch.source.keep_mask.all()
    assert not batch.target.keep_mask.all()
    rows = three_rows(policy, batch)[:number]
    for found, row in zip(policy.predict(batch.source, rows), rows, strict=True):
        torch.testing.assert_close(found, expected(policy.model, batch.source, row), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PACKED + SEQ2SEQ)
@torch.no_grad()
def test_rows_in_one_sequence_and_plain_rows_agree(tiny_policy, tiny_batch, kind, attention):
    """Behind one copy of the prompt, or of the source's keys and values in an encoder-decoder's decoder."""
    policy = tiny_policy(kind, config={"attn_implementation": attention})
    assert policy.share_prompt
    batch = tiny_batch(policy)
    rows = three_rows(policy, batch)
    packed = policy.predict(batch.source, rows)
    policy.share_prompt = False
    for shared, plain in zip(packed, policy.predict(batch.source, rows), strict=True):
        torch.testing.assert_close(shared, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bart", "t5"])
@torch.no_grad()
def test_the_decoder_sees_the_source_once_whatever_the_number_of_rows(tiny_policy, tiny_batch, kind):
    """The keys and values of the source are as many as for one row."""
    policy = tiny_policy(kind)
    batch, sizes = tiny_batch(policy), []
    name = "encoder_attn.k_proj" if kind == "bart" else "EncDecAttention.k"
    [projection, *_] = [m for n, m in policy.base.get_decoder().named_modules() if n.endswith(name)]
    projection.register_forward_hook(lambda module, args, output: sizes.append(output.shape[:2]))
    rows = three_rows(policy, batch)
    for number in (1, 2, 3):
        policy.predict(batch.source, rows[:number])
    assert sizes == [batch.source.ids.shape] * 3


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
@torch.no_grad()
def test_without_padding_there_is_no_mask_on_the_source(tiny_policy, tiny_batch, kind):
    """The same logits, and none of the kernels that need a mask."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    shortest = min(batch.source.lengths)
    source = Text(*(t[:, :shortest] for t in (batch.source.ids, batch.source.keep_mask, batch.source.words)))
    assert source.keep_mask.all()
    if policy.is_encoder_decoder:
        assert policy._source_mask(source.keep_mask) is None
    rows = three_rows(policy, batch)
    for found, row in zip(policy.predict(source, rows), rows, strict=True):
        torch.testing.assert_close(found, expected(policy.model, source, row), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", UNPACKED)
def test_models_that_cannot_take_a_packed_prompt_are_not_given_one(tiny_policy, kind):
    assert not tiny_policy(kind, share_prompt=True).share_prompt


@torch.no_grad()
def test_what_a_model_that_also_sees_pictures_says_of_its_layers_is_read(tiny_policy):
    """Its text model has a configuration of its own: a window there forbids a packed prompt, and positions count."""
    torch.manual_seed(0)
    tokenizer = tiny_policy("llama").tokens.tokenizer
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = sizes | {"vocab_size": len(tokenizer), "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 48}
    pictures = sizes | {"num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
    special = {"image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7, "mm_tokens_per_image": 1}
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=pictures, **special)).eval()
    policy = Policy(model, tokenizer).eval()
    assert not policy.share_prompt
    assert policy.max_positions() == 48
    ids = torch.randint(8, 60, (1, 16))
    source, target = (Text(part, torch.ones_like(part).bool(), part * 0) for part in ids.split([10, 6], dim=1))
    row = Row(target.ids, target.keep_mask, target.keep_mask)
    for found in policy.predict(source, [row, row]):
        torch.testing.assert_close(found, model(input_ids=ids).logits[0, 9:-1], rtol=1e-4, atol=1e-4)


DROPOUTS = {"attention_dropout": 0.5, "hidden_dropout": 0.5, "residual_dropout": 0.5, "embedding_dropout": 0.5}


@pytest.mark.parametrize("name", ["Falcon", "Bloom", "Starcoder2", "Llama"])
@torch.no_grad()
def test_dropout_is_switched_off_under_all_of_its_names(name):
    """In Bloom and Starcoder2 it is an attribute, in Falcon a layer looks it up in the configuration, which is saved as
    it was."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"n_layer": 2, "n_head": 2} if name == "Bloom" else {"num_key_value_heads": 2}
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes, **DROPOUTS))
    ids = torch.randint(3, 50, (2, 9))

    def differs() -> bool:
        outputs = [model.train()(input_ids=ids, use_cache=False).logits for _ in range(3)]
        return any(not torch.equal(outputs[0], other) for other in outputs[1:])

    assert differs()
    disable_dropout(model)
    assert not differs()
    assert model.config.attention_dropout == 0.5


def test_weights_that_a_checkpoint_does_not_have_are_told(tmp_path, tiny_policy, caplog):
    policy = tiny_policy("t5")
    policy.model.encoder.save_pretrained(tmp_path)
    policy.model.config.save_pretrained(tmp_path)
    policy.tokens.tokenizer.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, logger="semioffline"):
        Policy.load(str(tmp_path))
    assert "initialised at random: decoder." in caplog.text


@pytest.mark.parametrize("kind", ["bart", "t5", "llama", "gpt2"])
@torch.no_grad()
def test_padding_changes_nothing(tiny_policy, tiny_batch, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    rows = three_rows(policy, batch)[:2]
    wide = [
        Row(
            *(
                nn.functional.pad(t, (0, 7), value=v)
                for t, v in ((r.ids, policy.tokens.pad_id), (r.keep_mask, 0), (r.wanted, 0))
            )
        )
        for r in rows
    ]
    source = Text(
        *(nn.functional.pad(t, (0, 5)) for t in (batch.source.ids, batch.source.keep_mask, batch.source.words))
    )
    for narrow, padded in zip(policy.predict(batch.source, rows), policy.predict(source, wide), strict=True):
        torch.testing.assert_close(narrow, padded, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_row_of_which_nothing_is_wanted_gives_no_logits(tiny_policy, tiny_batch, kind):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    first, second, _ = three_rows(policy, batch)
    logits = policy.predict(batch.source, [first, replace(second, wanted=torch.zeros_like(second.wanted))])
    assert logits[0].shape == (int(first.wanted.sum()), len(policy.allowed))
    assert logits[1].shape == (0, len(policy.allowed))


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_the_bare_model_is_left_as_it_was(tiny_policy, tiny_batch, kind):
    """After a prediction, also one that failed, the model itself still gives logits for every position."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    row = three_rows(policy, batch)[0]
    source, ids = batch.source.ids[0], batch.target.ids[0][batch.target.keep_mask[0]]
    before = bare_logits(policy.model, source, ids)
    policy.predict(batch.source, [row])
    with pytest.raises((IndexError, RuntimeError)):
        policy.predict(batch.source, [replace(row, ids=row.ids + 10_000)])
    assert torch.equal(bare_logits(policy.model, source, ids), before)


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_predict_goes_through_the_module_that_wraps_the_policy(tiny_policy, tiny_batch, kind):
    """DDP and FSDP must see every use of a parameter."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy)
    calls = []

    class Wrapper(nn.Module):
        def forward(self, *args):
            calls.append(1)
            return policy(*args)

    with policy.through(Wrapper()):
        policy.predict(batch.source, three_rows(policy, batch))
    policy.predict(batch.source, three_rows(policy, batch))
    assert calls == [1]


# ---- what may be drawn ----


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_only_tokens_of_the_tokenizer_that_are_not_special_may_be_drawn(tiny_policy, kind):
    policy = tiny_policy(kind, extra_ids=9)
    tokens = len(policy.tokens.tokenizer)
    assert policy.allowed.shape == (tokens + 9,)
    assert not policy.allowed[tokens:].any()
    assert not policy.allowed[:5].any()  # <s> <pad> </s> <unk> <mask>
    assert policy.allowed[5:tokens].all()


def test_special_tokens_beside_the_named_ones_are_not_drawn_either(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("llama", extra=("<|tool|>",))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    policy = Policy(tiny_model("llama", len(tokenizer)), tokenizer)
    assert not policy.allowed[tokenizer.convert_tokens_to_ids("<|tool|>")]


def test_a_step_draws_no_special_token_however_likely(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart", extra_ids=9)
    with torch.no_grad():
        policy.model.final_logits_bias[:, ~policy.allowed] = 50.0
    batch = tiny_batch(policy)
    seen = []

    def look(completion_ids, completions, **kwargs):
        seen.extend(completion_ids)
        return [0.0] * len(completions)

    Method(settings(num_samples=50, mask_rate=1.0)).step(
        policy, batch, Scorer(policy, RewardSet(look)), Randomness(0, 0)
    )
    for number, ids in enumerate(seen):
        assert policy.allowed[ids[1:-1]].all()
        assert len(ids) == batch.static.lengths[number // 50]
    assert len({tuple(ids) for ids in seen}) > 100


# ---- the mask token ----


@pytest.mark.parametrize("kind", SEQ2SEQ + PACKED)
@torch.no_grad()
def test_a_mask_token_is_added_without_changing_what_the_model_knows(tiny_model, tiny_tokenizer, kind):
    tokenizer = tiny_tokenizer(kind, mask=False)
    tokens = len(tokenizer)
    model = tiny_model(kind, tokens)
    source, ids = torch.tensor([8, 9, 10]), torch.tensor([20, 21, 22, 2])
    before, table = bare_logits(model, source, ids), model.get_input_embeddings().weight.clone()
    policy = Policy(model, tokenizer)
    assert policy.tokens.mask_id == tokens
    assert policy.tokens.tokenizer.mask_token_id == tokens
    after = model.get_input_embeddings().weight
    assert torch.equal(after[:tokens], table)
    torch.testing.assert_close(after[tokens], table.mean(0))
    torch.testing.assert_close(bare_logits(model, source, ids)[:, :tokens], before)
    assert not policy.allowed[policy.tokens.mask_id]


def test_a_mask_token_takes_a_spare_row_where_there_is_one(tiny_policy):
    policy = tiny_policy("llama", mask=False, extra_ids=3)
    assert len(policy.model.get_input_embeddings().weight) == len(policy.tokens.tokenizer) - 1 + 3
    assert policy.tokens.mask_id == len(policy.tokens.tokenizer) - 1


def test_a_table_with_a_multiple_of_64_rows_keeps_one(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("llama", mask=False, extra=("extra",))
    assert len(tokenizer) == 192
    policy = Policy(tiny_model("llama", 192), tokenizer)
    assert policy.tokens.mask_id == 192
    assert len(policy.model.get_input_embeddings().weight) == 256
    assert policy.allowed.nonzero().max() == 191


def test_a_sentinel_of_t5_lends_the_mask_token_its_embedding(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("t5", mask=False, extra=("<extra_id_0>",))
    policy = Policy(tiny_model("t5", len(tokenizer)), tokenizer)
    table = policy.model.get_input_embeddings().weight
    assert torch.equal(table[policy.tokens.mask_id], table[tokenizer.convert_tokens_to_ids("<extra_id_0>")])


def test_the_tokenizers_own_mask_token_is_used_as_it_is(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("bart")
    model = tiny_model("bart", len(tokenizer))
    table = model.get_input_embeddings().weight.detach().clone()
    policy = Policy(model, tokenizer)
    assert policy.tokens.mask_id == 4
    assert torch.equal(policy.model.get_input_embeddings().weight, table)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("kind", MAIN)
@torch.no_grad()
def test_a_saved_policy_loads_without_this_library(tiny_policy, tmp_path, kind, mask):
    policy = tiny_policy(kind, mask=mask)
    policy.model.get_input_embeddings().weight[policy.tokens.mask_id] += 0.5  # as after training
    policy.save(tmp_path)
    auto = AutoModelForSeq2SeqLM if policy.is_encoder_decoder else AutoModelForCausalLM
    model, tokenizer = auto.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.mask_token_id == policy.tokens.mask_id
    assert tokenizer(TEXT + " <mask> !")["input_ids"] == policy.tokens.tokenizer(TEXT + " <mask> !")["input_ids"]
    assert policy.tokens.mask_id in tokenizer(TEXT + " <mask> !")["input_ids"]
    source, ids = torch.tensor([8, policy.tokens.mask_id, 10]), torch.tensor([20, policy.tokens.mask_id, 22, 2])
    assert torch.equal(bare_logits(model, source, ids), bare_logits(policy.model, source, ids))
    tied = [
        m.get_input_embeddings().weight.data_ptr() == m.get_output_embeddings().weight.data_ptr()
        for m in (policy.model, model)
    ]
    assert tied[0] == tied[1] == (kind not in ("t5", "llama"))


@pytest.mark.parametrize("kind", ["bart", "llama"])
@torch.no_grad()
def test_a_saved_policy_loads_as_a_policy_and_its_mask_token_stays(tiny_policy, tiny_batch, tmp_path, kind):
    policy = tiny_policy(kind, mask=False)
    policy.model.get_input_embeddings().weight[policy.tokens.mask_id] += 0.5
    policy.save(tmp_path)
    again = Policy.load(str(tmp_path)).eval()
    assert again.tokens.mask_id == policy.tokens.mask_id
    batch = tiny_batch(policy)
    rows = three_rows(policy, batch)
    for new, old in zip(again.predict(batch.source, rows), policy.predict(batch.source, rows), strict=True):
        assert torch.equal(new, old)


def test_a_name_that_cannot_be_loaded_is_told(tmp_path):
    with pytest.raises(UserError, match=r"cannot load the model '.*nothing'"):
        Policy.load(str(tmp_path / "nothing"))


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_decoded_text_never_shows_the_mask_token_and_the_log_does(tiny_policy, kind, mask):
    policy = tiny_policy(kind, mask=mask)
    meet, zorvia = policy.tokens.tokenizer.convert_tokens_to_ids(["meet", "zorvia"])
    ids = [0, meet, policy.tokens.mask_id, zorvia, policy.tokens.mask_id, 2, 1]
    assert policy.tokens.decode([ids, [policy.tokens.mask_id], []]) == ["meet zorvia", "", ""]
    assert "<mask>" in policy.tokens.show(ids)


# ---- text to tokens ----


@pytest.mark.parametrize("kind", ["bart", "t5", "llama", "gpt2"])
def test_a_target_ends_with_eos_and_can_be_read_back(tiny_policy, kind):
    policy = tiny_policy(kind)
    [encoded] = policy.tokens.encode_targets([f"  {TEXT}\n"], ["name : zorvia"], 40)
    assert encoded.ids[-1] == policy.tokens.eos_id
    assert encoded.ids.count(policy.tokens.eos_id) == 1
    assert policy.tokens.decode([encoded.ids]) == [TEXT]
    assert not encoded.truncated
    assert encoded.words == ([-1] if kind == "bart" else []) + list(range(7)) + [-1]


@pytest.mark.parametrize("kind", ["bart", "t5", "llama", "gpt2"])
def test_a_target_that_is_cut_says_so_and_still_ends_with_eos(tiny_policy, kind):
    policy = tiny_policy(kind)
    cut, whole = policy.tokens.encode_targets([TEXT, "discover"], ["", ""], 5)
    assert (cut.truncated, whole.truncated) == (True, False)
    assert len(cut.ids) == 5
    assert cut.ids[-1] == policy.tokens.eos_id
    assert TEXT.startswith(policy.tokens.decode([cut.ids])[0])
    assert len(policy.tokens.decode([cut.ids])[0].split()) == (3 if kind == "bart" else 4)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_target_of_just_the_longest_length_is_not_cut(tiny_policy, kind):
    policy = tiny_policy(kind)
    [free] = policy.tokens.encode_targets([TEXT], [""], 40)
    [tight] = policy.tokens.encode_targets([TEXT], [""], len(free.ids))
    assert tight == free


def test_a_target_ends_with_eos_also_where_the_tokenizer_adds_none(tiny_model, tiny_tokenizer):
    """Otherwise an encoder-decoder model would never learn to stop."""
    tokenizer = tiny_tokenizer("bart", template="<s> $A")
    policy = Policy(tiny_model("bart", len(tokenizer)), tokenizer)
    for encoded in policy.tokens.encode_targets([TEXT, "discover"], ["", ""], 5):
        assert encoded.ids[-1] == tokenizer.eos_token_id
        assert encoded.words[-1] == -1
        assert len(encoded.ids) <= 5


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_a_prompt_is_cut_on_the_side_that_is_asked_and_says_so(tiny_policy, kind):
    policy = tiny_policy(kind)
    specials = {"bart": 2, "t5": 1, "llama": 1}[kind]
    left, short = policy.tokens.encode_sources([TEXT, "oslo"], 3 + specials, "left")
    [right] = policy.tokens.encode_sources([TEXT], 3 + specials, "right")
    assert policy.tokens.decode([left.ids, right.ids]) == ["lamps from oslo", "discover zorvia the"]
    assert (left.truncated, right.truncated, short.truncated) == (True, True, False)
    assert len(left.ids) == len(right.ids) == 3 + specials


def test_cutting_leaves_no_trace_in_the_tokenizer(tiny_policy):
    policy = tiny_policy("bart")
    side = policy.tokens.tokenizer.truncation_side
    policy.tokens.encode_sources([TEXT], 4, "left" if side == "right" else "right")
    assert policy.tokens.tokenizer.truncation_side == side
    assert len(policy.tokens.tokenizer(TEXT)["input_ids"]) == 9
    assert not policy.tokens.encode_sources([TEXT], 40)[0].truncated


def test_a_decoder_only_target_follows_its_prompt_after_one_space(tiny_policy):
    """Prompt and completion, tokenised apart, are the tokens of the text that a reader sees."""
    policy = tiny_policy("gpt2")
    joined, encode = [], policy.tokens._encode
    policy.tokens._encode = lambda texts, *args, **kwargs: (
        joined.extend(texts) or encode(texts, *args, **kwargs)
    )  # the text that reaches the tokenizer
    policy.tokens.encode_targets(["meet zorvia"] * 3, ["name :", "name :\n", ""], 40)
    assert joined == [" meet zorvia", "meet zorvia", "meet zorvia"]


def test_a_tokenizer_without_eos_is_refused(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("llama")
    model = tiny_model("llama", len(tokenizer))
    tokenizer.eos_token = None
    with pytest.raises(UserError, match=r"no EOS token.*set tokenizer.eos_token"):
        Policy(model, tokenizer)


# ---- generation ----

PROMPTS = ["name : zorvia | category : lamps | price : $49", "city : oslo", "name : lumora | city : paris"]


@pytest.mark.parametrize("kind", ["bart", "t5", "llama", "gpt2", "qwen2", "opt"])
def test_greedy_decoding_of_a_batch_is_that_of_its_members(tiny_policy, kind):
    policy = tiny_policy(kind)
    decoding = Decoding(max_new_tokens=12)
    together = policy.generate(source_of(policy, PROMPTS), decoding)
    alone = [policy.generate(source_of(policy, [prompt]), decoding)[0] for prompt in PROMPTS]
    assert together == alone
    assert len({tuple(ids) for ids in together}) == 3


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_greedy_decoding_is_the_argmax_of_the_bare_model(tiny_policy, kind):
    policy = tiny_policy(kind)
    [found] = policy.generate(source_of(policy, PROMPTS[:1]), Decoding(max_new_tokens=8))
    ids = policy.tokens.encode_sources(PROMPTS[:1], 40)[0].ids
    for token in found:
        with torch.no_grad():
            logits = policy.model(torch.tensor([ids])).logits[0, -1]
        logits[policy.tokens.mask_id] = -torch.inf
        assert token == logits.argmax()
        ids = [*ids, token]


def test_a_tokenizer_without_padding_can_still_decode_a_batch(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("llama")
    model = tiny_model("llama", len(tokenizer), pad_token_id=None)
    tokenizer.pad_token = None
    policy = Policy(model, tokenizer).eval()
    decoding = Decoding(max_new_tokens=8)
    together = policy.generate(source_of(policy, PROMPTS), decoding)
    assert together == [policy.generate(source_of(policy, [prompt]), decoding)[0] for prompt in PROMPTS]


def push_up(policy, token, by=1000.0):
    """Make one token the likeliest everywhere, through a bias of the output layer."""
    model = policy.model
    with torch.no_grad():
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, token] += by
        else:
            head = model.get_output_embeddings()
            biased = nn.Linear(head.in_features, head.out_features)
            biased.weight, biased.bias.data = head.weight, torch.zeros(head.out_features)
            biased.bias[token] = by
            model.set_output_embeddings(biased)


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(max_new_tokens=6),
        Decoding(max_new_tokens=6, num_beams=3, num_return_sequences=3),
        Decoding(max_new_tokens=6, do_sample=True, num_return_sequences=3),
        Decoding(max_new_tokens=6, num_beams=4, num_beam_groups=4, diversity_penalty=1.0, num_return_sequences=4),
    ],
    ids=lambda d: d.strategy,
)
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_the_mask_token_is_never_generated_however_likely(tiny_policy, kind, decoding):
    policy = tiny_policy(kind)
    source = source_of(policy, PROMPTS)
    push_up(policy, policy.tokens.mask_id)
    free = policy.model.generate(source.ids[:1], attention_mask=source.keep_mask[:1].long(), max_new_tokens=3)
    assert policy.tokens.mask_id in free[0, -3:]  # the rig works: the bare model does generate it
    outputs = policy.generate(source, decoding)
    assert len(outputs) == 3 * decoding.num_return_sequences
    assert any(outputs)
    assert not any(policy.tokens.mask_id in ids for ids in outputs)


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_outputs_hold_new_tokens_only_and_are_cut_before_eos(tiny_policy, kind):
    policy = tiny_policy(kind)
    source = source_of(policy, PROMPTS)
    for ids in policy.generate(source, Decoding(max_new_tokens=5, min_new_tokens=5)):
        assert len(ids) == 5
    push_up(policy, policy.tokens.eos_id)
    assert policy.generate(source, Decoding(max_new_tokens=5)) == [[], [], []]


def test_what_the_models_own_settings_suppress_stays_suppressed(tiny_policy):
    policy = tiny_policy("llama")
    source = source_of(policy, PROMPTS)
    [first, *_] = policy.generate(source, Decoding(max_new_tokens=1))
    policy.model.generation_config.suppress_tokens = [first[0]]
    [now, *_] = policy.generate(source, Decoding(max_new_tokens=1))
    assert now != first
    assert policy.model.generation_config.suppress_tokens == [first[0]]


@pytest.mark.parametrize("training", [True, False])
def test_generating_leaves_the_mode_of_the_model_as_it_was(tiny_policy, training):
    policy = tiny_policy("bart").train(training)
    policy.generate(source_of(policy, PROMPTS), Decoding(max_new_tokens=2))
    assert policy.model.training == training


# ---- LoRA ----


def embedded(policy):
    """(V, d) what the decoder's embedding layer gives for every token."""
    with torch.no_grad():
        return policy.base.get_decoder().get_input_embeddings()(torch.arange(len(policy.allowed)))


def lora_policy(tiny_model, tiny_tokenizer, folder, kind, mask, words=()):
    """A base model in a folder, as from the hub, and a policy with an adapter on it. words: more of them."""
    tokenizer = tiny_tokenizer(kind, mask=mask, extra=words)
    tiny_model(kind, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Policy.load(str(folder), peft_config=LoraConfig(target_modules="all-linear", r=4))


def train_a_step(policy, batch):
    """One step on a ground truth with mask tokens in it; plain gradient descent, so only a gradient moves a row."""
    row = three_rows(policy, batch)[1]
    row = replace(row, wanted=row.keep_mask)
    optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.5)
    [logits] = policy.predict(batch.source, [row])
    mle(logits, batch.target.ids[batch.target.keep_mask]).backward()
    optimizer.step()


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("kind", ["bart", "t5", "t5_tied", "llama", "llama_tied"])
def test_an_adapter_trains_and_saves_the_mask_tokens_embedding(
    tiny_model, tiny_tokenizer, tiny_batch, tmp_path, kind, mask
):
    policy = lora_policy(tiny_model, tiny_tokenizer, tmp_path / "base", kind, mask)
    batch = tiny_batch(policy)
    rows = three_rows(policy, batch)
    before, frozen = embedded(policy), policy.predict(batch.source, rows)[1].detach()
    train_a_step(policy, batch)
    after = embedded(policy)
    others = torch.arange(len(after)) != policy.tokens.mask_id
    assert (after - before)[policy.tokens.mask_id].abs().max() > 1e-4
    assert torch.equal(after[others], before[others])
    trained = policy.eval().predict(batch.source, rows)
    assert not torch.allclose(trained[1], frozen, atol=1e-3)

    policy.save(tmp_path / "adapter")
    again = Policy.load(str(tmp_path / "adapter")).eval()
    assert again.tokens.mask_id == policy.tokens.mask_id
    torch.testing.assert_close(embedded(again)[policy.tokens.mask_id], after[policy.tokens.mask_id])
    assert torch.equal(embedded(again)[others], before[others])
    for new, old in zip(again.predict(batch.source, rows), trained, strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_only_the_adapter_and_the_mask_row_are_trained(tiny_model, tiny_tokenizer, tmp_path, kind):
    policy = lora_policy(tiny_model, tiny_tokenizer, tmp_path, kind, mask=True)
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "token" in name for name in trained)
    assert any("lora_" in name for name in trained)
    [delta] = {p for name, p in trained.items() if "lora_" not in name}
    assert delta.shape == (1, 16)


def test_a_loaded_adapter_goes_on_training(tiny_model, tiny_tokenizer, tiny_batch, tmp_path):
    policy = lora_policy(tiny_model, tiny_tokenizer, tmp_path / "base", "llama", mask=False)
    batch = tiny_batch(policy)
    policy.save(tmp_path / "adapter")
    again = Policy.load(str(tmp_path / "adapter"))
    before = embedded(again)
    train_a_step(again, batch)
    assert (embedded(again) - before)[again.tokens.mask_id].abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_saved_adapter_loads_without_this_library(tiny_model, tiny_tokenizer, tiny_batch, tmp_path, kind):
    """With the tokenizer's own mask token the base model has its rows, and plain PEFT suffices."""
    policy = lora_policy(tiny_model, tiny_tokenizer, tmp_path / "base", kind, mask=True)
    batch = tiny_batch(policy)
    train_a_step(policy, batch)
    policy.save(tmp_path / "adapter")
    auto = AutoModelForSeq2SeqLM if policy.is_encoder_decoder else AutoModelForCausalLM
    plain = PeftModel.from_pretrained(auto.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    predicts_alike(plain, policy)


def predicts_alike(plain, policy):
    """An adapter that was loaded without this library, against the policy that saved it."""
    source, ids = torch.tensor([8, 9, 10]), torch.tensor([20, policy.tokens.mask_id, 22, 2])
    with torch.no_grad():
        found, own = (bare_logits(m.get_base_model(), source, ids) for m in (plain.eval(), policy.eval().model))
    torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bart", "t5_tied", "llama", "llama_tied", "gpt2"])
def test_an_adapter_with_a_new_mask_token_loads_without_this_library(
    tiny_model, tiny_tokenizer, tiny_batch, tmp_path, kind
):
    """The base's table lacks the row of a mask token that was added: AutoPeftModelFor... makes it as large as the
    tokenizer that lies beside the adapter, and the adapter brings its rows."""
    policy = lora_policy(tiny_model, tiny_tokenizer, tmp_path / "base", kind, mask=False)
    assert policy.tokens.mask_id == len(AutoTokenizer.from_pretrained(tmp_path / "base"))
    train_a_step(policy, tiny_batch(policy))
    policy.save(tmp_path / "adapter")
    auto = AutoPeftModelForSeq2SeqLM if policy.is_encoder_decoder else AutoPeftModelForCausalLM
    predicts_alike(auto.from_pretrained(tmp_path / "adapter"), policy)


@pytest.mark.parametrize("kind", ["bart", "llama", "llama_tied"])
def test_an_adapter_on_a_full_table_of_round_size_loads_without_this_library(
    tiny_model, tiny_tokenizer, tiny_batch, tmp_path, kind
):
    """192 = 3 * 64 tokens and no row to spare, as in SmolLM2 and Llama 3: the table gets one row, not
    64 as without an adapter, because AutoPeftModelFor... makes it as large as the tokenizer."""
    policy = lora_policy(tiny_model, tiny_tokenizer, tmp_path / "base", kind, mask=False, words=("more",))
    assert (policy.tokens.mask_id, len(policy.allowed)) == (192, 193)
    train_a_step(policy, tiny_batch(policy))
    policy.save(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all("lora_" in name or "trainable_tokens" in name for name in saved)  # not the table
    auto = AutoPeftModelForSeq2SeqLM if policy.is_encoder_decoder else AutoPeftModelForCausalLM
    predicts_alike(auto.from_pretrained(tmp_path / "adapter"), policy)
    predicts_alike(Policy.load(str(tmp_path / "adapter")).model, policy)


def test_an_adapter_whose_mask_row_is_frozen_is_warned_of(tiny_model, tiny_tokenizer, caplog):
    from peft import get_peft_model

    tokenizer = tiny_tokenizer("llama")
    model = get_peft_model(tiny_model("llama", len(tokenizer)), LoraConfig(target_modules="all-linear", r=4))
    with caplog.at_level(logging.WARNING):
        Policy(model, tokenizer)
    assert "the mask token's embedding is frozen" in caplog.text


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_what_each_loss_sends_back_is_watched(tiny_policy, tiny_batch, settings, kind):
    """The norm of the gradient at the output map's input, rows of the MLE term and of the RL term apart; nothing of it
    where nobody asked."""
    policy = tiny_policy(kind).train()
    batch, seen = tiny_batch(policy), []
    head = policy.base.get_output_embeddings()
    head.register_forward_pre_hook(lambda module, args: (args[0].retain_grad(), seen.append(args[0]))[1])
    method, scorer = Method(settings(num_samples=4)), Scorer(policy, RewardSet("click_rate"))
    watched: dict = {}
    for squares in (watched, None):
        with policy.watch(squares):
            output = method.step(policy, batch, scorer, Randomness(0, 0))
        sum(term.weight * term.total for term in output.terms).backward()
    gradient, first = seen[0].grad[0], int(batch.target.keep_mask.sum())
    assert watched.keys() == {"mle", "rl"}
    assert watched["mle"].item() == pytest.approx(gradient[:first].square().sum().item())
    assert watched["rl"].item() == pytest.approx(gradient[first:].square().sum().item())
