"""Generate static targets: N candidates for each input, scored and sorted. An interrupted run continues without losing
or repeating work."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import text_uniforms
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError, changes
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.printing import Activity, activity, figure, left
from semioffline.scoring.calls import reward_columns
from semioffline.scoring.reward_set import RewardSet
from semioffline.storage.files import make_folder, read_json, write_atomically

OUTPUT = "candidates.jsonl"
DIGEST = "digest"
"""The key of the digest of the rows in the settings file."""


class Candidates(TypedDict):
    """The columns that are added to a row, best candidate first."""

    candidates: list[str]
    candidate_rewards: list[float]


def write_candidates(
    policy: Policy,
    examples: Examples,
    rows: Any,
    decoding: Decoding,
    rewards: RewardSet,
    folder: str | Path,
    settings: Mapping[str, object],
    batch_size: int = 16,
    shard_size: int = 256,
    seed: int = 0,
) -> Path:
    """Write folder/candidates.jsonl: `rows` with the columns `candidates` (best first) and `candidate_rewards` added.

    `rows` are those of `examples` as they are stored, so that the new file is read with the same settings as the old.

    The work is divided into shards. A shard is renamed when it is complete, so a killed run continues with the first
    missing shard. Random numbers depend on the example: a shard is the same with and without an interruption.
    `settings` and a digest of the rows are stored next to the shards; with others, the folder is rejected. Only the
    batch size may change, because one may have been too large.
    """
    folder = Path(folder)
    shards = folder / "shards"
    make_folder(shards)
    own = {"rows": len(examples), "decoding": decoding.signature(), "seed": seed, "shard_size": shard_size}
    own |= {DIGEST: digest_rows(examples)}
    begun = any(shards.iterdir()) or (folder / OUTPUT).exists()  # else nothing was made with what is noted there
    check_settings(folder / "settings.json", {**settings, **own}, "candidates", begun)
    number = math.ceil(len(examples) / shard_size)
    paths = [shards / f"{n:05d}-of-{number:05d}.jsonl" for n in range(number)]
    missing = [n for n in range(number) if not paths[n].exists()]
    if missing and not policy.is_finite():  # beams would take any tokens for the best, and sampling ends in an error
        raise UserError(
            "the model's weights contain NaN or infinity: its training was not stable; use an earlier checkpoint"
        )
    shares = {n: list(range(n * shard_size, min((n + 1) * shard_size, len(examples)))) for n in missing}
    with activity(is_told=True) as shown:
        progress = _Progress(shown, len(examples), sum(map(len, shares.values())))
        for n, chosen in shares.items():
            made = _make(policy, examples, chosen, decoding, rewards, batch_size, seed, progress)
            lines = [json.dumps(rows[i] | made[i], ensure_ascii=False, default=str) + "\n" for i in chosen]
            write_atomically(paths[n], "".join(lines))
    if missing or not (folder / OUTPUT).exists():  # else others may be reading it
        write_atomically(folder / OUTPUT, "".join(path.read_text(encoding="utf-8") for path in paths))
    return folder / OUTPUT


class _Progress:
    """Shows the progress and the rewards of the candidates, batch by batch."""

    def __init__(self, shown: Activity, total: int, to_do: int) -> None:
        self.shown, self.total, self.to_do = shown, total, to_do
        self.done = 0
        self.best: list[float] = []
        self.mean: list[float] = []
        self.began = time.monotonic()
        self.show()

    def add(self, made: list[Candidates]) -> None:
        self.done += len(made)
        scored = [each["candidate_rewards"] for each in made if each["candidate_rewards"]]
        self.best += [max(each) for each in scored]
        self.mean += [fmean(each) for each in scored]
        self.show()

    def show(self) -> None:
        parts = [f"candidates for {self.total - self.to_do + self.done}/{self.total} inputs"]
        parts += [left(self.began, self.done, self.to_do - self.done)] if self.done else []
        parts += [f"reward {figure(fmean(self.mean))}", f"best {figure(fmean(self.best))}"] if self.best else []
        self.shown.show(*parts)


def _make(
    policy: Policy,
    examples: Examples,
    chosen: list[int],
    decoding: Decoding,
    rewards: RewardSet,
    batch_size: int,
    seed: int,
    progress: _Progress,
) -> dict[int, Candidates]:
    """Generate and score candidates. Return a map from row number to its candidates."""
    collate, many = Collator(policy.tokens.pad_id), decoding.num_return_sequences
    made: dict[int, Candidates] = {}
    chosen = sorted(chosen, key=lambda n: -len(examples[n].source.ids))  # little padding
    for start in range(0, len(chosen), batch_size):
        part = [examples[n] for n in chosen[start : start + batch_size]]
        batch = collate(part).to(policy.device)
        uniforms = None
        if decoding.strategy == "sampling":
            uniforms = text_uniforms(batch.index, many, decoding.max_new_tokens, Randomness(seed, 0), "candidates")
        with policy.meter.paused():
            ids = policy.generate(batch.source, decoding, uniforms=uniforms)
        texts = policy.tokens.decode(ids)
        sums, _ = rewards(reward_columns(batch.columns, texts, ids, many))
        for i, example in enumerate(part):
            pairs = zip(sums[i * many : (i + 1) * many], texts[i * many : (i + 1) * many], strict=True)
            # empty texts cannot be trained on, unscored ones cannot be ranked
            kept = sorted((p for p in pairs if p[1] and not math.isnan(p[0])), key=lambda p: -p[0])
            made[example.index] = {"candidates": [t for _, t in kept], "candidate_rewards": [r for r, _ in kept]}
        progress.add([made[example.index] for example in part])
    return made


def digest_rows(examples: Examples) -> str:
    """Return a digest of the content of rows, in their order: everything that candidates and rewards depend on. Values
    that are neither text nor number count with their type alone, because their printed form may change from one process
    to the next."""
    return digest_columns(example.columns for example in examples.examples)


def digest_columns(rows: Iterable[Mapping[str, object]]) -> str:
    """Return the digest of rows given as columns."""
    encode = json.JSONEncoder(default=lambda value: type(value).__name__).encode
    digest = hashlib.blake2b(digest_size=16)
    for columns in rows:
        digest.update(encode([[name, columns[name]] for name in sorted(columns)]).encode())
    return digest.hexdigest()


def check_settings(path: Path, settings: Mapping[str, object], what: str, begun: bool = True) -> None:
    """Reject a folder whose content was made with other settings. Store the settings in a new folder, and in one where
    nothing was made yet (begun=False)."""
    if path.exists() and begun:
        before = read_json(path)
        told = changes(before, settings, (settings.keys() | before.keys()) - {DIGEST})
        if told:
            raise UserError(f"{path.parent} holds {what} made with other settings ({told}): use another --output_dir")
        known = DIGEST in before and DIGEST in settings  # folders of earlier versions do not say
        if known and before[DIGEST] != settings[DIGEST]:
            raise UserError(
                f"{path.parent} holds {what} of other rows: the data has been changed since (its prompts, completions, "
                "references or other columns): use another --output_dir"
            )
        return
    write_atomically(path, json.dumps(dict(settings), indent=1))
