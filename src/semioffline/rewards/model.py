"""Use any sequence-classification model as a reward: a click model, a factuality classifier, a preference model."""

from __future__ import annotations

from typing import Any, ClassVar

from semioffline.errors import UserError, unknown
from semioffline.rewards.contract import RewardOptions, package_version, yes_or_no
from semioffline.rewards.encoder import LOAD_OPTIONS, EncoderReward, batches, own_precision


class ModelReward(EncoderReward):
    """Scores texts with a sequence-classification model.

    With one output (a regression head), the reward is its value. With several, it is the probability of one label.

    Args:
        model: The model object.
        processing_class: Its tokenizer.
        label: Name or number of the label; by default "entailment" if the model has it, else the last label.
        pair: Score prompt and completion as a pair. The default for models with an entailment label: they measure
            factuality, whether the source entails the output.
        batch_size: Texts per forward pass.
        max_length: Tokens of a text or a pair; the model's maximum by default.
        device: Where the model runs; the policy's device by default.
    """

    auto_class = "AutoModelForSequenceClassification"
    options: ClassVar[RewardOptions] = {"pair": yes_or_no, "label": str, **LOAD_OPTIONS}

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
        super().__init__(model, processing_class, batch_size, max_length, device)
        self.labels = {number: str(name) for number, name in model.config.id2label.items()}
        entailment = _find_entailment(self.labels)
        self.column = self._pick(label, entailment)
        self.pair = entailment is not None if pair is None else pair

    def _pick(self, label: str | None, entailment: int | None) -> int | None:
        """Return the column of the logits that is the reward; None if there is only one."""
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

    @property
    def name(self) -> str:
        return self.checkpoint

    @property
    def signature(self) -> str:
        output = "value" if self.column is None else f"p({self.labels[self.column]})"
        text = "prompt+completion" if self.pair else "completion"
        return (
            f"model:{self.name}|{output}|of:{text}|max:{self.max_length}|dtype:{self.precision}|v:{package_version()}"
        )

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
