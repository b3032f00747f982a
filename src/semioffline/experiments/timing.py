"""Time each method alone, and turn a budget in seconds into steps. plan.json keeps the timings for restarts."""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.sampling import text_uniforms
from semioffline.config import MethodConfig
from semioffline.cuda.functions import recordings
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.evaluation.decode import generate_ids
from semioffline.experiments.plan import START, Plan
from semioffline.experiments.results import Timing
from semioffline.methods.shared.registry import load_method
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.storage.files import read_json, write_atomically
from semioffline.training.console import Advice, Console
from semioffline.training.trainer import SemiOfflineTrainer

PROBE_WARM, PROBE_TIMED = 3, 5
"""Minimum number of steps before timing, and of timed steps."""
PROBE_SHARE, PROBE_SECONDS = 0.3, 4.0
"""Timing lasts at least for this share of the budget, but no longer than these seconds, so that memory and kernels are
warm."""
PROBE_MOST = 200
"""Maximum number of steps of a timing."""
PLAN = "plan.json"
Tokenised = dict[tuple[object, ...], Examples]
"""Settings of tokenising -> the tokenised rows. Methods share them, because tokenising takes longer than timing."""


class StepClock(TrainerCallback):
    """Measures the seconds of each step, including pending work of the device. Stops training when enough steps are
    timed."""

    def __init__(self, seconds: float, most: float = math.inf, period: int = 1) -> None:
        """seconds: minimum time to measure. most: after these seconds, one step is enough. period: number of steps that
        are timed together, because only the first of them samples."""
        self.period = period
        self._open: list[float] = []
        """Seconds of the steps of the current period."""
        self.settled: list[float] = []
        """Seconds per step of periods in which no CUDA graph was captured."""
        self.recording: list[float] = []
        """Seconds per step of periods in which one was captured."""
        self.seconds, self.most = seconds, most
        self.known = 0
        """Number of graphs captured before the period."""

    @staticmethod
    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.known, self.began = self.known if self._open else recordings(), self.now()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._open.append(self.now() - self.began)
        if len(self._open) < self.period:
            return
        times = self.settled if recordings() == self.known else self.recording
        times.append(sum(self._open) / self.period)
        self._open = []
        spent = (sum(self.settled) + sum(self.recording)) * self.period
        enough = len(self.settled) >= PROBE_WARM + PROBE_TIMED and spent >= self.seconds
        enough = enough or bool(self.settled and spent >= self.most)
        control.should_training_stop = control.should_training_stop or enough

    def measured(self) -> Timing:
        """Return the median of the later half of the settled steps (the first ones also allocate memory and load
        kernels), and the extra seconds of capturing graphs."""
        times = self.settled or self.recording
        step = statistics.median(times[min(max(PROBE_WARM, len(times) // 2), len(times) - 1) :])
        first = (sum(self.recording) - len(self.recording) * step) * self.period
        return Timing(seconds_per_step=step, seconds_recording=max(first, 0.0))


def time_methods(plan: Plan, say: Callable[[str], None], methods: list[str]) -> None:
    """Time each of these methods alone, except those that have been timed before."""
    tokenised: Tokenised = {}
    for method in dict.fromkeys(methods):
        if method != START and method not in known_timings(plan):
            say(f"{method}: timing its steps while nothing else runs")
            time_method(plan, method, tokenised)


def time_method(plan: Plan, method: str, tokenised: Tokenised | None = None) -> Timing:
    """Return the seconds of a step, measured or from plan.json, and the number of steps that fit into the budget."""
    known = known_timings(plan)
    if method not in known:
        folder = plan.folder / "probe" / method
        off = {"eval_on_start": False, "write_result": False}
        args = plan.settings(method, output_dir=str(folder), seed=0, max_steps=PROBE_MOST, **off)
        tokenised = {} if tokenised is None else tokenised
        lengths = args.max_prompt_length, args.max_completion_length
        loaded = load_method(args)
        same = loaded.needs_candidates, loaded.static_target, loaded.mask_where, args.truncation_side, *lengths
        rows: Dataset | Examples | None = tokenised.get(same, plan.rows)
        console = Console(heading=(), brief=f"{method}: measuring its speed")
        trainer = SemiOfflineTrainer(plan.load(), list(plan.rewards), args, rows, callbacks=[console])
        tokenised[same] = trainer.train_dataset
        budget = plan.budget_seconds or 0.0
        seconds, most = min(PROBE_SECONDS, PROBE_SHARE * budget), max(PROBE_SECONDS, budget)
        clock = StepClock(seconds, most, period=max(loaded.repeats, 1))
        trainer.add_callback(clock)
        trainer.remove_callback(Advice)
        trainer.train()
        known[method] = fit_into_budget(plan, clock.measured())
        write_atomically(plan.folder / PLAN, json.dumps({name: one.to_json() for name, one in known.items()}, indent=1))
        del trainer
        free_memory()
    return fit_into_budget(plan, known[method])


def time_steps(policy: Policy, rewards: list[Any], args: MethodConfig, rows: Dataset) -> float:
    """Measure the seconds of a step. args: settings with the number of steps to make. This trains the model."""
    console = Console(heading=(), brief=f"{args.method}: measuring its speed")
    trainer = SemiOfflineTrainer(policy, rewards, args, rows, callbacks=[console])
    clock = StepClock(0.0)
    trainer.add_callback(clock)
    trainer.remove_callback(Advice)
    trainer.train()
    return clock.measured().seconds_per_step


def time_outputs(policy: Policy, examples: Examples, max_new_tokens: int) -> float:
    """Measure the seconds to decode one input of a batch: the faster of two halves, because the first one also warms
    up."""
    policy.eval()
    half, seconds = math.ceil(len(examples) / 2), []
    for part in (slice(0, half), slice(half, 2 * half)):
        number, started = len(examples.examples[part]), StepClock.now()
        with policy.meter.paused():
            generate_ids(policy, examples, Decoding(max_new_tokens=max_new_tokens), half, progress=False, part=part)
        seconds += [(StepClock.now() - started) / number] if number else []
    return min(seconds)


def time_candidates(policy: Policy, examples: Examples, decoding: Decoding) -> float:
    """Measure the seconds to sample the candidates of one input, in one batch with these examples."""
    batch = Collator(policy.tokens.pad_id)(examples.examples).to(policy.device)
    shape = decoding.num_return_sequences, decoding.max_new_tokens
    uniforms, started = text_uniforms(batch.index, *shape, Randomness(0, 0), "candidates"), StepClock.now()
    with policy.meter.paused():
        policy.generate(batch.source, decoding, uniforms=uniforms)
    return (StepClock.now() - started) / len(examples)


def known_timings(plan: Plan) -> dict[str, Timing]:
    """Return the timing of each method in plan.json."""
    path = plan.folder / PLAN
    found = read_json(path) if path.exists() else {}
    try:
        return {method: Timing.from_json(timing) for method, timing in found.items()}
    except (TypeError, AttributeError) as error:
        raise UserError(f"{path} does not hold timings: {error}") from error


def fit_into_budget(plan: Plan, timing: Timing) -> Timing:
    """Add to a timing the number of steps that fit into the budget."""
    if plan.budget_seconds is None:
        return timing
    left = plan.budget_seconds - timing.seconds_recording
    steps = max(1, round(left / timing.seconds_per_step))
    return Timing(timing.seconds_per_step, timing.seconds_recording, steps)


def free_memory() -> None:
    """Free the device memory of a finished run."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
