"""Every method from the same start, on the same data, for the same budget; then one table."""

from __future__ import annotations

import gc
import json
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from semioffline.config import SemiOfflineConfig
from semioffline.cuda.functions import recordings
from semioffline.data.candidates import write_aside
from semioffline.errors import UserError, changes
from semioffline.evaluation.metrics import write_predictions
from semioffline.experiments.summary import labelled_folders, run_folder, summarise
from semioffline.methods import load_method
from semioffline.policy.meter import peak_memory
from semioffline.policy.policy import Policy
from semioffline.training.trainer import SemiOfflineTrainer

__all__ = ["START", "Plan", "compare", "labelled_folders", "run_one", "summarise", "time_methods"]
PROBE_WARM, PROBE_TIMED = 3, 5
"""Steps before a method is timed, and steps that are timed, at the least."""
PROBE_SHARE, PROBE_SECONDS = 0.3, 4.0
"""A method is also timed for this share of the budget, at most so many seconds: memory and kernels must be warm."""
PROBE_MOST = 200
"""Steps after which timing ends in any case."""
PLAN = "plan.json"
START = "start"
"""The row of the model that all methods start from."""
LOOKED_AT = ["num_beams", "length_penalty", "no_repeat_ngram_size", "min_new_tokens", "max_completion_length"]
LOOKED_AT += ["max_prompt_length", "truncation_side", "per_device_eval_batch_size", "bf16", "fp16", "reward_weights"]
"""Settings that the reward on validation depends on."""


FREE = {"output_dir", "logging_dir", "run_name", "eval_on_start", "reward_workers", "report_to", "disable_tqdm"}
"""Settings that a run does not depend on."""


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
    steps: dict[str, int] = field(default_factory=dict)
    """method -> its own number of steps, whatever the budget"""
    reference: str = "semi_offline"
    evaluations: int = 6
    """How often a method is looked at on validation: at the end, at half of the budget, at a quarter, ..."""
    keep: str = "best"
    """Which of these looks is tested: the best, or the last."""
    jobs: int = 1
    """How many runs at a time. More than one: with a budget in seconds each method is timed alone first, and its
    seconds come from there; with one in steps nothing is known of its seconds."""
    command: Callable[[str, int], list[str]] | None = None
    """What runs one method and seed in a process of its own, for jobs > 1."""
    about: dict[str, Any] = field(default_factory=dict)
    """Where and how this process runs: its command, commit and versions."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """What all runs depend on and `settings` does not tell."""
    beside: dict[str, Path] = field(default_factory=dict)
    """label -> the folder of a finished comparison with the same start, whose runs stand in the table, too"""
    extra: dict[str, Any] = field(default_factory=dict)

    def run_folder(self, method: str, seed: int) -> Path:
        return run_folder(self.folder, method, seed)

    def every(self) -> list[tuple[str, int]]:
        """Every method with its first seed, then with its second: what is cut off has something of each, and runs of
        one method that want much memory are seldom side by side."""
        turns = range(max(len(self.seeds[method]) for method in self.methods))
        return [(method, seed) for n in turns for method in self.methods for seed in self.seeds[method][n : n + 1]]

    def missing(self) -> list[tuple[str, int]]:
        return [run for run in self.every() if not (self.run_folder(*run) / "result.json").exists()]


def compare(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run what is not done yet, and sum up. Stopped and started again, it goes on where it was."""
    missing = plan.missing()
    for method, seed in plan.every():
        if (method, seed) not in missing:
            say(f"{method}, seed {seed}: done before")
            _check_done(plan, method, seed)
    if plan.jobs == 1:
        for method, seed in missing:
            say(f"{method}, seed {seed}")
            run_one(plan, method, seed)
        return summarise(plan)
    if plan.budget_steps is None:
        time_methods(plan, say, [method for method, _ in missing])
    stop = threading.Event()

    def one(run: tuple[str, int]) -> str | None:
        problem = None if stop.is_set() else _start(plan, *run, say)
        if problem and plan.missing() == missing:  # nothing has come to its end yet: the others would fail too
            stop.set()
        return problem

    with ThreadPoolExecutor(plan.jobs) as pool:
        problems = [problem for problem in pool.map(one, missing) if problem]
    if problems:
        more = f"; {len(problems) - 1} more failed" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{more}. What is done stays done: start again, or make a table with --only table")
    return summarise(plan)


def time_methods(plan: Plan, say: Callable[[str], None], methods: list[str]) -> None:
    """Time each of these methods alone, where that has not been done."""
    tokenised: dict[Any, Any] = {}
    for method in dict.fromkeys(methods):
        if method != START:
            say(f"{method}: timed alone")
            _timing(plan, method, tokenised)


def _start(plan: Plan, method: str, seed: int, say: Callable[[str], None]) -> str | None:
    """One run in a process of its own; what went wrong, or None."""
    assert plan.command is not None
    folder = plan.run_folder(method, seed)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    say(f"{method}, seed {seed}")
    with open(log, "w") as file:
        code = subprocess.run(plan.command(method, seed), stdout=file, stderr=subprocess.STDOUT).returncode
    if code == 0:
        return None
    last = (log.read_text(errors="replace").splitlines() or ["no output"])[-1]
    hint = ": fewer --jobs need less memory" if re.search("out ?of ?memory", last, re.IGNORECASE) else ""
    return f"{method}, seed {seed} ended with exit code {code}: {last} (all of it in {log}){hint}"


