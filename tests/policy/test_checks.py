"""What a new policy checks of its model: packed rows, padding, later tokens; and what is refused."""

from typing import Any

import pytest
import torch
import transformers as hf

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row, Text
from semioffline.errors import UserError
from semioffline.methods.shared.on_policy import sample_texts, sampled_log_p, sampled_row
from semioffline.policy.checks import check_model
from semioffline.policy.decoding import Decoding
from semioffline.policy.loading import first_position
from semioffline.policy.policy import Policy

SPECIAL: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
BERT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT |= {"max_position_embeddings": 64, "is_decoder": True}
MOE: dict[str, Any] = {"d_model": 16, "num_experts": 4}
ROBERTAS: dict[str, tuple[Any, Any]] = {
    "roberta": (hf.RobertaForCausalLM, hf.RobertaConfig),
    "xlm-roberta": (hf.XLMRobertaForCausalLM, hf.XLMRobertaConfig),
    "camembert": (hf.CamembertForCausalLM, hf.CamembertConfig),
    "xlm-roberta-xl": (hf.XLMRobertaXLForCausalLM, hf.XLMRobertaXLConfig),
    "data2vec-text": (hf.Data2VecTextForCausalLM, hf.Data2VecTextConfig),
}
RWKV: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16, "context_length": 64}
MAMBA: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
GPT: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "afn": "gelu"}
XLM: dict[str, Any] = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 64}
LAYERS: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
LAYERS |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 2}
FSMT: dict[str, Any] = {"langs": ["en", "de"], "d_model": 16} | LAYERS
NLLB: dict[str, Any] = MOE | LAYERS | {"encoder_sparse_step": 2, "decoder_sparse_step": 2}
SWITCH: dict[str, Any] = MOE | {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
SWITCH |= {"decoder_start_token_id": 1}
PROPHET: dict[str, Any] = {"hidden_size": 16, "num_encoder_layers": 1, "num_decoder_layers": 2, "num_buckets": 8}
PROPHET |= {"num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "encoder_ffn_dim": 32}
PROPHET |= {"decoder_ffn_dim": 32, "decoder_start_token_id": 2, "ngram": 2}
XLNET: dict[str, Any] = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
REFORMER: dict[str, Any] = {"is_decoder": True, "axial_pos_embds": False, "hidden_size": 16, "attn_layers": ["local"]}
REFORMER |= {"num_attention_heads": 2, "attention_head_size": 8, "max_position_embeddings": 64}
REFUSED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "switch_transformers": (hf.SwitchTransformersForConditionalGeneration, hf.SwitchTransformersConfig, SWITCH),
    "nllb-moe": (hf.NllbMoeForConditionalGeneration, hf.NllbMoeConfig, NLLB),
    "prophetnet": (hf.ProphetNetForConditionalGeneration, hf.ProphetNetConfig, PROPHET),
    "fsmt": (hf.FSMTForConditionalGeneration, hf.FSMTConfig, FSMT),
    "xlm": (hf.XLMWithLMHeadModel, hf.XLMConfig, XLM),
    "xlnet": (hf.XLNetLMHeadModel, hf.XLNetConfig, XLNET),
    "reformer": (hf.ReformerModelWithLMHead, hf.ReformerConfig, REFORMER),
    "bert": (hf.BertLMHeadModel, hf.BertConfig, BERT | {"is_decoder": False}),
}


def build(tokenizer: Any, model_class: Any, config_class: Any, sizes: dict[str, Any]) -> Any:
    """Weights large enough that positions and masks show in the logits."""
    size = len(tokenizer)
    vocabulary = {"vocab_size": size}
    if config_class is hf.FSMTConfig:
        vocabulary = {"src_vocab_size": size, "tgt_vocab_size": size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config_class(**(SPECIAL | sizes | vocabulary))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1 and parameter.requires_grad:
                    parameter.normal_(0, 0.3)
    return model


@pytest.fixture
def causal(tiny_tokenizer: Any) -> Any:
    """causal(model class, config class, sizes, **options of Policy) -> a policy with a decoder-only tokenizer"""

    def make(model_class: Any, config_class: Any, sizes: dict[str, Any], **options: Any) -> Policy:
        tokenizer = tiny_tokenizer("llama")
        return Policy(build(tokenizer, model_class, config_class, sizes), tokenizer, **options).eval()

    return make


def single(text: Text, number: int) -> Text:
    """One text of several, without its padding."""
    length = text.lengths[number]
    return Text(*(t[number : number + 1, :length] for t in (text.ids, text.keep_mask, text.words)))


# ---- packed rows ----


@pytest.mark.parametrize("name", list(ROBERTAS))
@torch.no_grad()
def test_roberta_decoders_run_each_row_alone_and_say_so(causal, tiny_batch, caplog, name):
    """Their positions begin behind the padding id. Several rows have the logits of the bare model."""
    policy = causal(*ROBERTAS[name], BERT)
    assert not policy.share_prompt
    assert policy.generator.pads_left
    assert f"{name}: packing the rows of one input into one sequence changes its logits" in caplog.text
    batch = tiny_batch(policy)
    target = Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)
    for logits in policy.predict(batch.source, [target, target]):
        parts = logits.split(batch.target.lengths)
        for b, part in enumerate(parts):
            source, ids = single(batch.source, b).ids[0], single(batch.target, b).ids[0]
            expected = policy.base(input_ids=torch.cat([source, ids])[None]).logits[0, len(source) - 1 : -1]
            torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_roberta_decoders_generate_at_the_positions_of_their_forward_pass(causal, tiny_batch, settings):
    """Greedy tokens are the argmax of the forward pass; log-probabilities are those drawn with; no row of the table is
    used that a forward pass does not use."""
    policy = causal(*ROBERTAS["roberta"], BERT)
    assert first_position(policy.base) == 2
    assert policy.max_positions() == 62
    batch = tiny_batch(policy)
    source = single(batch.source, 1)
    [ids] = policy.generate(source, Decoding(max_new_tokens=5), keep_end=True)
    logits = policy.base(input_ids=torch.cat([source.ids[0], torch.tensor(ids)])[None]).logits[0, -len(ids) - 1 : -1]
    logits[:, policy.tokens.mask_id] = -torch.inf
    assert logits.argmax(1).tolist() == ids
    assert policy.generate(batch.source, Decoding(max_new_tokens=5), keep_end=True)[1] == ids


@pytest.mark.parametrize("kind", ["bart", "t5_tied", "llama", "gpt2", "opt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_take_packed_rows_go_on_taking_them_in_any_precision(tiny_policy, caplog, kind, dtype):
    assert tiny_policy(kind, dtype=dtype).share_prompt
    assert not caplog.text


def test_a_model_that_raises_with_packed_rows_runs_each_row_alone(causal, tiny_batch, caplog):
    """OpenAI-GPT takes no mask with four dimensions."""
    policy = causal(hf.OpenAIGPTLMHeadModel, hf.OpenAIGPTConfig, GPT)
    assert not policy.share_prompt
    assert "openai-gpt: packing the rows of one input into one sequence raises RuntimeError" in caplog.text
    batch = tiny_batch(policy)
    row = Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)
    assert len(policy.predict(batch.source, [row, row])) == 2


def test_the_checks_leave_no_trace(tiny_policy):
    """The random state, the meter, the mode of every module, and what the model computes stay as they were."""
    policy = tiny_policy("llama", config={"attention_dropout": 0.5})
    policy.train()
    policy.model.lm_head.eval()
    modes = [module.training for module in policy.modules()]
    state = torch.get_rng_state()
    assert check_model(policy) == (True, True)
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in policy.modules()] == modes
    assert not policy.meter.counts
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_weights_that_are_elsewhere_are_not_run(tiny_model, tiny_tokenizer, monkeypatch):
    """On the meta device, or sharded over processes."""
    monkeypatch.setattr(Policy, "forward", lambda *args: pytest.fail("the model was run"))
    tokenizer = tiny_tokenizer("llama")
    policy = Policy(tiny_model("llama", len(tokenizer)).to("meta"), tokenizer)
    assert policy.share_prompt


# ---- padding ----


@pytest.mark.parametrize(
    "parts",
    [(hf.RwkvForCausalLM, hf.RwkvConfig, RWKV), (hf.MambaForCausalLM, hf.MambaConfig, MAMBA)],
    ids=["rwkv", "mamba"],
)
def test_recurrent_models_generate_for_a_batch_what_they_generate_for_its_members(causal, tiny_batch, parts):
    """RWKV has no mask, so it reads padding as text: its prompts are grouped by length. Mamba's mask works."""
    policy = causal(*parts)
    assert policy.generator.pads_left == (parts[1] is hf.MambaConfig)
    batch, decoding = tiny_batch(policy), Decoding(max_new_tokens=6)
    assert len(set(batch.source.lengths)) > 1
    expected = [policy.generate(single(batch.source, n), decoding)[0] for n in range(len(batch))]
    assert policy.generate(batch.source, decoding) == expected


def test_samples_of_a_model_that_takes_no_padding_keep_their_numbers(causal, tiny_batch, settings):
    """Samples of an input stay together, and are what they are when the input is alone; log p is that of the draw."""
    policy, args = causal(hf.RwkvForCausalLM, hf.RwkvConfig, RWKV), settings("avg", max_completion_length=6)
    texts = sample_texts(policy, tiny_batch(policy, 4), args, Randomness(0, 3), 3)
    assert sample_texts(policy, tiny_batch(policy, 1), args, Randomness(0, 3), 3) == texts[:3]
    batch = tiny_batch(policy, 4)
    row = sampled_row(policy, batch, texts[::3], 6)
    [logits] = policy.predict(batch.source, [row])
    assert torch.isfinite(sampled_log_p(policy, logits, row, args)).all()


def test_beams_that_a_model_does_not_take_are_refused_in_one_line(causal, tiny_batch):
    policy = causal(hf.RwkvForCausalLM, hf.RwkvConfig, RWKV)
    with pytest.raises(UserError, match="RwkvForCausalLM cannot use beam search"):
        policy.generate(tiny_batch(policy).source, Decoding(max_new_tokens=4, num_beams=2))


# ---- refused ----


@pytest.mark.parametrize("name", list(REFUSED))
def test_an_architecture_that_is_not_supported_is_named_in_one_line(tiny_tokenizer, name):
    model_class, config_class, sizes = REFUSED[name]
    tokenizer = tiny_tokenizer("bart" if config_class().is_encoder_decoder else "llama")
    message = rf"^the architecture {name} is not supported: .+\. Supported: encoder.*Llama.*[a-z]\.$"
    with pytest.raises(UserError, match=message) as error:
        Policy(build(tokenizer, model_class, config_class, sizes), tokenizer)
    assert "\n" not in str(error.value)


def test_a_model_whose_forward_pass_fails_is_refused(tiny_model, tiny_tokenizer, monkeypatch):
    """Whatever it raises, except that memory runs out: a smaller model of the same kind would run."""
    tokenizer = tiny_tokenizer("llama")
    model, raised = tiny_model("llama", len(tokenizer)), KeyError("router")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise raised

    monkeypatch.setattr(model.model.layers[0], "forward", fail)
    with pytest.raises(UserError, match="running it ends in KeyError: 'router'"):
        Policy(model, tokenizer)
    raised = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError):
        Policy(model, tokenizer)
