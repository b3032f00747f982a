"""The commands that the campaign disturbs, and what must be as if nothing had happened: all but times."""

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.toy import read_log, save_model

TIMES = re.compile(r"seconds|runtime|per_second|^time/|^timed$|peak_mb|matched_after|^preparation$")
"""Keys of results that a clock or the machine decides."""
TEXT = {"max_prompt_length": 24, "max_completion_length": 16, "device": "cpu"}
TRAINING = TEXT | {
    "report_to": "none", "disable_tqdm": True, "learning_rate": 0.01, "num_samples": 4, "seed": 3,
    "per_device_train_batch_size": 4, "rl_weight": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command line and its result."""

    first: list[str]
    again: tuple[str, ...]
    """Flags with which it continues."""
    result: Callable[[Path], Any]

    def argv(self, folder: Path, again: bool = False) -> list[str]:
        return [*self.first, "--output_dir", str(folder), *(self.again if again else ())]


def flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def build_commands(folder: Path) -> dict[str, Command]:
    model = str(save_model(folder / "model", "bart", dropout=0.1))
    steps = {"max_steps": 6, "save_steps": 2, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 4}
    limits = {"task": "ads", "limit": 12, "eval_limit": 4, "model": model}
    train = limits | TRAINING | steps | {"save_total_limit": 2, "gradient_accumulation_steps": 2}
    candidates = limits | TEXT | {"strategy": "sampling", "num_candidates": 3, "batch_size": 2, "shard_size": 4}
    evaluate = limits | TEXT | {"batch_size": 2, "shard_size": 4}
    compare = {"task": "ads", "limit": 12} | TRAINING | {"start_steps": 2, "budget_steps": 2, "evaluations": 1}
    compare |= {"num_candidates": 2, "candidate_rows": 8}
    run = limits | TEXT | {"limit": 60, "seed": 3, "batch_size": 4, "num_samples": 4, "mft_steps": 4, "rl_steps": 6}
    run |= {"more_mft_steps": 5, "eval_steps": 2, "num_candidates": 2, "static_target": "worst", "validation_inputs": 4}
    run |= {"test_inputs": 6, "mft_learning_rate": 0.01, "rl_learning_rate": 0.01}
    return {
        "run": Command(["run", *flags(run)], (), run_result),
        "train": Command(["train", "semi_offline", *flags(train)], ("--resume",), train_result),
        "train actor_critic": Command(["train", "actor_critic", *flags(_without(train))], ("--resume",), train_result),
        "candidates": Command(["candidates", *flags(candidates)], (), candidates_result),
        "evaluate": Command(["evaluate", *flags(evaluate)], (), evaluate_result),
        "compare": Command(["compare", "--methods", "brio", "semi_offline", *flags(compare)], (), compare_result),
    }


def _without(settings: dict[str, Any]) -> dict[str, Any]:
    """Actor-critic draws one sample."""
    return {name: value for name, value in settings.items() if name != "num_samples"}


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if not TIMES.search(name)}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def read(path: Path) -> Any:
    return without_times(json.loads(path.read_text()))


def checksum(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def model_result(folder: Path) -> dict[str, int]:
    """Every file. The card names the run folder."""
    found = {path.name: checksum(path) for path in sorted(folder.iterdir())}
    if (folder / "README.md").exists():
        card = (folder / "README.md").read_text().replace(f"# {folder.parent.name}\n", "")
        found["README.md"] = zlib.crc32(card.encode())
    return found


def train_result(folder: Path) -> Any:
    """Every file of the model, the log, the predictions, what is reported, and the checkpoints that are kept."""
    return {
        "model": model_result(folder / "model"),
        "log": without_times(read_log(folder)),
        "predictions": (folder / "predictions.jsonl").read_text(),
        "result": read(folder / "result.json"),
        "checkpoints": sorted(path.name for path in folder.glob("*checkpoint*")),
    }


def candidates_result(folder: Path) -> Any:
    return (folder / "candidates.jsonl").read_text()


def evaluate_result(folder: Path) -> Any:
    return {"predictions": (folder / "predictions.jsonl").read_text(), "result": read(folder / "result.json")}


def run_result(folder: Path) -> Any:
    """The models, logs, candidates and outputs of all stages, and what is reported."""
    result = read(folder / "result.json")
    result["about"].pop("command")  # it names the folder
    stages = ("initial", "mft", "semi_offline", "more_mft")
    weights = {stage: folder / stage / "model/model.safetensors" for stage in stages[1:]}
    return {
        "result": result,
        "candidates": candidates_result(folder / "candidates"),
        "models": {stage: checksum(path) for stage, path in weights.items()},
        "logs": {stage: without_times(read_log(folder / stage)) for stage in stages[1:]},
        "predictions": {stage: (folder / stage / "predictions.jsonl").read_text() for stage in stages},
        "before": {stage: (folder / stage / "before.jsonl").read_text() for stage in stages[1:]},
        "checkpoints": sorted(path.name for path in folder.glob("*/*checkpoint*")),
    }


def compare_result(folder: Path) -> Any:
    comparison = read(folder / "comparison.json")
    comparison["about"].pop("command")  # it names the folder
    runs = sorted((folder / "runs").iterdir())
    return {
        "start": {path.name: checksum(path) for path in sorted((folder / "start/model").iterdir())},
        "candidates": candidates_result(folder / "candidates"),
        "comparison": comparison,
        "table": sorted(path.name for path in folder.glob("reward-*")),
        "predictions": {run.name: (run / "predictions.jsonl").read_text() for run in runs},
        "logs": {run.name: without_times(read_log(run)) for run in runs if (run / "metrics.jsonl").exists()},
    }
