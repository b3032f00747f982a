"""Static targets: N candidates for each input, generated, scored and sorted. Resumable: nothing is lost or repeated."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from semioffline.data import Collator, Examples
from semioffline.decoding import Decoding
from semioffline.errors import UserError
from semioffline.policy import Policy
from semioffline.scoring import RewardSet, reward_columns
from semioffline.types import Randomness

OUTPUT = "candidates.jsonl"


def write_candidates(
    policy: Policy,
    examples: Examples,
    rows: Any,
    decoding: Decoding,
    rewards: RewardSet,
    folder: str | Path,
    settings: dict[str, Any],
    batch_size: int = 16,
    shard_size: int = 256,
    seed: int = 0,
) -> Path:
    """Write folder/candidates.jsonl: `rows` with the columns `candidates` (best first) and `candidate_rewards` added.

    `rows` are those of `examples` as they are stored, so that the new file is read with the same settings as the old.

    The work is cut into shards. A shard is written aside and renamed when it is complete, so a run that was killed goes
    on with the first missing shard. The draws of a batch are keyed by its first example: a shard comes out the same
    whether or not the run was interrupted. `settings` says what the shards were made with; others are refused.
    """
    folder = Path(folder)
    shards = folder / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    made_with = {"rows": len(examples), "decoding": decoding.signature(), "seed": seed}
    made_with |= {"shard_size": shard_size, "batch_size": batch_size}
    _check_settings(folder / "settings.json", settings | made_with)
    number = math.ceil(len(examples) / shard_size)
    paths = [shards / f"{n:05d}-of-{number:05d}.jsonl" for n in range(number)]
    missing = [n for n in range(number) if not paths[n].exists()]
    for n in tqdm(missing, desc="candidates", initial=number - len(missing), total=number, unit="shard"):
        chosen = list(range(n * shard_size, min((n + 1) * shard_size, len(examples))))
        made = _make(policy, examples, chosen, decoding, rewards, batch_size, seed)
        lines = [json.dumps(rows[i] | made[i], ensure_ascii=False) + "\n" for i in chosen]
        _write_aside(paths[n], "".join(lines))
    _write_aside(folder / OUTPUT, "".join(path.read_text(encoding="utf-8") for path in paths))
    return folder / OUTPUT


def _make(
    policy: Policy,
    examples: Examples,
    chosen: list[int],
    decoding: Decoding,
    rewards: RewardSet,
    batch_size: int,
    seed: int,
) -> dict[int, dict[str, Any]]:
    """row number -> candidates and candidate_rewards, best first"""
    collate, many, made = Collator(policy.pad_id), decoding.num_return_sequences, {}
    chosen = sorted(chosen, key=lambda n: -len(examples[n].source.ids))  # little padding
    for start in range(0, len(chosen), batch_size):
        part = [examples[n] for n in chosen[start : start + batch_size]]
        batch = collate(part).to(policy.device)
        with policy.meter.paused(), torch.random.fork_rng():
            torch.manual_seed(Randomness(seed, 0).generator("candidates", part[0].index).initial_seed())
            ids = policy.generate(batch.source, decoding)
        texts = policy.decode(ids)
        sums, _ = rewards(reward_columns(batch.columns, texts, ids, many))
        for i, example in enumerate(part):
            pairs = zip(sums[i * many : (i + 1) * many], texts[i * many : (i + 1) * many], strict=True)
            # empty texts cannot be trained on, unscored ones cannot be ranked
            kept = sorted((p for p in pairs if p[1] and not math.isnan(p[0])), key=lambda p: -p[0])
            made[example.index] = {"candidates": [t for _, t in kept], "candidate_rewards": [r for r, _ in kept]}
    return made


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    if path.exists():
        before = json.loads(path.read_text())
        different = sorted(k for k in settings.keys() | before.keys() if settings.get(k) != before.get(k))
        if different:
            changes = ", ".join(f"{k}: {before.get(k)} before, {settings.get(k)} now" for k in different)
            raise UserError(
                f"{path.parent} holds candidates made with other settings ({changes}): use another --output_dir"
            )
    _write_aside(path, json.dumps(settings, indent=1))


def _write_aside(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
