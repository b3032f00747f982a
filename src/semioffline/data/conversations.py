"""Convert conversations to the texts that a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semioffline.errors import UserError
from semioffline.policy.policy import Policy


def messages_to_text(rows: dict[str, list], start: int, policy: Policy) -> dict[str, list]:
    """Convert conversational rows to texts: prompts as the model reads them, completions as the assistant's words.

    Rewards and the log see this text as the prompt, role marks included. The messages are in a separate column,
    `messages`.
    """
    said = [value if isinstance(value, str) else value[0]["content"] for value in rows["completion"]]
    rows = rows | {"completion": said}
    if all(isinstance(prompt, str) for prompt in rows["prompt"]):
        return rows
    texts = [
        prompt if isinstance(prompt, str) else _chat_text(prompt, start + i, policy)
        for i, prompt in enumerate(rows["prompt"])
    ]
    return {"messages": rows["prompt"]} | rows | {"prompt": texts}


def _chat_text(messages: Sequence[Mapping[str, object]], row: int, policy: Policy) -> str:
    """Format a conversation with the tokenizer's chat template, up to the beginning of the assistant's answer."""
    from jinja2 import TemplateError

    tokenizer: Any = policy.tokens.tokenizer
    if policy.is_encoder_decoder:
        raise UserError(f"row {row}: the prompt is a list of messages, but an encoder-decoder model reads one text")
    if not tokenizer.chat_template:
        raise UserError(
            f"row {row}: the prompt is a list of messages, but the tokenizer has no chat template: take a model "
            "that was trained on conversations, set tokenizer.chat_template, or give texts"
        )
    messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise UserError(f"row {row}: the tokenizer's chat template refuses the messages: {error}") from error
    alone = tokenizer("")["input_ids"]
    adds_start = bool(alone) and alone[0] == tokenizer.bos_token_id  # then it must not stand in the text too
    return text.removeprefix(tokenizer.bos_token) if adds_start else text
