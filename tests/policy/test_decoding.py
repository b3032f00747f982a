"""Decoding settings; diverse beam search against transformers' beam search and a naive reference without a cache."""

import copy
import functools
import inspect
import logging
import warnings
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.integrations import sdpa_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from semioffline.errors import UserError
from semioffline.policy.attention import shared_keys
from semioffline.policy.decoding import Decoding
from semioffline.policy.diverse_beam import diverse_beam_search

V, PAD, BOS = 32, 1, 2
EOS = [3, 4, 5, 6]  # several, so that random models end some texts early
SPECIAL: dict[str, Any] = {"vocab_size": V, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS[0]}
NAMES = ("bart", "t5", "llama", "gpt2")
ENCODER_DECODER = ("bart", "t5")


def build(name: str, **changes: Any) -> Any:
    special = SPECIAL | changes
    start = special["pad_token_id"] if name == "t5" else BOS
    if name == "bart":
        sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2}
        sizes |= {
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 64,
        }
        config: Any = BartConfig(d_model=16, decoder_start_token_id=start, forced_eos_token_id=None, **sizes, **special)
        return BartForConditionalGeneration(config)
    if name == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": start}
        return T5ForConditionalGeneration(T5Config(**sizes, **special))
    if name == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, max_position_embeddings=64, **sizes, **special))
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **special))


@torch.no_grad()
def spread(model: Any) -> Any:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.4)
    return model.eval()


@functools.cache
def tiny(name: str, seed: int = 0, pad: int = PAD) -> Any:
    """A random model with weights large enough that its distributions are neither flat nor constant."""
    torch.manual_seed(seed)
    model = spread(build(name, pad_token_id=pad))
    model.generation_config.eos_token_id = EOS
    return model


def inputs(name: str, seed: int = 0, pad: int = PAD) -> dict[str, Tensor]:
    """Three inputs of lengths 7, 4 and 5: padded on the right for encoders, on the left for decoders."""
    generator = torch.Generator().manual_seed(100 + seed)
    ids = torch.randint(7, V, (3, 7), generator=generator)
    mask = torch.ones_like(ids)
    for row, missing in enumerate((0, 3, 2)):
        hidden = slice(7 - missing, 7) if name in ENCODER_DECODER else slice(0, missing)
        ids[row, hidden], mask[row, hidden] = pad, 0
    return {"input_ids": ids, "attention_mask": mask}


def diverse(name: str, seed: int = 0, **kwargs: Any) -> Any:
    settings = {"max_new_tokens": 10, "do_sample": False} | kwargs
    return tiny(name, seed).generate(**inputs(name, seed), custom_generate=diverse_beam_search, **settings)


# (a) one group is transformers' beam search


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4, "num_return_sequences": 4},
        {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": 3, "length_penalty": 0.0},
        {"num_beams": 3, "min_new_tokens": 4, "no_repeat_ngram_size": 2, "length_penalty": 2.0},
        {"num_beams": 4, "num_return_sequences": 2, "early_stopping": True, "length_penalty": 0.6},
        {
            "num_beams": 2,
            "num_return_sequences": 2,
            "early_stopping": "never",
            "suppress_tokens": [3, 8],
            "length_penalty": -0.5,
        },
        {
            "num_beams": 3,
            "num_return_sequences": 3,
            "forced_bos_token_id": 9,
            "forced_eos_token_id": 3,
            "use_cache": False,
        },
    ],
    ids=["plain", "one_eos", "constrained", "early", "never", "forced"],
)
def test_one_group_is_beam_search(name: str, seed: int, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 10, "do_sample": False} | settings
    model, batch = tiny(name, seed), inputs(name, seed)
    expected = model.generate(**batch, **settings)
    ours = model.generate(**batch, custom_generate=diverse_beam_search, **settings)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_beam_search(name: str) -> None:
    settings: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8, "length_penalty": 1.5}
    settings |= {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    expected = tiny(name).generate(**inputs(name), **settings)
    ours = diverse(name, **settings)
    assert type(ours) is type(expected)
    assert torch.equal(ours.sequences, expected.sequences)
    assert torch.equal(ours.sequences_scores, expected.sequences_scores)


def test_equality_tests_cover_early_and_late_ends() -> None:
    """The random models must end some hypotheses by EOS and others by length, or the tests above say little."""
    for name in NAMES:
        texts = [diverse(name, seed, num_beams=4, num_return_sequences=4) for seed in range(4)]
        ended = [torch.isin(ids, torch.tensor(EOS)).any(1) for ids in texts]
        assert 0.1 < torch.cat(ended).float().mean() < 0.9, name


def test_padding_is_the_pad_id_even_if_zero() -> None:
    """Transformers' beam search pads with EOS when the pad id is 0, as in T5; ours pads with the pad id."""
    model, batch = tiny("t5", pad=0), inputs("t5", pad=0)
    settings: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 10, "length_penalty": 0.0}
    expected = model.generate(**batch, **settings)
    ours = model.generate(**batch, custom_generate=diverse_beam_search, **settings)
    eos = torch.isin(ours, torch.tensor(EOS)).long()
    after_eos = eos.cumsum(1) - eos > 0
    assert after_eos.any()
    assert (ours[after_eos] == 0).all()
    assert torch.equal(ours[~after_eos], expected[~after_eos])