def run_one(plan: Plan, method: str, seed: int) -> None:
    """Train and test one method with one seed; result.json in its folder says that it is done."""
    folder = plan.run_folder(method, seed)
    timing = _timing(plan, method) if method != START and plan.budget_steps is None else {}
    steps = _steps(plan, method, timing)
    args = plan.settings(method, output_dir=str(folder), seed=seed, max_steps=max(steps, 1))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(_noted(plan, args), indent=1))
    (folder / "metrics.jsonl").unlink(missing_ok=True)  # of a run that was stopped
    first = _first_look(plan, method, args)
    args.eval_on_start = args.eval_on_start and first is None
    trainer = SemiOfflineTrainer(plan.load(), plan.rewards, args, plan.rows, plan.dev)
    looks = _Looks(trainer, steps, plan.evaluations, plan.keep, first)
    trainer.add_callback(looks)
    started = time.perf_counter()
    with peak_memory() as peak:
        if steps:
            trainer.train()  # from the start, also after a kill: what was best by then is not known
            looks.restore()
        else:
            trainer.evaluate()
    wall = time.perf_counter() - started
    examples = trainer.prepare(plan.test)
    evaluation = trainer.evaluate_outputs(examples)
    write_predictions(folder / "predictions.jsonl", evaluation, examples)
    meter = trainer.policy.meter.per_input()
    alone = timing if plan.jobs > 1 else {}
    curve = _curve(folder, trainer, meter["forward_passes"], alone, first)
    result = {
        "method": method,
        "seed": seed,
        "steps": trainer.state.global_step,
        "best_step": looks.best_step,
        "validation_inputs": len(plan.dev),
        "seconds": curve[-1]["seconds"] if plan.jobs == 1 or timing or not steps else None,
        "timed": _how_timed(plan, alone),
        "wall_seconds": wall,
        "peak_mb": peak.get("mb"),
        "cost_per_input": meter,
        "metrics": evaluation.result(seed=seed),
        "values": evaluation.values,
        "statistics": evaluation.statistics,
        "curve": curve,
        "about": plan.about,
    }
    write_aside(folder / "result.json", json.dumps(result))
    del trainer, looks
    _free()


def _noted(plan: Plan, args: SemiOfflineConfig) -> dict[str, Any]:
    """What a run was made with, as its settings.json has it."""
    budget = "seconds" if plan.budget_steps is None else "steps"
    return json.loads(json.dumps(args.to_dict() | {"budget": budget, "comparison": plan.made_with}, default=str))


def _check_done(plan: Plan, method: str, seed: int) -> None:
    """A run that is done stands in the table under the settings of today: they must be those that it was made with."""
    folder = plan.run_folder(method, seed)
    if not (folder / "settings.json").exists():
        return
    before = json.loads((folder / "settings.json").read_text())
    known = _known_timings(plan)
    timing = _planned(plan, known[method]) if method in known else {"steps": before["max_steps"]}
    args = plan.settings(method, output_dir=str(folder), seed=seed, max_steps=max(_steps(plan, method, timing), 1))
    now = _noted(plan, args)
    names = ["comparison", "eval_metrics", *LOOKED_AT] if method == START else now.keys() - FREE  # it is not trained
    told = changes(before, now, names)
    if told:
        raise UserError(f"{folder} is a run with other settings ({told}): use another --output_dir, or remove it")


def _how_timed(plan: Plan, alone: dict[str, Any]) -> str:
    if alone:
        return "alone, before the runs"
    return "in the run" if plan.jobs == 1 else "not at all: it ran beside others"


def _steps(plan: Plan, method: str, timing: dict[str, Any]) -> int:
    if method == START:
        return 0
    return plan.steps.get(method) or plan.budget_steps or timing["steps"]


def _first_look(plan: Plan, method: str, args: SemiOfflineConfig) -> float | None:
    """The reward on validation before the first step, where it is known: all methods have the start's weights then.
    Not for a method that is looked at in another way."""
    start = plan.run_folder(START, plan.seeds[START][0])
    if method == START or not (start / "result.json").exists():
        return None
    result, before = (json.loads((start / name).read_text()) for name in ("result.json", "settings.json"))
    now = args.to_dict()
    same = all(before.get(name) == now[name] for name in LOOKED_AT) and result["validation_inputs"] == len(plan.dev)
    return result["curve"][0]["reward"] if same else None


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class _Looks(TrainerCallback):
    """Evaluates on validation at the end, half of the steps, a quarter, ...; keeps the best weights.
    first: the reward of those that it starts from, if it is known."""

    def __init__(self, trainer: SemiOfflineTrainer, steps: int, evaluations: int, keep: str, first: float | None):
        self.model = trainer.policy.model
        self.due = {max(1, round(steps / 2**n)) for n in range(evaluations)}
        self.keep = keep
        self.best: float | None = None
        self.best_step: int | None = None
        self.weights: dict[str, torch.Tensor] = {}
        if first is not None:
            self._look(first, 0)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = state.global_step in self.due

    def on_evaluate(self, args, state, control, **kwargs):
        self._look(kwargs["metrics"]["eval_reward"], state.global_step)

    def _look(self, reward: float, step: int) -> None:
        if self.keep == "best" and (self.best is None or reward > self.best):
            self.best, self.best_step = reward, step
            self.weights = {name: weight.to("cpu", copy=True) for name, weight in self.model.state_dict().items()}

    def restore(self) -> None:
        if self.weights:
            self.model.load_state_dict(self.weights)


