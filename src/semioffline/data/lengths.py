"""Maximum lengths of prompts and completions, and counts of truncated texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semioffline.config import MethodConfig
from semioffline.errors import UserError
from semioffline.policy.packing import round_up
from semioffline.policy.policy import Policy
from semioffline.policy.tokens import Encoded


def _longest(most: int | None, usual: int, other: int | None) -> int:
    """Return the usual length, or less if the model has fewer positions left for this part."""
    return usual if most is None else max(2, min(usual, most - (other or 0)))


def text_limits(policy: Policy, config: MethodConfig) -> tuple[int, int]:
    """Return maximum lengths (prompt, completion) in tokens: the settings, or 512 and 128 if the model's positions
    allow it."""
    most, one = policy.max_positions(), policy.is_encoder_decoder
    prompt, completion = config.max_prompt_length, config.max_completion_length
    if completion is None:
        usual = 128 if most is None or one or prompt is not None else min(128, most // 4)
        completion = _longest(most, usual, None if one else prompt)
    if prompt is None:
        prompt = _longest(most, 512, None if one else completion)
    check_limits(policy, prompt, completion)
    longest = max(prompt, completion)
    padded = round_up(longest, config.pad_to_multiple_of)
    if most is not None and one and padded > most:  # rows of a decoder-only model begin again at their prompt's end
        raise UserError(
            f"pad_to_multiple_of={config.pad_to_multiple_of} makes {padded} of {longest} tokens, and the model "
            f"has {most} positions: lower max_prompt_length or max_completion_length"
        )
    return prompt, completion


def check_limits(policy: Policy, prompt: int, completion: int) -> None:
    """Check that the model has positions for prompts and completions of these lengths."""
    most = policy.max_positions()
    needed = max(prompt, completion) if policy.is_encoder_decoder else prompt + completion
    if most is not None and needed > most:
        raise UserError(
            f"max_prompt_length={prompt} and max_completion_length={completion} exceed the model's {most} positions"
        )


@dataclass
class Truncation:
    """Counts the texts that were cut to the maximum length."""

    prompts: int = 0
    completions: int = 0
    candidates: int = 0
    of: int = 0

    def add(
        self,
        prompts: Sequence[Encoded] = (),
        completions: Sequence[Encoded] = (),
        candidates: Sequence[Encoded] = (),
    ) -> None:
        """Count the texts that were truncated."""
        self.prompts += sum(text.truncated for text in prompts)
        self.completions += sum(text.truncated for text in completions)
        self.candidates += sum(text.truncated for text in candidates)

    def shares(self) -> dict[str, float]:
        """Return the shares of truncated texts, for the log."""
        counts = {"prompts": self.prompts, "completions": self.completions, "candidates": self.candidates}
        return {f"truncated/{name}": count / max(self.of, 1) for name, count in counts.items()}

    def __str__(self) -> str:
        counts = {"prompt": self.prompts, "completion": self.completions, "candidate": self.candidates}
        cut = [f"{count:,} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
        return f"cut to the maximum length: {', '.join(cut) or 'nothing'}, of {self.of:,} rows"
