"""Static targets: N candidates for each input, generated, scored and sorted. Resumable: nothing is lost or repeated."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from semioffline.data import Collator, Examples
from semioffline.decoding import Decoding
from semioffline.errors import UserError
from semioffline.policy import Policy
from semioffline.randomness import Randomness
from semioffline.reward_calls import reward_columns
from semioffline.reward_set import RewardSet
from semioffline.types import Batch, Text

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
    whether or not the run was interrupted. `settings` says what the shards were made with; others are refused. Only the
    batch size may change, for one that was too large: the rest is then drawn with other numbers, from the same model.
    """
    folder = Path(folder)
    shards = folder / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    own = {"rows": len(examples), "decoding": decoding.signature(), "seed": seed, "shard_size": shard_size}
    _check_settings(folder / "settings.json", settings | own)
    number = math.ceil(len(examples) / shard_size)
    paths = [shards / f"{n:05d}-of-{number:05d}.jsonl" for n in range(number)]
    missing = [n for n in range(number) if not paths[n].exists()]
    for n in tqdm(missing, desc="candidates", initial=number - len(missing), total=number, unit="shard"):
        chosen = list(range(n * shard_size, min((n + 1) * shard_size, len(examples))))
        made = _make(policy, examples, chosen, decoding, rewards, batch_size, seed)
        lines = [json.dumps(rows[i] | made[i], ensure_ascii=False) + "\n" for i in chosen]
        _write_aside(paths[n], "".join(lines))
    if missing or not (folder / OUTPUT).exists():  # else others may be reading it
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
            torch.manual_seed(Randomness(seed, 0).key("candidates", part[0].index))
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
        return
    _write_aside(path, json.dumps(settings, indent=1))


def _write_aside(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


class FreshTargets:
    """The policy's latest sample for every example that has one: {example: (ids, words)}."""

    file_name = "static_targets.jsonl"

    def __init__(self) -> None:
        self.texts: dict[int, tuple[list[int], list[int]]] = {}

    def refresh(self, policy: Policy, batch: Batch, args: Any, randomness: Randomness) -> None:
        """Sample a new static target for every example of the batch; an empty one changes nothing.

        One example at a time, so that its sample depends on its own random numbers only. Every process learns the
        samples of all.
        """
        new: dict[int, tuple[list[int], list[int]]] = {}
        devices = [policy.device] if policy.device.type == "cuda" else []
        for b, example in enumerate(batch.index.tolist()):
            keep = batch.source.keep_mask[b]
            source = Text(batch.source.ids[b][keep][None], keep[keep][None], batch.source.words[b][keep][None])
            longest = policy.longest_output(source, args.max_completion_length)
            decoding = Decoding(
                do_sample=True,
                temperature=args.temperature,
                top_k=args.top_k,
                top_p=args.top_p,
                max_new_tokens=longest,
            )
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(randomness.key("fresh", example))
                [ids] = policy.generate(source, decoding)
            [text] = policy.decode([ids])
            if text:
                [encoded] = policy.encode_targets([text], [batch.columns["prompt"][b]], longest)
                new[example] = (encoded.ids, encoded.words)
        for part in _from_all_processes(new, args):
            self.texts |= part

    def replace(self, static: Text, index: Tensor, pad_id: int) -> Text:
        """The static targets, with the fresh ones in the place of those that have one."""
        keep_mask = static.keep_mask
        kept = [
            self.texts.get(example, (static.ids[b][keep_mask[b]].tolist(), static.words[b][keep_mask[b]].tolist()))
            for b, example in enumerate(index.tolist())
        ]
        length = max(len(ids) for ids, _ in kept)
        ids = torch.tensor([ids + [pad_id] * (length - len(ids)) for ids, _ in kept])
        words = torch.tensor([words + [-1] * (length - len(words)) for _, words in kept])
        keep = torch.tensor([[n < len(ids) for n in range(length)] for ids, _ in kept])
        return Text(ids, keep, words).to(static.ids.device)

    def save(self, folder: Path) -> None:
        lines = [
            json.dumps({"example": example, "ids": ids, "words": words}) + "\n"
            for example, (ids, words) in sorted(self.texts.items())
        ]
        (folder / self.file_name).write_text("".join(lines))

    def load(self, folder: Path) -> None:
        path = folder / self.file_name
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.texts = {row["example"]: (row["ids"], row["words"]) for row in rows}


def _from_all_processes(new: Any, args: Any) -> list[Any]:
    if args.world_size == 1:
        return [new]
    from accelerate.utils import gather_object

    return gather_object([new])
