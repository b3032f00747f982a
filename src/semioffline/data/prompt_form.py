"""The form of prompts: plain, as a chat message, or with a line break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from semioffline.data.splits import Splits
from semioffline.policy.policy import Policy

if TYPE_CHECKING:
    from datasets import Dataset

PromptForm = Literal["plain", "chat", "line"]


def choose_form(policy: Policy, rows: Dataset, given_form: bool) -> tuple[PromptForm, str]:
    """Choose the form of prompts. Return (form, reason). given_form: whether the user or the task has set the form."""
    texts = rows.select(range(min(len(rows), 100)))["prompt"]
    if not all(isinstance(text, str) for text in texts):
        return "plain", "the prompts are conversations: they go through the model's chat template"
    if given_form or policy.is_encoder_decoder:
        return "plain", "the model reads the prompts as they are"
    if cast(Any, policy.tokens.tokenizer).chat_template:
        return "chat", "the model was trained on conversations: each prompt is a message of the user"
    if all(text[-1:].isspace() or text[-1:] in ":>" for text in texts):
        return "plain", "the prompts end in a way that a text can continue"
    return "line", "a line end is added to each prompt, so that the model sees where its text begins"


def apply_form(splits: Splits, form: PromptForm) -> Splits:
    """Return the splits with prompts in this form."""
    if form == "plain":
        return splits
    return Splits({split: _formed(rows, form) for split, rows in splits.rows.items()}, splits.cut)


def _formed(rows: Dataset, form: PromptForm) -> Dataset:
    from semioffline.tasks.reading.rows import set_column

    if form == "chat":
        return set_column(rows, "prompt", [[{"role": "user", "content": text}] for text in rows["prompt"]])
    return set_column(rows, "prompt", [f"{text.rstrip()}\n" for text in rows["prompt"]])
