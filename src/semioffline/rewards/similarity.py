"""The similarity of output and reference by a sentence encoder."""

from __future__ import annotations

from typing import Any

from semioffline.rewards.contract import check_references, package_version
from semioffline.rewards.encoder import EncoderReward, batches, own_precision


class Similarity(EncoderReward):
    """The cosine of the mean-pooled last hidden states of completion and reference, in [-1, 1].

    sentence-transformers models with mean pooling are trained for this. With several references, the highest value
    counts.
    """

    name = "similarity"

    @property
    def signature(self) -> str:
        kind = f"cosine|pool:mean|refs:best|max:{self.max_length}"
        return f"similarity:{self.checkpoint}|{kind}|dtype:{self.precision}|v:{package_version()}"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        every = [(text,) for text in completions] + [(text,) for row in references for text in row]
        vectors: dict[tuple[str, ...], Any] = {}
        with own_precision(self.model):
            for part in batches(every, self.batch_size):
                vectors |= zip(part, self._embed([text for (text,) in part]), strict=True)
            return [
                max(float(vectors[text,] @ vectors[reference,]) for reference in row)
                for text, row in zip(completions, references, strict=True)
            ]

    def _embed(self, texts: list[str]) -> Any:
        """Return (B, H) vectors of length 1, on the CPU."""
        from torch.nn.functional import normalize

        inputs = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(self.model.device)
        states = self.model(**inputs).last_hidden_state.float()  # (B, T, H)
        weights = inputs["attention_mask"][..., None].float()
        return normalize((states * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=1).cpu()
