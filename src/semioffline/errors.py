"""Errors that a user can fix. Each is one line: what was given, what is allowed, and what to change."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

MOST_NAMES = 40
"""Maximum number of names in a message. If there are more, only the nearest ones are shown."""


class UserError(ValueError):
    """Wrong input or settings. The command line prints it as one line on stderr and exits with code 2."""


@contextmanager
def told_in_one_line(*kinds: type[Exception], before: str = "") -> Iterator[None]:
    """Turn these exceptions of another library into a UserError. before: words to put before its message."""
    try:
        yield
    except kinds as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        raise UserError(before + " ".join(str(error).split())) from error


def changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return a text with the settings that differ and their old and new values; an empty text if none differs."""
    different = sorted(name for name in names if before.get(name) != now.get(name))
    return ", ".join(f"{name}: {before.get(name)} before, {now.get(name)} now" for name in different)


def short(text: str, most: int = 80) -> str:
    """Return a text for a message, shortened if it is long."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


ELSEWHERE: dict[str, tuple[str, ...]] = {
    "grpo": ("avg",),
    "rloo": ("avg",),
    "ppo": ("actor_critic", "avg"),
    "scst": ("self_critic",),
    "sft": ("ft", "mft"),
    "num_generations": ("num_samples",),
    "num_return_sequences": ("num_samples", "num_candidates"),
    "beta": ("kl_weight", "rl_weight"),
    "reward_funcs": ("reward",),
    "reward_model_name_or_path": ("reward",),
    "model_name_or_path": ("model",),
    "torch_dtype": ("dtype",),
    "dataset_name": ("data_dir",),
    "dataset": ("data_dir",),
    "max_source_length": ("max_prompt_length",),
    "max_target_length": ("max_completion_length",),
    "max_length": ("max_completion_length",),
    "max_new_tokens": ("max_completion_length",),
    "generation_max_length": ("max_completion_length",),
    "generation_num_beams": ("num_beams",),
    "batch_size": ("per_device_train_batch_size",),
    "train_batch_size": ("per_device_train_batch_size",),
    "epochs": ("num_train_epochs",),
    "lr": ("learning_rate",),
    "label_smoothing": ("label_smoothing_factor",),
    "evaluation_strategy": ("eval_strategy",),
    "compute_metrics": ("eval_metrics", "metrics"),
    "warmup_ratio": ("warmup_steps",),
    "use_peft": ("lora_r",),
    "lora_rank": ("lora_r",),
    "steps": ("max_steps",),
}
"""Names in TRL, Transformers and their examples -> what they are called here."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UserError:
    """Return the error for a name that does not exist, with the nearest one that does."""
    names, given = sorted(allowed), short(given)
    same = [name for name in ELSEWHERE.get(given, ()) if name in names]
    near = same or get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    shown = names if len(names) <= MOST_NAMES else sorted(get_close_matches(given, names, n=8, cutoff=0.0))
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    known = f"Known: {', '.join(shown)}{more}." if shown else "There is none."
    return UserError(f"unknown {kind} '{given}'.{hint} {known}")
