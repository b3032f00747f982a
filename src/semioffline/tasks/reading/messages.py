"""Conversational rows: a prompt as a list of messages, `{"role": ..., "content": ...}`."""

from reprlib import repr as short
from typing import Any


def text_problem(name: str, value: Any) -> str | None:
    """Return the problem with a prompt or a completion, which must be a text or messages; None if there is none."""
    if isinstance(value, str):
        return None
    if not isinstance(value, list):
        return f"the {name} must be text, got {short(value)}."
    if not value or not all(_is_message(part) for part in value):
        return f'the {name} must be text or a list of messages {{"role": ..., "content": ...}}, got {short(value)}.'
    if name == "completion" and (len(value) > 1 or value[0]["role"] != "assistant"):
        return f"a completion in messages must be one message of the assistant, got {short(value)}."
    if name == "prompt" and value[-1]["role"] == "assistant":
        return "the last message of the prompt is the assistant's: it belongs into the completion."
    return None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def is_blank(value: Any) -> bool:
    """Return whether a completion, or the last message of a prompt, has no text."""
    if isinstance(value, list) and value and _is_message(value[-1]):
        value = value[-1]["content"]
    return value is None or not str(value).strip()
