"""Any sequence-classification model as a reward."""

from __future__ import annotations

from typing import Any

from semioffline.errors import UserError, unknown


class ModelReward:
    """Scores completions (or prompt and completion together) with a sequence-classification model.

    One output: its logit is the reward. Several: the probability of `label` (default: "entailment" where the model has
    it, else the last label).
    """

    def __init__(
        self,
        model: Any,
        processing_class: Any,
        label: str | None = None,
        with_prompt: bool | None = None,
        batch_size: int = 64,
        device: Any = None,
    ):
        if processing_class is None:
            raise UserError("a reward model needs its tokenizer: pass reward_processing_classes")
        self.model = model.eval().requires_grad_(False)
        if device is not None:
            self.model.to(device)
        self.tokenizer = processing_class
        self.batch_size = batch_size
        labels = {str(name).lower(): number for number, name in model.config.id2label.items()}
        self.column = self._pick(labels, label)
        self.with_prompt = "entailment" in labels if with_prompt is None else with_prompt
        self.name = (getattr(model.config, "_name_or_path", "") or type(model).__name__).rstrip("/").split("/")[-1]

    @staticmethod
    def _pick(labels: dict[str, int], label: str | None) -> int | None:
        if len(labels) == 1:
            return None
        if label is None:
            return labels.get("entailment", max(labels.values()))
        if label.lower() not in labels:
            raise unknown("label of the reward model", label, labels)
        return labels[label.lower()]

    @classmethod
    def load(cls, name: str, processing_class: Any = None, **kwargs: Any) -> ModelReward:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            model = AutoModelForSequenceClassification.from_pretrained(name)
            return cls(model, processing_class or AutoTokenizer.from_pretrained(name), **kwargs)
        except OSError as error:
            raise UserError(f"cannot load the reward model '{name}': {str(error).strip().splitlines()[0]}") from error

    def __call__(self, prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        import torch

        scores: list[float] = []
        for start in range(0, len(completions), self.batch_size):
            part = slice(start, start + self.batch_size)
            pair = (prompts[part], completions[part]) if self.with_prompt else (completions[part],)
            inputs = self.tokenizer(*pair, padding=True, truncation=True, return_tensors="pt")
            with torch.no_grad():
                logits = self.model(**inputs.to(self.model.device)).logits.float()
            values = logits[:, 0] if self.column is None else logits.softmax(1)[:, self.column]
            scores += values.tolist()
        return scores
