"""Generate one output per example."""

from __future__ import annotations

from semioffline.data.examples import Collator, Examples
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.printing import track


def generate_ids(
    policy: Policy,
    examples: Examples,
    decoding: Decoding,
    batch_size: int = 32,
    progress: bool = True,
    part: slice = slice(None),
) -> list[list[int]]:
    """Token ids of one output per example of `part`, in order. Batches are sorted by source length: less padding."""
    numbers = list(range(len(examples)))[part]
    outputs: dict[int, list[int]] = {}
    by_length = sorted(numbers, key=lambda n: -len(examples[n].source.ids))
    collate = Collator(policy.tokens.pad_id)
    starts = range(0, len(by_length), batch_size)
    for start in track(starts, len(by_length), "generate", progress):
        chosen = by_length[start : start + batch_size]
        batch = collate([examples[n] for n in chosen]).to(policy.device)
        outputs |= zip(chosen, policy.generate(batch.source, decoding), strict=True)
    return [outputs[n] for n in numbers]