class _Clock(TrainerCallback):
    """Seconds of each step, with all that the device still had to do; stops training when there are enough."""

    def __init__(self, seconds: float, block: int = 0) -> None:
        """block: the method does something once in so many steps, from the second time on."""
        self.settled: list[float] = []
        """Of steps in which nothing was recorded."""
        self.recording: list[float] = []
        """Of the others."""
        self.seconds, self.block = seconds, block

    @staticmethod
    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        self.known, self.began = recordings(), self.now()

    def on_step_end(self, args, state, control, **kwargs):
        times = self.settled if recordings() == self.known else self.recording
        times.append(self.now() - self.began)
        spent = sum(self.settled) + sum(self.recording)
        enough = len(self.settled) >= max(PROBE_WARM + PROBE_TIMED, 3 * self.block) and spent >= self.seconds
        control.should_training_stop = control.should_training_stop or enough

    def measured(self) -> dict[str, float]:
        """The median of the later half of the settled steps: the first ones pay for memory and kernels that are there
        afterwards. Or the mean of the later half of the blocks, without the first two. And what recording took,
        once."""
        times = self.settled or self.recording
        blocks = len(times) // self.block if self.block else 0
        if blocks > 2:
            step = statistics.mean(times[-self.block * min(blocks - 2, (blocks + 1) // 2) :])
        else:
            step = statistics.median(times[min(max(PROBE_WARM, len(times) // 2), len(times) - 1) :])
        first = sum(self.recording) - len(self.recording) * step
        return {"seconds_per_step": step, "seconds_recording": max(first, 0.0)}


def _timing(plan: Plan, method: str, tokenised: dict[Any, Any] | None = None) -> dict[str, Any]:
    """Seconds of a step, from a few timed ones, and the steps that fit into the budget; kept in plan.json, so that a
    restart plans the same. tokenised: rows as other methods had them, which takes longer than the timing."""
    known = _known_timings(plan)
    if method not in known:
        folder = plan.folder / "probe" / method
        args = plan.settings(method, output_dir=str(folder), seed=0, max_steps=PROBE_MOST, eval_on_start=False)
        tokenised = {} if tokenised is None else tokenised
        lengths = args.max_prompt_length, args.max_completion_length
        loaded = load_method(args.method, args)
        args.max_steps += 3 * loaded.steps_ahead
        same = loaded.needs_candidates, args.static_target, args.truncation_side, *lengths
        trainer = SemiOfflineTrainer(plan.load(), plan.rewards, args, tokenised.get(same, plan.rows))
        tokenised[same] = trainer.train_dataset
        seconds = min(PROBE_SECONDS, PROBE_SHARE * (plan.budget_seconds or 0.0))
        clock = _Clock(seconds, loaded.steps_ahead)
        trainer.add_callback(clock)
        trainer.train()
        known[method] = _planned(plan, clock.measured())
        (plan.folder / PLAN).write_text(json.dumps(known, indent=1))
        del trainer
        _free()
    return _planned(plan, known[method])


def _known_timings(plan: Plan) -> dict[str, dict[str, Any]]:
    path = plan.folder / PLAN
    return json.loads(path.read_text()) if path.exists() else {}


def _planned(plan: Plan, timing: dict[str, Any]) -> dict[str, Any]:
    """With the steps that fit into the budget."""
    if plan.budget_seconds is None:
        return timing
    left = plan.budget_seconds - timing["seconds_recording"]
    return timing | {"steps": max(1, round(left / timing["seconds_per_step"]))}


def _curve(
    folder: Path, trainer: SemiOfflineTrainer, passes: float, alone: dict[str, Any], first: float | None
) -> list[dict[str, Any]]:
    """Reward on validation against what was spent: seconds of training steps, forward passes over all inputs.
    alone: how long steps take when nothing else runs. first: the reward before the first step, if it was known."""

    def seconds(line: dict[str, Any]) -> float:
        if not alone or not line["step"]:
            return line["time/train"]
        return alone["seconds_recording"] + line["step"] * alone["seconds_per_step"]

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    args = trainer.args
    per_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size * passes
    known = [] if first is None else [{"step": 0, "seconds": 0.0, "forward_passes": 0.0, "reward": first}]
    return known + [
        {
            "step": line["step"],
            "seconds": seconds(line),
            "forward_passes": line["step"] * per_step,
            "reward": line["eval_reward"],
        }
        for line in lines
        if "eval_reward" in line and (first is None or line["step"])
    ]
