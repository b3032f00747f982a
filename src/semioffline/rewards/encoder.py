"""Load, batch and run frozen models that read texts for a reward. Torch is imported only when used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from semioffline.errors import UserError, unknown
from semioffline.rewards.contract import BaseReward, RewardOptions, parse_options, positive
from semioffline.storage.untrusted import loading

DTYPES = ("float32", "bfloat16", "float16")
LOAD_OPTIONS: RewardOptions = {"device": str, "dtype": str, "batch_size": positive, "max_length": positive}
"""Options that every model reward takes."""


class EncoderReward(BaseReward):
    """A reward that is computed from the output of a frozen model."""

    on_device = True
    auto_class: ClassVar[str] = "AutoModel"
    """The class of Transformers that loads the model."""
    options: ClassVar[RewardOptions] = LOAD_OPTIONS
    """Options that may follow the `?` of its name."""

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int = 64, max_length: int | None = None, device: Any = None
    ) -> None:
        self.model = place(model, device)
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_length = longest_text(model, tokenizer, max_length)

    @classmethod
    def load(cls, given: str, processing_class: Any = None, device: Any = None) -> Self:
        """Load a reward from "NAME_OR_PATH", with options after a `?`."""
        name, options = parse_options(given, cls.options)
        dtype = str(options.pop("dtype", "float32"))
        model, tokenizer = load_model(cls.auto_class, name, dtype, processing_class)
        settings: dict[str, Any] = {"device": device} | options
        return cls(model, tokenizer, **settings)

    @property
    def checkpoint(self) -> str:
        """The last part of the model's path."""
        return short_name(self.model)

    @property
    def precision(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")


def load_model(kind: str, name: str, dtype: str = "float32", tokenizer: Any = None) -> tuple[Any, Any]:
    """Load (model, tokenizer). kind: the name of an auto class. name: a checkpoint."""
    import torch
    import transformers

    if dtype not in DTYPES:
        raise unknown(f"dtype of the reward model '{name}'", dtype, DTYPES)
    with loading(f"the reward model '{name}'"):
        load = getattr(transformers, kind).from_pretrained
        options: dict[str, Any] = {"dtype": getattr(torch, dtype), "output_loading_info": True}
        model, found = load(name, trust_remote_code=False, **options)
        tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    missing = sorted(found["missing_keys"])
    if missing and kind != "AutoModel":  # which may lack a pooler that nobody asks
        raise UserError(f"the reward model '{name}' has no {missing[0]}: it was not trained to classify")
    return model, tokenizer


def place(model: Any, device: Any) -> Any:
    """Freeze a model, set it to evaluation mode, and move it to `device` (None leaves it where it is)."""
    model = model.eval().requires_grad_(False)
    if device is None:
        return model
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={device} of a reward model: {str(error).splitlines()[0]}") from error


def longest_text(model: Any, tokenizer: Any, asked: int | None = None) -> int:
    """Return the maximum number of tokens that the model reads: the tokenizer's limit, and at most the number of
    positions."""
    positions = getattr(model.config, "max_position_embeddings", None) or 512
    return min(asked or 10**9, tokenizer.model_max_length, positions)


@contextmanager
def own_precision(model: Any) -> Iterator[None]:
    """Run the block without gradient and in the model's own precision, because training may run under autocast."""
    import torch

    with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        yield


def batches(rows: Sequence[tuple[str, ...]], size: int) -> Iterator[list[tuple[str, ...]]]:
    """Yield batches of the distinct rows, long ones together, so that there is little padding."""
    different = sorted(dict.fromkeys(rows), key=lambda row: -sum(map(len, row)))
    for start in range(0, len(different), size):
        yield different[start : start + size]


def short_name(model: Any) -> str:
    """Return the last part of the name or path that a model was loaded from, or else its class."""
    name = getattr(model.config, "_name_or_path", "") or type(model).__name__
    return name.rstrip("/").split("/")[-1]
