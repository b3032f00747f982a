"""Candidates as a job for an engine: a worker loads model and rewards once, and writes one file for each shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semioffline.config import MethodConfig
from semioffline.data.candidates import (
    CandidateFolder,
    CandidateProgress,
    check_finite,
    make_candidates,
    noted,
)
from semioffline.data.examples import Examples
from semioffline.data.lengths import Truncation, text_limits
from semioffline.data.options import ModelOptions
from semioffline.data.shards import RowShard, Split
from semioffline.engines.base import Engine, Tell
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.printing import activity
from semioffline.scoring.reward_set import RewardSet


def absolute(name: str) -> str:
    """A file or folder by its whole path; any other name as it is."""
    place, colon, function = name.rpartition(":")
    if place.endswith(".py") and Path(place).is_file():
        return f"{Path(place).resolve()}{colon}{function}"
    return str(Path(name).resolve()) if Path(name).exists() else name


def model_place(model: ModelOptions) -> dict[str, Path]:
    """The model's folder, if it is one: all workers must see it."""
    path = Path(str(model.model))
    return {"--model": path} if path.is_absolute() else {}


@dataclass(frozen=True)
class CandidateJob:
    """What a worker needs to make candidates."""

    folder: CandidateFolder
    model: ModelOptions
    rewards: list[str]
    config: dict[str, Any]
    """Settings of MethodConfig for the lengths of texts."""
    decoding: Callable[[int], Decoding]
    """The longest candidate in tokens -> how to decode."""
    batch_size: int
    seed: int
    timeout: float | None = None
    cuda_graphs: bool = False
    loaded: list[RewardSet] = field(default_factory=list)
    """The rewards, where they are loaded already in this process."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"loaded": []}

    def places(self) -> dict[str, Path]:
        return {"--output_dir": self.folder.path} | model_place(self.model)

    def check(self) -> None:
        """Load the rewards: what is wrong with them is reported before the data is read."""
        self.loaded.append(self._load_rewards())

    def _load_rewards(self) -> RewardSet:
        return RewardSet(self.rewards, device=self.model.checked_device(), timeout=self.timeout)

    def load(self) -> CandidateWorker:
        rewards = self.loaded[0] if self.loaded else self._load_rewards()
        device = self.model.checked_device()
        policy = self.model.load().to(device)
        if self.cuda_graphs:
            policy.generator.replay_decoding()
        args = MethodConfig(output_dir=str(self.folder.path), use_cpu=device == "cpu", **self.config)
        return CandidateWorker(self, policy, rewards, args)


class CandidateWorker:
    """Makes the candidates of shards."""

    def __init__(self, job: CandidateJob, policy: Policy, rewards: RewardSet, args: MethodConfig) -> None:
        self.job, self.policy, self.rewards = job, policy, rewards
        self.limits, self.side = text_limits(policy, args), args.truncation_side
        self.decoding = job.decoding(self.limits[1])
        self._is_checked = False

    @property
    def about(self) -> Mapping[str, Any]:
        return {"decoding": self.decoding}

    def make(self, shard: RowShard, tell: Tell) -> Truncation:
        """Write the file of a shard. Returns what was cut."""
        if not self._is_checked:
            check_finite(self.policy)
            self._is_checked = True
        examples = Examples(shard.rows, self.policy, *self.limits, self.side, progress=False, first=shard.first)
        made = make_candidates(
            self.policy, examples.examples, self.decoding, self.rewards, self.job.batch_size, self.job.seed, tell
        )
        stored = [{name: values[i] for name, values in shard.stored.columns.items()} for i in range(len(made))]
        self.job.folder.write(shard.number, stored, made)
        return examples.truncation


def run_candidates(
    engine: Engine, job: CandidateJob, split: Split, digest: str, settings: Mapping[str, object]
) -> tuple[Path, Truncation]:
    """Make the shards that are missing, here or on a cluster, and join them. Returns the file and what was cut."""
    place, cut = job.folder, Truncation()
    with engine.open(job, place.path) as workers:
        own = noted(place, workers.about["decoding"], job.seed, digest)
        missing = place.begin({**settings, **own})
        to_do = sum(min(place.shard_size, place.rows - n * place.shard_size) for n in missing)
        with activity(is_told=True) as shown:
            progress = CandidateProgress(shown, place.rows, to_do)
            for made in workers.make(split.shards(place.shard_size, set(missing)), progress.add):
                cut = cut.join(made.result)
    return place.join(is_new=bool(missing)), cut