# (b) the penalty


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_one_beam_without_penalty_are_greedy(name: str) -> None:
    """Early stopping, because a beam that may go on after its first EOS can end better than greedy does."""
    greedy = tiny(name).generate(**inputs(name), max_new_tokens=10, do_sample=False)
    ours = diverse(name, num_beams=3, num_beam_groups=3, num_return_sequences=3, early_stopping=True)
    assert torch.equal(ours, greedy.repeat_interleave(3, 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("beams", "groups"), [(5, 5), (8, 4)])
def test_huge_penalty_gives_every_group_its_own_tokens(name: str, beams: int, groups: int) -> None:
    """With penalty 1000, no token is chosen by two groups at the same step while both go on."""
    ours = diverse(name, num_beams=beams, num_beam_groups=groups, num_return_sequences=groups, diversity_penalty=1000.0,
                   min_new_tokens=6, max_new_tokens=6, length_penalty=0.0)  # fmt: skip
    new = ours[:, -6:].view(3, groups, 6)
    for row in new:
        for step in range(5):
            assert len(set(row[:, step].tolist())) == groups


def test_penalty_trades_likelihood_for_diversity() -> None:
    distinct = []
    for penalty in (0.0, 0.5, 5.0):
        ours = diverse("llama", num_beams=6, num_beam_groups=3, num_return_sequences=6, diversity_penalty=penalty)
        distinct.append(len({tuple(row) for row in ours.tolist()}))
    assert distinct[0] == 6
    assert distinct[0] < distinct[1] <= distinct[2]


# (c) a naive reference: lists, no cache, one input at a time


def next_log_probs(model: Any, source: Tensor, generated: list[int]) -> Tensor:
    """log p(. | source, generated), by running the model over the whole prefix, unpadded."""
    if model.config.is_encoder_decoder:
        prefix = torch.tensor([generated])
        logits = model(input_ids=source[None], decoder_input_ids=prefix, use_cache=False).logits
    else:
        logits = model(input_ids=torch.cat([source, torch.tensor(generated, dtype=torch.long)])[None]).logits
    return logits[0, -1].float().log_softmax(-1)


@torch.no_grad()
def naive(model: Any, source: Tensor, groups: int, beams: int, penalty: float, power: float, steps: int) -> list[Any]:
    """Diverse beam search as the paper's Algorithm 1 reads: for every group [(score, new tokens)], best first."""
    start = [model.generation_config.decoder_start_token_id] if model.config.is_encoder_decoder else []
    running: list[Any] = [[(0.0, [])] for _ in range(groups)]
    ended: list[Any] = [[] for _ in range(groups)]
    closed = [False] * groups
    for step in range(1, steps + 1):
        counts = [0] * V
        for g in range(groups):
            if closed[g]:
                continue
            candidates = []
            for score, tokens in running[g]:
                log_probs = next_log_probs(model, source, start + tokens).tolist()
                candidates += [(score + log_probs[v] - penalty * counts[v], [*tokens, v]) for v in range(V)]
            candidates.sort(key=lambda c: -c[0])
            for score, tokens in candidates[:beams]:
                if tokens[-1] in EOS or step == steps:
                    ended[g].append((score / step**power, tokens))
            ended[g] = sorted(ended[g], key=lambda c: -c[0])[:beams]
            running[g] = [c for c in candidates if c[1][-1] not in EOS][:beams]
            for _, tokens in running[g]:
                counts[tokens[-1]] += 1
            closed[g] = len(ended[g]) == beams and running[g][0][0] / step**power <= ended[g][-1][0]
    return ended


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("groups", "beams", "penalty", "power", "steps"),
    [(2, 2, 0.7, 1.0, 7), (3, 2, 1.5, 0.5, 7), (4, 1, 0.7, 2.0, 7), (3, 2, 1.5, 1.0, 1)],
)
def test_same_as_naive_reference(
    name: str, seed: int, groups: int, beams: int, penalty: float, power: float, steps: int
) -> None:
    total = groups * beams
    out = diverse(name, seed, num_beams=total, num_beam_groups=groups, num_return_sequences=total, length_penalty=power,
                  diversity_penalty=penalty, max_new_tokens=steps, return_dict_in_generate=True)  # fmt: skip
    model, batch = tiny(name, seed), inputs(name, seed)
    prompt = 1 if name in ENCODER_DECODER else batch["input_ids"].shape[1]
    for row in range(3):
        source = batch["input_ids"][row][batch["attention_mask"][row].bool()]
        ended = naive(model, source, groups, beams, penalty, power, steps)
        expected = sorted((hypothesis for group in ended for hypothesis in group), key=lambda c: -c[0])
        ours = out.sequences[row * total : (row + 1) * total, prompt:].tolist()
        scores = out.sequences_scores[row * total : (row + 1) * total]
        assert torch.allclose(scores, torch.tensor([score for score, _ in expected]), atol=1e-4)
        padded = [tokens + [PAD] * (len(ours[0]) - len(tokens)) for _, tokens in expected]
        assert sorted(ours) == sorted(padded)


