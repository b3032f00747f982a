"""Generate static targets: N candidates for each input, scored and sorted. An interrupted run continues without losing
or repeating work."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import text_uniforms
from semioffline.data.examples import Collator, Example, Examples
from semioffline.data.shards import DIGEST, digest_columns
from semioffline.engines.base import Tell
from semioffline.errors import UserError, changes
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.printing import Activity, activity, figure, left
from semioffline.scoring.calls import reward_columns
from semioffline.scoring.reward_set import RewardSet
from semioffline.storage.files import join_files, make_folder, read_json, write_atomically

OUTPUT = "candidates.jsonl"


class Candidates(TypedDict):
    """The columns that are added to a row, best candidate first."""

    candidates: list[str]
    candidate_rewards: list[float]


@dataclass(frozen=True)
class CandidateFolder:
    """The folder of candidates. The work is cut into shards, each of which has a file that is complete or not there."""

    path: Path
    rows: int
    shard_size: int

    def shard(self, number: int) -> Path:
        return self.path / "shards" / f"{number:05d}-of-{self.shards:05d}.jsonl"

    @property
    def shards(self) -> int:
        return math.ceil(self.rows / self.shard_size)

    def begin(self, settings: Mapping[str, object]) -> list[int]:
        """The numbers of the missing shards. Others of the same folder must have been made with these settings."""
        make_folder(self.path / "shards")
        begun = any((self.path / "shards").iterdir()) or (self.path / OUTPUT).exists()  # else nothing was made
        check_settings(self.path / "settings.json", settings, "candidates", begun)
        return [n for n in range(self.shards) if not self.shard(n).exists()]

    def write(self, number: int, stored: Sequence[Mapping[str, object]], made: Sequence[Candidates]) -> None:
        lines = [json.dumps({**row, **own}, ensure_ascii=False, default=str) + "\n" for row, own in zip(stored, made)]
        write_atomically(self.shard(number), "".join(lines))

    def join(self, is_new: bool) -> Path:
        """All shards in one file. is_new: whether a shard was made; else others may be reading the file."""
        if is_new or not (self.path / OUTPUT).exists():
            join_files(self.path / OUTPUT, [self.shard(n) for n in range(self.shards)])
        return self.path / OUTPUT


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
    place = CandidateFolder(Path(folder), len(examples), shard_size)
    missing = place.begin({**settings, **noted(place, decoding, seed, digest_rows(examples))})
    if missing:
        check_finite(policy)
    starts = {n: n * shard_size for n in missing}
    parts = {n: examples.examples[start : start + shard_size] for n, start in starts.items()}
    with activity(is_told=True) as shown:
        progress = CandidateProgress(shown, len(examples), sum(map(len, parts.values())))
        for n, part in parts.items():
            made = make_candidates(policy, part, decoding, rewards, batch_size, seed, progress.add)
            place.write(n, [rows[starts[n] + i] for i in range(len(part))], made)
    return place.join(is_new=bool(missing))


def noted(place: CandidateFolder, decoding: Decoding, seed: int, digest: str) -> dict[str, object]:
    """What candidates depend on, whatever the command: for settings.json."""
    own = {"rows": place.rows, "decoding": decoding.signature(), "seed": seed, "shard_size": place.shard_size}
    return own | {DIGEST: digest}


def check_finite(policy: Policy) -> None:
    if not policy.is_finite():  # beams would take any tokens for the best, and sampling ends in an error
        raise UserError(
            "the model's weights contain NaN or infinity: its training was not stable; use an earlier checkpoint"
        )


@dataclass(frozen=True)
class CandidateScores:
    """The rewards of some candidates, summed over inputs."""

    inputs: int
    scored: int
    """Inputs with a candidate that has a reward."""
    best: float
    mean: float

    @classmethod
    def of(cls, made: Sequence[Candidates]) -> CandidateScores:
        scored = [each["candidate_rewards"] for each in made if each["candidate_rewards"]]
        return cls(len(made), len(scored), sum(map(max, scored)), sum(map(fmean, scored)))


class CandidateProgress:
    """Shows the progress and the rewards of the candidates, batch by batch."""

    def __init__(self, shown: Activity, total: int, to_do: int) -> None:
        self.shown, self.total, self.to_do = shown, total, to_do
        self.sum = CandidateScores(0, 0, 0.0, 0.0)
        self.began = time.monotonic()
        self.show()

    def add(self, scores: CandidateScores) -> None:
        before = self.sum
        self.sum = CandidateScores(
            before.inputs + scores.inputs,
            before.scored + scores.scored,
            before.best + scores.best,
            before.mean + scores.mean,
        )
        self.show()

    def show(self) -> None:
        done, scored = self.sum.inputs, self.sum.scored
        parts = [f"candidates for {self.total - self.to_do + done}/{self.total} inputs"]
        parts += [left(self.began, done, self.to_do - done)] if done else []
        if scored:
            parts += [f"reward {figure(self.sum.mean / scored)}", f"best {figure(self.sum.best / scored)}"]
        self.shown.show(*parts)


def make_candidates(
    policy: Policy,
    examples: Sequence[Example],
    decoding: Decoding,
    rewards: RewardSet,
    batch_size: int,
    seed: int,
    tell: Tell,
) -> list[Candidates]:
    """Return the candidates of each example of a shard, made in batches of similar lengths. tell: called with the
    CandidateScores of each batch."""
    collate, many = Collator(policy.tokens.pad_id), decoding.num_return_sequences
    made: dict[int, Candidates] = {}
    by_length = sorted(examples, key=lambda example: -len(example.source.ids))  # little padding
    for start in range(0, len(by_length), batch_size):
        part = by_length[start : start + batch_size]
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
        tell(CandidateScores.of([made[example.index] for example in part]))
    return [made[example.index] for example in examples]


def digest_rows(examples: Examples) -> str:
    """Of what the rows say, in their order: all that candidates and their rewards are made from."""
    return digest_columns(example.columns for example in examples.examples)


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
