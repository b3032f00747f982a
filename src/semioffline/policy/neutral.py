"""Switch off a model's own generation settings for samples of the plain policy."""

from __future__ import annotations

from typing import Any

NEUTRAL: dict[str, Any] = {"repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "typical_p": 1.0}
NEUTRAL |= {"min_p": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}
NEUTRAL |= {"encoder_no_repeat_ngram_size": 0, "remove_invalid_values": False}
NEUTRAL |= dict.fromkeys(("bad_words_ids", "sequence_bias", "begin_suppress_tokens", "guidance_scale"))
NEUTRAL |= dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config", "renormalize_logits"))
"""Settings that change a distribution, where they do not change it. `Decoding` gives the others itself."""
STRATEGIES: dict[str, Any] = dict.fromkeys(("penalty_alpha", "dola_layers", "constraints", "force_words_ids"))
STRATEGIES |= dict.fromkeys(("prompt_lookup_num_tokens", "assistant_early_exit", "token_healing"))
"""Settings that choose another way to generate than sampling, or change the prompt, where they do not."""


def neutral(own: Any, is_encoder_decoder: bool) -> dict[str, Any]:
    """Return arguments of `generate` that undo what the model's own `generation_config` does to a distribution.

    Its special ids, lengths and cache stay, and so do ids that are never generated (`banned`) and forced tokens. The
    policy does not choose forced tokens, so `sampled_row` leaves them out. In decoder-only models the forced first
    token is undone, because it would come only after prompts of one token.
    """
    undone = NEUTRAL | STRATEGIES | ({} if is_encoder_decoder else {"forced_bos_token_id": None})
    return {name: value for name, value in undone.items() if getattr(own, name, None) is not None}


def banned(own: Any, ends: set[int]) -> set[int]:
    """Return ids that are never generated: suppressed tokens, and bad words of one token. Opus-MT bans its padding like
    this.

    Transformers allows the EOS where it is a bad word; longer bad words do not apply to samples.
    """
    words = [word[0] for word in own.bad_words_ids or [] if len(word) == 1 and word[0] not in ends]
    return {*(own.suppress_tokens or []), *words}
