"""Generate one output per example."""

from __future__ import annotations

import json
import time
from pathlib import Path

from semioffline.data.examples import Collator, Examples
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.printing import track
from semioffline.storage.files import append_line, keep_lines, read_log


def generate_ids(
    policy: Policy,
    examples: Examples,
    decoding: Decoding,
    batch_size: int = 32,
    progress: bool = True,
    part: slice = slice(None),
    kept: Path | None = None,
) -> list[list[int]]:
    """Generate one output per example of `part`. Return token ids in the order of `part`. Batches are sorted by source
    length, for less padding.

    kept: A file that outputs are added to, batch by batch. Those that are there are not made again.
    """
    numbers = list(range(len(examples)))[part]
    outputs = {} if kept is None else read_outputs(kept)[0]
    by_length = sorted((n for n in numbers if n not in outputs), key=lambda n: -len(examples[n].source.ids))
    collate = Collator(policy.tokens.pad_id)
    starts = range(0, len(by_length), batch_size)
    for start in track(starts, len(by_length), "generate", progress):
        began = time.perf_counter()
        chosen = by_length[start : start + batch_size]
        batch = collate([examples[n] for n in chosen]).to(policy.device)
        made = dict(zip(chosen, policy.generate(batch.source, decoding), strict=True))
        outputs |= made
        if kept is not None:
            append_line(kept, json.dumps({"seconds": time.perf_counter() - began, "outputs": made}))
    return [outputs[n] for n in numbers]


def read_outputs(kept: Path) -> tuple[dict[int, list[int]], float]:
    """Read the outputs of an interrupted evaluation. Return (example -> token ids) and the seconds that they took."""
    lines = read_log(kept)
    if kept.exists():
        keep_lines(kept, len(lines))  # without a line that is half written
    outputs = {int(n): ids for line in lines for n, ids in line["outputs"].items()}
    return outputs, sum(line["seconds"] for line in lines)
