"""The cases of a benchmark, and their results as stored in bench.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self, cast

from semioffline.experiments.provenance import Provenance
from semioffline.storage.records import Record


@dataclass(frozen=True)
class BenchPlan(Record):
    """What to measure."""

    models: list[str]
    shapes: list[str]
    methods: list[str]
    samples: list[int]
    settings: list[str]
    batch_sizes: list[int] = field(default_factory=lambda: [16])
    warmup: int = 8
    steps: int = 20
    window: int = 4
    candidates: int = 16
    on_policy_samples: int = 16
    reward: str = "rouge"
    device: str = "cpu"
    dtype: str = "float32"
    arguments: dict[str, object] = field(default_factory=dict)
    """Further settings of the trainer."""


class Case(NamedTuple):
    model: str
    shape: str
    batch_size: int
    setting: str
    method: str
    samples: int
    """K; 0 for methods that have none."""


@dataclass(frozen=True)
class Measured(Record):
    """The measurements of one case."""

    seconds: float
    """Seconds per step, the median over windows."""
    fastest: float
    slowest: float
    windows: int
    window: int
    """Number of steps in a window."""
    processes: int
    tokens_per_second: float
    peak_mb: float | None = None
    reserved_mb: float | None = None
    """Reserved memory on a CUDA device, which includes that of graphs."""
    seconds_reward: float | None = None
    """Median seconds of scoring in a step; None without a reward."""
    seconds_reward_wait: float | None = None


@dataclass(frozen=True)
class CaseResult(Record):
    """One case: its measurements, or its error. It is one flat object in bench.json."""

    case: Case
    source: int
    """Number of tokens of a source."""
    target: int
    measured: Measured | None = None
    error: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    """to_ft, memory_to_ft, to_mft-2, memory_to_mft-2: seconds and memory divided by those of ft and mft-2."""

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        found = dict(data)
        measured = Measured.from_json(found) if "seconds" in found else None
        ratios = {name: value for name, value in found.items() if name.startswith(("to_", "memory_to_"))}
        case = Case(**{name: found[name] for name in Case._fields})  # type: ignore[arg-type]
        source, target = cast(int, found["source"]), cast(int, found["target"])
        return cls(case, source, target, measured, str(found.get("error", "")), cast(dict[str, float], ratios))

    def to_json(self) -> dict[str, object]:
        outcome: dict[str, object] = {"error": self.error} if self.measured is None else self.measured.to_json()
        return {**self.case._asdict(), "source": self.source, "target": self.target, **outcome, **self.ratios}


@dataclass(frozen=True)
class BenchResult(Record):
    """The content of bench.json."""

    about: Provenance
    plan: BenchPlan
    rows: list[CaseResult]

    def to_json(self) -> dict[str, object]:
        return {"kind": "bench"} | super().to_json()