# what is returned


def test_fewer_sequences_are_spread_over_the_groups() -> None:
    """Best of every group first: 3 of 3 groups, then 4 = 3 + the best second; sorted by score."""
    settings: dict[str, Any] = {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.7, "max_new_tokens": 6}
    settings |= {"return_dict_in_generate": True, "length_penalty": 1.0}
    model, batch = tiny("llama"), inputs("llama")
    for count in (1, 2, 3, 4, 6):
        out = diverse("llama", num_return_sequences=count, **settings)
        assert out.sequences.shape[0] == out.sequences_scores.shape[0] == 3 * count
        for row in range(3):
            source = batch["input_ids"][row][batch["attention_mask"][row].bool()]
            groups = naive(model, source, 3, 2, 0.7, 1.0, 6)
            ranked = [sorted((group[rank][0] for group in groups), reverse=True) for rank in (0, 1)]
            expected = sorted((ranked[0] + ranked[1])[:count], reverse=True)
            assert torch.allclose(out.sequences_scores[row * count :][:count], torch.tensor(expected), atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_and_independent_of_cache_and_batch(name: str) -> None:
    settings: dict[str, Any] = {
        "num_beams": 4,
        "num_beam_groups": 2,
        "num_return_sequences": 4,
        "diversity_penalty": 0.7,
    }
    first, again = diverse(name, **settings), diverse(name, **settings)
    assert torch.equal(first, again)
    assert torch.equal(first, diverse(name, use_cache=False, **settings))
    for row in range(3):
        alone = {key: value[row : row + 1] for key, value in inputs(name).items()}
        out = tiny(name).generate(
            **alone, custom_generate=diverse_beam_search, max_new_tokens=10, do_sample=False, **settings
        )
        width = out.shape[1]
        assert torch.equal(out, first[4 * row : 4 * row + 4, :width])
        assert (first[4 * row : 4 * row + 4, width:] == PAD).all()


def test_inputs_embeds_and_custom_processors() -> None:
    """A decoder-only prompt may come as embeddings; a processor sees one row per beam, input by input."""
    model, batch = tiny("llama"), inputs("llama")
    settings: dict[str, Any] = {
        "num_beams": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 0.7,
        "num_return_sequences": 4,
    }
    seen: list[tuple[int, ...]] = []

    def watch(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(tuple(ids.shape))
        scores[:, 11] = -torch.inf
        return scores

    out = diverse("llama", logits_processor=LogitsProcessorList([watch]), **settings)
    assert seen[:2] == [(12, 7), (12, 8)]
    assert not (out[:, 7:] == 11).any()
    embedded = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]), **batch}
    del embedded["input_ids"]
    settings |= {"custom_generate": diverse_beam_search, "max_new_tokens": 10, "do_sample": False}
    assert torch.equal(model.generate(**embedded, **settings), model.generate(**batch, **settings)[:, 7:])


