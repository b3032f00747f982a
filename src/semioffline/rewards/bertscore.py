"""BERTScore (Zhang et al., 2020) with any encoder."""

from __future__ import annotations

from typing import Any, ClassVar

from semioffline.errors import UserError
from semioffline.rewards.contract import RewardOptions, check_references, package_version, positive, yes_or_no
from semioffline.rewards.encoder import LOAD_OPTIONS, EncoderReward, own_precision, short_name

LAYERS = {
    "bert-base-uncased": 9,
    "bert-large-uncased": 18,
    "roberta-base": 10,
    "roberta-large": 17,
    "distilbert-base-uncased": 5,
    "deberta-xlarge-mnli": 40,
}
"""The layer of each encoder that the authors chose by human judgements. For other encoders it is the last layer."""
BASELINES = {
    "bert-base-uncased": 0.35219112,
    "bert-large-uncased": 0.42646673,
    "roberta-base": 0.814463,
    "roberta-large": 0.83122575,
    "distilbert-base-uncased": 0.66620487,
    "deberta-xlarge-mnli": 0.5150192,
}
"""F for two unrelated English sentences at these layers, as published with the bert-score package."""


class BertScore(EncoderReward):
    """F = 2PR / (P + R), with every token matched to the most similar token of the other text.

    P is the mean over completion tokens of the highest cosine with a reference token, R the mean over reference tokens
    of the highest cosine with a completion token. A token is represented by its hidden state in one layer. The special
    tokens at both ends of a text may be matched but are not counted. There are no idf weights. An empty text scores 0.
    With several references, the highest F counts. The values are those of the bert-score package for the same encoder
    and layer. rescale: (F - b) / (1 - b), with b from BASELINES, or `baseline`: nearly 0 for unrelated texts, and below
    0 for an empty one.
    """

    name = "bertscore"
    options: ClassVar[RewardOptions] = {"layer": positive, "rescale": yes_or_no, "baseline": float, **LOAD_OPTIONS}

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        layer: int | None = None,
        batch_size: int = 64,
        max_length: int | None = None,
        device: Any = None,
        rescale: bool = False,
        baseline: float | None = None,
    ) -> None:
        layers, encoder = model.config.num_hidden_layers, short_name(model)
        self.layer = min(LAYERS.get(encoder, layers), layers) if layer is None else layer
        if not 1 <= self.layer <= layers:
            raise UserError(f"layer={self.layer}: {encoder} has the layers 1 to {layers}")
        known = BASELINES.get(encoder) if self.layer == LAYERS.get(encoder) else None
        self.baseline = (known if baseline is None else baseline) if rescale or baseline is not None else 0.0
        if self.baseline is None or not 0 <= self.baseline < 1:
            raise UserError(
                f"rescale needs a baseline in [0, 1) for {encoder}, layer {self.layer}, and {self.baseline} is none: "
                f"give baseline=NUMBER (known: {', '.join(BASELINES)})"
            )
        super().__init__(model, tokenizer, batch_size, max_length, device)
        ends = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        self.ends = sorted({number for number in ends if number is not None})

    @property
    def signature(self) -> str:
        rescaled = f"{self.baseline:g}" if self.baseline else "no"
        kind = f"layer:{self.layer}|idf:no|rescale:{rescaled}|refs:best"
        return (
            f"bertscore:{self.checkpoint}|f1|{kind}|max:{self.max_length}|dtype:{self.precision}|v:{package_version()}"
        )

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        pairs = [(text, reference) for text, row in zip(completions, references, strict=True) for reference in row]
        different = list(dict.fromkeys(pairs))
        scores: dict[tuple[str, str], float] = {}
        for start in range(0, len(different), self.batch_size):
            part = different[start : start + self.batch_size]
            with own_precision(self.model):
                scores |= zip(part, self._score(part), strict=True)
        highest = [max(scores[text, one] for one in row) for text, row in zip(completions, references, strict=True)]
        return [(score - self.baseline) / (1 - self.baseline) for score in highest] if self.baseline else highest

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        """Return F of each pair. A reference that several samples share is read once."""
        import torch

        texts = list(dict.fromkeys(text.strip() for pair in pairs for text in pair))
        states, present, counted = self._embed(texts)  # (N, T, H), (N, T), (N, T)
        place_of = {text: number for number, text in enumerate(texts)}
        left, right = (torch.tensor([place_of[pair[side].strip()] for pair in pairs]) for side in (0, 1))
        cosines = states[left] @ states[right].transpose(1, 2)  # (B, T, T)
        cosines = cosines.masked_fill(~(present[left][:, :, None] & present[right][:, None]), -torch.inf)
        precision = _mean(cosines.amax(2), counted[left])
        recall = _mean(cosines.amax(1), counted[right])
        score = 2 * precision * recall / (precision + recall)
        empty = ~counted[left].any(1) | ~counted[right].any(1)
        return score.masked_fill(empty, 0.0).nan_to_num(0.0).tolist()

    def _embed(self, texts: list[str]) -> Any:
        import torch
        from torch.nn.functional import normalize

        inputs = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(self.model.device)
        states = self.model(**inputs, output_hidden_states=True).hidden_states[self.layer].float()
        present = inputs["attention_mask"].bool()
        ends = torch.tensor(self.ends, device=present.device)
        return normalize(states, dim=-1), present, present & ~torch.isin(inputs["input_ids"], ends)


def _mean(values: Any, counted: Any) -> Any:
    """Return (B,), the mean over the tokens that count. values: (B, T)."""
    return values.masked_fill(~counted, 0.0).sum(1) / counted.sum(1).clamp(min=1)
