"""Every method from the same start, on the same data, for the same budget; then one table."""

from __future__ import annotations

import gc
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from semioffline.config import SemiOfflineConfig
from semioffline.evaluation import bootstrap_interval, paired_p_value, write_predictions
from semioffline.policy import Policy
from semioffline.trainer import SemiOfflineTrainer

PROBE_WARM, PROBE_TIMED = 3, 8


@dataclass
class Plan:
    """What is compared. `settings` builds the config of one method and seed; `load` the policy that all start from."""

    folder: Path
    methods: list[str]
    seeds: dict[str, list[int]]
    rewards: list[Any]
    rows: Any
    dev: Any
    test: Any
    load: Callable[[], Policy]
    settings: Callable[..., SemiOfflineConfig]
    budget_seconds: float | None
    budget_steps: int | None
    reference: str = "semi_offline"
    evaluations: int = 4
    extra: dict[str, Any] = field(default_factory=dict)


def compare(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run what is not done yet, and sum up. Stopped and started again, it goes on where it was."""
    for method in plan.methods:
        for seed in plan.seeds[method]:
            folder = plan.folder / "runs" / f"{method}-seed{seed}"
            if (folder / "result.json").exists():
                say(f"{method}, seed {seed}: done before")
                continue
            say(f"{method}, seed {seed}")
            _run(plan, method, seed, folder)
    return summarise(plan)


def _run(plan: Plan, method: str, seed: int, folder: Path) -> None:
    steps = plan.budget_steps or _steps_for(plan, method)
    trainer = _trainer(plan, method, seed, folder, steps, eval_steps=max(1, steps // plan.evaluations))
    started = time.perf_counter()
    with peak_memory() as peak:
        trainer.train(resume_from_checkpoint=True)
    wall = time.perf_counter() - started
    examples = trainer.prepare(plan.test)
    evaluation = trainer.evaluate_outputs(examples)
    write_predictions(folder / "predictions.jsonl", evaluation, examples)
    meter = trainer.policy.meter.per_input()
    curve = _curve(folder, trainer, meter["forward_passes"])
    result = {
        "method": method,
        "seed": seed,
        "steps": trainer.state.global_step,
        "seconds": _last_seconds(folder),
        "wall_seconds": wall,
        "peak_mb": peak.get("mb"),
        "cost_per_input": meter,
        "metrics": evaluation.result(seed=seed),
        "values": evaluation.values,
        "curve": curve,
    }
    aside = folder / "result.json.part"
    aside.write_text(json.dumps(result))
    os.replace(aside, folder / "result.json")
    del trainer
    gc.collect()


def _trainer(plan: Plan, method: str, seed: int, folder: Path, steps: int, eval_steps: int) -> SemiOfflineTrainer:
    args = plan.settings(method, output_dir=str(folder), seed=seed, max_steps=steps, eval_steps=eval_steps)
    return SemiOfflineTrainer(plan.load(), plan.rewards, args, plan.rows, plan.dev)


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.times.append(-time.perf_counter())

    def on_step_end(self, args, state, control, **kwargs):
        self.times[-1] += time.perf_counter()


def _steps_for(plan: Plan, method: str) -> int:
    """Steps that fit into the budget, from a few timed ones; kept in plan.json, so that a restart plans the same."""
    path = plan.folder / "plan.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if method not in known:
        probe = plan.folder / "probe" / method
        trainer = _trainer(plan, method, 0, probe, PROBE_WARM + PROBE_TIMED, eval_steps=10**9)
        clock = _Clock()
        trainer.add_callback(clock)
        trainer.train()
        seconds = statistics.median(clock.times[PROBE_WARM:])
        assert plan.budget_seconds is not None
        known[method] = {"seconds_per_step": seconds, "steps": max(1, round(plan.budget_seconds / seconds))}
        path.write_text(json.dumps(known, indent=1))
    return known[method]["steps"]


def _curve(folder: Path, trainer: SemiOfflineTrainer, passes: float) -> list[dict[str, Any]]:
    """Reward on validation against what was spent: seconds of training steps, forward passes over all inputs."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    args = trainer.args
    per_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size * passes
    return [
        {
            "step": line["step"],
            "seconds": line["time/train"],
            "forward_passes": line["step"] * per_step,
            "reward": line["eval_reward"],
        }
        for line in lines
        if "eval_reward" in line
    ]


def _last_seconds(folder: Path) -> float:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["time/train"]


def summarise(plan: Plan) -> dict[str, Any]:
    """One entry for each method: seeds averaged input by input, interval over inputs, p against the reference."""
    results: dict[str, list[dict[str, Any]]] = {}
    for method in plan.methods:
        paths = [plan.folder / "runs" / f"{method}-seed{seed}" / "result.json" for seed in plan.seeds[method]]
        results[method] = [json.loads(path.read_text()) for path in paths]
    per_input = {m: _mean_values(rs) for m, rs in results.items()}
    metrics = list(per_input[plan.methods[0]])
    methods = {}
    for method, runs in results.items():
        scores = {}
        for name in metrics:
            values = per_input[method][name]
            low, high = bootstrap_interval(values)
            reference = per_input.get(plan.reference, {}).get(name)
            p = paired_p_value(values, reference) if reference is not None and method != plan.reference else None
            signature = runs[0]["metrics"][name]["signature"]
            scores[name] = {"mean": float(np.nanmean(values)), "low": low, "high": high, "p": p, "signature": signature}
        methods[method] = {
            "seeds": [run["seed"] for run in runs],
            "metrics": scores,
            "forward_passes": _mean(runs, lambda r: r["cost_per_input"]["forward_passes"]),
            "cost_per_input": runs[0]["cost_per_input"],
            "steps": _mean(runs, lambda r: r["steps"]),
            "seconds": _mean(runs, lambda r: r["seconds"]),
            "peak_mb": None if any(r["peak_mb"] is None for r in runs) else _mean(runs, lambda r: r["peak_mb"]),
            "curve": runs[0]["curve"],
        }
    return {"metrics": metrics, "reference": plan.reference, "methods": methods} | plan.extra


def _mean(runs: list[dict[str, Any]], get: Callable[[dict[str, Any]], float]) -> float:
    return float(np.mean([get(run) for run in runs]))


def _mean_values(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    names = runs[0]["values"]
    return {name: np.mean([run["values"][name] for run in runs], axis=0).tolist() for name in names}


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Megabytes at the peak: of the GPU where there is one, else resident memory of this process, looked at often."""
    found: dict[str, float] = {}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        yield found
        found["mb"] = torch.cuda.max_memory_allocated() / 2**20
        return
    status, done = Path("/proc/self/statm"), threading.Event()
    if not status.exists():
        yield found
        return
    page = os.sysconf("SC_PAGE_SIZE")

    def watch() -> None:
        while not done.wait(0.05):
            found["mb"] = max(found.get("mb", 0.0), int(status.read_text().split()[1]) * page / 2**20)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