def test_model_without_eos() -> None:
    """Nothing ends before the length limit; one group is still beam search."""
    model = copy.deepcopy(tiny("gpt2"))
    model.generation_config.eos_token_id = None
    settings: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(**inputs("gpt2"), **settings)
    settings |= {"custom_generate": diverse_beam_search}
    assert torch.equal(model.generate(**inputs("gpt2"), **settings), expected)
    out = model.generate(**inputs("gpt2"), num_beam_groups=2, diversity_penalty=1.0, **settings)
    assert out.shape == (12, 13)


def test_generate_hands_our_parameters_over() -> None:
    """Transformers must look up group parameters in our signature, or they end in GenerationConfig and are refused."""
    assert {"num_beam_groups", "diversity_penalty"} <= set(inspect.signature(diverse_beam_search).parameters)
    with pytest.raises(ValueError, match="trust_remote_code"):
        tiny("llama").generate(**inputs("llama"), num_beams=4, num_beam_groups=2, diversity_penalty=0.7)


# (e) errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "must divide num_beams=4"),
        ({"num_beams": 4, "num_beam_groups": 0}, "num_beam_groups=0"),
        ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty must be from 0"),
        ({"num_beams": 4, "num_beam_groups": 2, "do_sample": True}, "do_sample"),
        ({"num_beams": 2, "return_dict_in_generate": True, "output_logits": True}, "output_logits"),
    ],
)
def test_search_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        diverse("llama", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 0}, "num_beams=0 must be at least 1"),
        ({"num_beams": "4"}, "num_beams='4' must be a whole number"),
        ({"num_beams": True}, "num_beams=True must be a whole number"),
        ({"do_sample": 1}, "do_sample=1 must be True or False"),
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beam_groups=3 must divide num_beams=4"),
        ({"num_beams": 4, "num_beam_groups": 2}, "needs a diversity_penalty"),
        ({"num_beams": 4, "diversity_penalty": 1.0}, "needs num_beam_groups above 1"),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True},
            "num_beams and num_beam_groups",
        ),
        ({"num_beams": 4, "do_sample": True}, "do_sample=True cannot be combined with num_beams above 1"),
        ({"temperature": 0.7}, "need do_sample=True"),
        ({"do_sample": True, "temperature": 0.0}, "temperature=0.0 must be at least 0.0001"),
        ({"do_sample": True, "top_p": 1.5}, "top_p=1.5 must be above 0 and at most 1"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3 is above num_beams=2"),
        ({"num_return_sequences": 2}, "num_return_sequences=2 is above num_beams=1"),
        ({"min_new_tokens": 65}, "min_new_tokens=65 is above max_new_tokens=64"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty=nan must be a finite number"),
        ({"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": float("nan")}, "diversity_penalty=nan must be"),
    ],
)
def test_settings_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Decoding(**settings)
    assert "\n" not in str(error.value)


def test_all_problems_in_one_line() -> None:
    with pytest.raises(UserError) as error:
        Decoding(num_beams=4, num_beam_groups=3, max_new_tokens=0, top_p=0.0, num_return_sequences=9, length_penalty=1)
    message = str(error.value)
    for name in ("num_beam_groups=3", "max_new_tokens", "top_p=0.0 must", "do_sample=True", "num_return_sequences=9"):
        assert name in message
    assert message.count(";") >= 4
    assert "\n" not in message


# settings

GREEDY = Decoding(max_new_tokens=9)
BEAM = Decoding(num_beams=4, length_penalty=2.0, min_new_tokens=2, max_new_tokens=9, no_repeat_ngram_size=3)
SAMPLING = Decoding(do_sample=True, top_p=0.95, max_new_tokens=9, num_return_sequences=4)
DIVERSE = Decoding(num_beams=4, num_beam_groups=4, diversity_penalty=1.0, max_new_tokens=9, num_return_sequences=4)


def test_strategies_and_signatures() -> None:
    settings = (GREEDY, BEAM, SAMPLING, DIVERSE)
    assert [s.strategy for s in settings] == ["greedy", "beam", "sampling", "diverse_beam"]
    assert [s.signature() for s in settings] == [
        "greedy|len:0-9|ngram:0|n:1",
        "beam:4|lp:2|early:no|len:2-9|ngram:3|n:1",
        "sampling|t:1|p:0.95|k:0|len:0-9|ngram:0|n:4",
        "diverse_beam:4|groups:4|penalty:1|lp:1|early:no|len:0-9|ngram:0|n:4",
    ]


