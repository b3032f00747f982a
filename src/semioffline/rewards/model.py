"""Any sequence-classification model as a reward: a click model, a factuality classifier, a preference model."""

from __future__ import annotations

from typing import Any

from semioffline.errors import UserError, unknown
from semioffline.rewards.contract import package_version, parse_options, yes_or_no
from semioffline.rewards.encoder import (
    LOAD_OPTIONS,
    batches,
    load_model,
    longest_text,
    own_precision,
    place,
    short_name,
)

OPTIONS: dict[str, Any] = {"pair": yes_or_no, "label": str, **LOAD_OPTIONS}


class ModelReward:
    """Scores completions (or prompt and completion together) with a sequence-classification model.

    One output (a regression head): its value is the reward. Several: the probability of `label`, given by name or
    number (default: "entailment" where the model has it, else the last label). `pair` feeds prompt and completion as a
    pair; it is the default for models with an entailment label, which so measure factuality: does the source entail
    the output?
    """

    on_device = True

    def __init__(
        self,
        model: Any,
        processing_class: Any,
        label: str | None = None,
        pair: bool | None = None,
        batch_size: int = 64,
        max_length: int | None = None,
        device: Any = None,
    ):
        if processing_class is None:
            raise UserError("a reward model needs its tokenizer: pass reward_processing_classes")
        self.model = place(model, device)
        self.tokenizer = processing_class
        self.batch_size = batch_size
        self.max_length = longest_text(model, processing_class, max_length)
        self.labels = {number: str(name) for number, name in model.config.id2label.items()}
        entailment = _find_entailment(self.labels)
        self.column = self._pick(label, entailment)
        self.pair = entailment is not None if pair is None else pair
        self.name = short_name(getattr(model.config, "_name_or_path", "") or type(model).__name__)

    def _pick(self, label: str | None, entailment: int | None) -> int | None:
        """The column of the logits that is the reward; None for a single output."""
        if len(self.labels) == 1:
            if label is not None:
                raise UserError(f"label={label}: the reward model has one output and no labels; leave label out")
            return None
        if label is None:
            return max(self.labels) if entailment is None else entailment
        numbers = {name.lower(): number for number, name in self.labels.items()}
        numbers |= {str(number): number for number in self.labels}
        if label.lower() not in numbers:
            raise unknown("label of the reward model", label, self.labels.values())
        return numbers[label.lower()]

    @classmethod
    def load(cls, given: str, processing_class: Any = None, device: Any = None) -> ModelReward:
        """ "NAME_OR_PATH", with options behind a `?`: pair, label, device, dtype, batch_size, max_length."""
        name, options = parse_options(given, OPTIONS)
        dtype = options.pop("dtype", "float32")
        model, tokenizer = load_model("AutoModelForSequenceClassification", name, dtype, processing_class)
        return cls(model, tokenizer, **({"device": device} | options))

    @property
    def signature(self) -> str:
        output = "value" if self.column is None else f"p({self.labels[self.column]})"
        text = "prompt+completion" if self.pair else "completion"
        precision = str(self.model.dtype).removeprefix("torch.")
        return f"model:{self.name}|{output}|of:{text}|max:{self.max_length}|dtype:{precision}|v:{package_version()}"

    def __call__(self, prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        columns = (prompts, completions) if self.pair else (completions,)
        rows: list[tuple[str, ...]] = list(zip(*columns, strict=True))
        scores: dict[tuple[str, ...], float] = {}
        for part in batches(rows, self.batch_size):
            scores |= zip(part, self._score(part), strict=True)
        return [scores[row] for row in rows]

    def _score(self, rows: list[tuple[str, ...]]) -> list[float]:
        columns = [list(column) for column in zip(*rows, strict=True)]
        inputs = self.tokenizer(
            *columns, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        with own_precision(self.model):
            logits = self.model(**inputs.to(self.model.device)).logits.float()  # (B, labels)
        values = logits[:, 0] if self.column is None else logits.softmax(1)[:, self.column]
        return values.tolist()


def _find_entailment(labels: dict[int, str]) -> int | None:
    names = {name.lower(): number for number, name in labels.items()}
    if "entailment" in names:
        return names["entailment"]
    return next((number for name, number in names.items() if name.startswith("entail")), None)
