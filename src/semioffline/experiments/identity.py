"""Which settings a run depends on: they decide whether two runs, or two evaluations, are the same.

`config.defining_settings` returns the settings that a resumed run must not change. A finished run of a comparison is
checked more strictly, because its length and its evaluation also count: everything is compared except `_NOT_IN_A_RUN`.
"""

from __future__ import annotations

from collections.abc import Iterable

TEXT = ("max_prompt_length", "max_completion_length", "truncation_side")
"""Settings of tokenising: training data, candidates and outputs depend on them."""
EVALUATION = (
    *("num_beams", "length_penalty", "no_repeat_ngram_size", "min_new_tokens", *TEXT),
    *("per_device_eval_batch_size", "bf16", "fp16", "reward_weights"),
)
"""Settings that the validation reward depends on, in addition to the weights."""
_NOT_IN_A_RUN = {
    *("output_dir", "logging_dir", "run_name", "report_to", "disable_tqdm", "verbose", "save_minutes"),
    *("eval_on_start", "reward_workers", "save_total_limit", "write_result"),
}


def run_settings(names: Iterable[str]) -> set[str]:
    """Return those of these settings that the result of a run depends on."""
    return set(names) - _NOT_IN_A_RUN