def test_signature_ignores_what_does_not_act() -> None:
    assert replace(GREEDY, length_penalty=2.0, early_stopping=True).signature() == GREEDY.signature()
    assert replace(BEAM, early_stopping=True).signature() != BEAM.signature()


def test_every_field_is_explained() -> None:
    for field in fields(Decoding):
        assert field.metadata["help"].endswith(".")


@pytest.mark.parametrize("name", ["bart", "llama"])
@pytest.mark.parametrize("decoding", [GREEDY, BEAM, SAMPLING, DIVERSE], ids=lambda d: d.strategy)
def test_generate_runs_without_warnings(name: str, decoding: Decoding, caplog: pytest.LogCaptureFixture) -> None:
    """Also when the model brings settings of its own, which must not leak into ours."""
    model = copy.deepcopy(tiny(name))
    model.generation_config.update(num_beams=3, early_stopping=True, length_penalty=2.0, temperature=0.6, top_k=5,
                                   top_p=0.9, do_sample=True, no_repeat_ngram_size=1)  # fmt: skip
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    caplog.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.manual_seed(0)
            out = model.generate(**inputs(name), **decoding.generate_kwargs())
            torch.manual_seed(0)
            plain = tiny(name).generate(**inputs(name), **decoding.generate_kwargs())
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records] == []
    assert out.shape[0] == 3 * decoding.num_return_sequences
    assert torch.equal(out, plain)


def test_diverse_settings_reach_the_search() -> None:
    """generate_kwargs() is the same call as by hand, and gives four different texts."""
    out = tiny("bart").generate(**inputs("bart"), **DIVERSE.generate_kwargs())
    by_hand = diverse("bart", num_beams=4, num_beam_groups=4, diversity_penalty=1.0, num_return_sequences=4,
                      max_new_tokens=9)  # fmt: skip
    assert torch.equal(out, by_hand)
    assert all(len({tuple(t) for t in row.tolist()}) > 1 for row in out.view(3, 4, -1))


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the keys and values that are copied for each head, as that happens."""
    found: list[int] = []
    copy_them = sdpa_attention.repeat_kv
    monkeypatch.setattr(sdpa_attention, "repeat_kv", lambda k, n: found.append(k.shape[2]) or copy_them(k, n))
    return found


@pytest.mark.parametrize(("heads", "keys"), [(6, 2), (6, 1), (4, 4)])
def test_heads_that_share_keys_read_them_where_they_are(heads, keys, lengths):
    """Head h reads the keys of number h // (heads / keys). The layers' outputs and the text are what they are with a
    copy for every head; copies are made for the prompt alone, once for keys and once for values in each layer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8 * heads, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": heads}
    model = spread(LlamaForCausalLM(LlamaConfig(num_key_value_heads=keys, **sizes, **SPECIAL)))
    settings = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

    def write() -> Any:
        lengths.clear()
        return model.generate(**inputs("llama"), **settings)

    expected = write()
    assert len(lengths) == (0 if keys == heads else 2 * 2 * 6)
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with shared_keys():
        found = write()
        assert lengths == ([] if keys == heads else [7] * 4)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-4)


def test_shared_keys_leave_nothing_behind_and_nobodys_function_alone():
    functions, usual = ALL_ATTENTION_FUNCTIONS, sdpa_attention.sdpa_attention_forward
    one, other = shared_keys(), shared_keys()
    one.__enter__()
    other.__enter__()  # in another thread
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert functions["sdpa"] is usual
    assert "sdpa" not in functions._local_mapping  # what is registered later counts

    def mine(*args: Any, **kwargs: Any) -> Any:
        return usual(*args, **kwargs)

    functions.register("sdpa", mine)
    try:
        with shared_keys():
            assert functions["sdpa"] is mine
    finally:
        functions.register("sdpa", usual)


def test_policies_generate_with_shared_keys(tiny_policy, tiny_batch, lengths):
    policy = tiny_policy("llama")
    lengths.clear()  # what the checks of a new policy ran
    policy.generate(tiny_batch(policy).source, Decoding(max_new_tokens=6, min_new_tokens=6))
    assert len(lengths) == 4  # two layers
