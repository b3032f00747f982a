"""Samples are drawn from the distribution that their log-probabilities are taken from, whatever the model's own
`generation_config` says."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, WatermarkingConfig

from semioffline.algorithm import sampling
from semioffline.algorithm.randomness import Randomness
from semioffline.methods.shared.on_policy import rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.policy.decoding import Decoding
from semioffline.policy.neutral import NEUTRAL, STRATEGIES, neutral
from semioffline.policy.policy import Policy

EOS, PAD = 2, 1
WORDS = list(range(10, 60))
DISTRIBUTION: dict[str, Any] = {
    "bad_words_ids": [[7], [8, 9], [EOS]],
    "begin_suppress_tokens": WORDS,
    "sequence_bias": [[[5], 4.0], [[6, 7], -5.0]],
    "encoder_no_repeat_ngram_size": 1,
    "no_repeat_ngram_size": 1,
    "exponential_decay_length_penalty": (1, 3.0),
    "repetition_penalty": 1.8,
    "encoder_repetition_penalty": 0.3,
    "min_length": 8,
    "min_new_tokens": 6,
    "suppress_tokens": WORDS,
    "forced_bos_token_id": 12,
    "forced_eos_token_id": EOS,
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "guidance_scale": 3.0,
    "watermarking_config": WatermarkingConfig(bias=6.0, seeding_scheme="selfhash"),
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.5,
    "top_h": 0.5,
    "typical_p": 0.5,
    "epsilon_cutoff": 0.05,
    "eta_cutoff": 0.05,
    "penalty_alpha": 0.6,
    "prompt_lookup_num_tokens": 2,
    "num_beams": 3,
    "diversity_penalty": 1.0,
    "eos_token_id": [EOS, 9],
}
NOT_THE_POLICYS = {"bad_words_ids", "suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "eos_token_id"}
"""Settings that samples keep: their log-probabilities account for them."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """For each step of sampling, the log-probabilities with which its tokens were drawn."""
    seen: list[torch.Tensor] = []
    real = sampling.invert

    def draw(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        ids = real(probabilities, uniforms)
        seen.append(probabilities.gather(1, ids).log().squeeze(1))
        return ids

    monkeypatch.setattr(sampling, "invert", draw)
    return seen


def sampled(policy: Policy, batch: Any, args: Any) -> tuple[list[list[int]], Any, torch.Tensor]:
    texts = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    row = sampled_row(policy, batch, texts, args.max_completion_length)
    [logits] = policy.predict(batch.source, [row])
    return texts, row, sampled_log_p(policy, logits, row, args)


@pytest.mark.parametrize("kind", ["marian", "t5", "llama"])
@pytest.mark.parametrize("name", list(DISTRIBUTION))
def test_log_p_is_that_of_the_draw_whatever_the_model_sets(tiny_policy, tiny_batch, settings, drawn, name, kind):
    policy, args = tiny_policy(kind), settings("avg", max_completion_length=7)
    batch = tiny_batch(policy)
    plain = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    drawn.clear()
    setattr(policy.base.generation_config, name, DISTRIBUTION[name])
    texts, row, log_p = sampled(policy, batch, args)
    taken = torch.stack(drawn, dim=1)
    expected = torch.cat([taken[b, : row.wanted.shape[1]][row.wanted[b]] for b in range(len(texts))])
    assert len(expected) > 4
    torch.testing.assert_close(log_p, expected, rtol=1e-4, atol=1e-4)
    assert name in NOT_THE_POLICYS or texts == plain


def test_forced_tokens_are_drawn_with_certainty_and_not_counted(tiny_policy, tiny_batch, settings):
    policy, args = tiny_policy("marian"), settings("avg", max_completion_length=5)
    policy.base.generation_config.forced_bos_token_id = 12
    policy.base.generation_config.forced_eos_token_id = EOS
    texts, row, _ = sampled(policy, tiny_batch(policy), args)
    assert {text[0] for text in texts} == {12}
    assert {text[4] for text in texts if len(text) > 4} == {EOS}
    assert not row.wanted[:, 0].any()


def test_padding_that_opus_mt_bans_is_neither_drawn_nor_given_probability(tiny_policy, tiny_batch, settings):
    """However likely. The frequencies of first tokens are those of the log-probabilities."""
    policy, args = tiny_policy("marian"), settings("avg", max_completion_length=2)
    with torch.no_grad():
        policy.base.final_logits_bias[0, PAD] += 30
    policy.base.generation_config.bad_words_ids = [[PAD]]
    batch, many = tiny_batch(policy, 1), 4000
    texts = sample_texts(policy, batch, args, Randomness(0, 0), many)
    firsts = torch.tensor([text[0] for text in texts])
    assert PAD not in firsts.tolist()
    share = torch.bincount(firsts, minlength=len(policy.allowed)) / many
    ids = firsts.unique().tolist()
    found = {}
    for token in ids:
        row = sampled_row(policy, batch, [[token, EOS]], 2)
        [logits] = policy.predict(batch.source, [row])
        found[token] = sampled_log_p(policy, logits, row, args)[rows_of(row) == 0][0].exp().item()
    assert sum(found.values()) == pytest.approx(1.0, abs=0.02)
    for token, p in found.items():
        assert share[token].item() == pytest.approx(p, abs=4 * (p / many) ** 0.5 + 1e-3)


def test_every_setting_of_transformers_is_known():
    """A setting that a later version adds must be looked at: does it change what is drawn?"""
    kept = {"max_length", "max_new_tokens", "early_stopping", "max_time", "stop_strings", "do_sample", "use_cache"}
    kept |= {"cache_implementation", "cache_config", "max_cache_len", "length_penalty", "num_return_sequences"}
    kept |= {"output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"}
    kept |= {"pad_token_id", "bos_token_id", "decoder_start_token_id", "compile_config", "disable_compile"}
    kept |= {
        "continuous_batching_config",
        "low_memory",
        "prefill_chunk_size",
        "transformers_version",
        "num_beam_groups",
    }
    assistant = {"num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"}
    assistant |= {"is_assistant", "max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind"}
    assistant |= {"assistant_ensemble_weight", "use_mtp", "speculation_type"}  # need another model as an argument
    names = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert names - set(DISTRIBUTION) - set(NEUTRAL) - set(STRATEGIES) - kept - assistant == set()


def test_beams_and_greedy_texts_keep_the_models_settings(tiny_policy, tiny_batch):
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    before = policy.generate(batch.source, Decoding(max_new_tokens=6))
    first = before[0][0]
    policy.base.generation_config.begin_suppress_tokens = [first]
    assert policy.generate(batch.source, Decoding(max_new_tokens=6))[0][0] != first
    assert neutral(GenerationConfig(), True) == {}
