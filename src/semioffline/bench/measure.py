"""Seconds, tokens per second and peak memory of training steps, measured in the trainer itself."""

from __future__ import annotations

import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput, Term
from semioffline.bench.models import SHAPES, Shape, Texts, build_policy, words
from semioffline.bench.results import BenchPlan, Case, CaseResult, Measured
from semioffline.errors import unknown
from semioffline.methods.mft import MFTConfig
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.mle import masked_target_row, mle_term
from semioffline.methods.shared.registry import config_class
from semioffline.policy.meter import peak_memory
from semioffline.policy.policy import Policy
from semioffline.scoring.scorer import Scorer
from semioffline.training.run_log import as_numbers
from semioffline.training.trainer import SemiOfflineTrainer

SETTINGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "compile": {"torch_compile": True},
    "graphs": {"cuda_graphs": True},
    "compile+graphs": {"torch_compile": True, "cuda_graphs": True},
}
METHODS = ("trainer", "ft", "mft", "mft-2", "semi_offline", "brio", "self_critic", "avg")
"""Methods to measure. trainer: Transformers' own trainer on the plain model. mft-2: M-FT with two decoder rows, as many
as semi_offline has."""
GENERATES = ("self_critic", "avg")
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
"""The number of processes, if started by torchrun or accelerate. Each has the whole batch size, and the tokens of all
are counted."""


class TwoRows(BaseMethod[MFTConfig]):
    """M-FT on two rows of each input under different masks. Its decoder does the work of semi_offline, without RL."""

    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        both = [randomness, Randomness(randomness.seed + 1, randomness.step)]
        rows = [masked_target_row(policy, batch, self.config, own) for own in both]
        first, second = policy.predict(batch.source, rows)
        term, other = (mle_term(logits, batch, self.config.label_smoothing_factor) for logits in (first, second))
        return StepOutput([term, Term("second", other.total, per="token")])


class Clock(TrainerCallback):
    """Measures seconds per step over windows of several steps. The host waits for the device only at the end of a
    window, so within it the host may be ahead, as in training."""

    def __init__(self, warmup: int, window: int, device: str) -> None:
        self.warmup, self.window, self.device = warmup, window, device
        self.seconds: list[float] = []
        self.started = 0.0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= self.warmup and (state.global_step - self.warmup) % self.window == 0:
            self._wait()
            if state.global_step == self.warmup and self.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self.started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step > self.warmup and (state.global_step - self.warmup) % self.window == 0:
            self._wait()
            self.seconds.append((time.perf_counter() - self.started) / self.window)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def run(plan: BenchPlan, say: Callable[[str], None], keep: Callable[[list[CaseResult]], None]) -> list[CaseResult]:
    """Measure every case. After each one, `keep` gets all rows so far, so that an interruption loses nothing."""
    rows: list[CaseResult] = []
    for case in cases(plan):
        row = CaseResult(case, SHAPES[case.shape].source, SHAPES[case.shape].target)
        try:
            with _silent("semioffline.data.examples"):  # texts are cut on purpose
                row = replace(row, measured=measure(plan, case))
        except Exception as error:  # a case that fails must not cost the others; it stands in the result with its error
            row = replace(row, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        gc.collect()
        if plan.device == "cuda":
            torch.cuda.empty_cache()
        rows = with_ratios([*rows, row])
        say(describe(rows[-1]))
        keep(rows)
    return rows


@contextmanager
def _silent(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def cases(plan: BenchPlan) -> Iterator[Case]:
    for name, known, given in (
        ("shape", SHAPES, plan.shapes),
        ("method", METHODS, plan.methods),
        ("setting", SETTINGS, plan.settings),
    ):
        for one in given:
            if one not in known:
                raise unknown(name, one, known)
    many = {"semi_offline": plan.samples, "avg": [plan.on_policy_samples]}
    for outer in product(plan.models, plan.shapes, plan.batch_sizes, plan.settings, plan.methods):
        if outer[-1] == "trainer" and outer[-2] != "plain":
            continue
        for samples in many.get(outer[-1], [0]):
            yield Case(*outer, samples)


def measure(plan: BenchPlan, case: Case) -> Measured:
    """Measure one case: build a fresh model, run `warmup` steps, then windows of steps."""
    model, method, shape = case.model, case.method, SHAPES[case.shape]
    os.environ.pop("ACCELERATE_DYNAMO_BACKEND", None)  # what torch_compile in the case before left behind
    slow = method in GENERATES
    warmup, steps, window = (2, 4, 1) if slow else (plan.warmup, plan.steps, plan.window)
    policy = build_policy(model, torch.device(plan.device), getattr(torch, plan.dtype))
    number = case.batch_size * PROCESSES * (warmup + steps)
    texts = _texts(model, policy, number, shape, plan.candidates if method == "brio" else 0)
    clock = Clock(warmup, window, plan.device)
    with tempfile.TemporaryDirectory() as folder, peak_memory() as peak:
        arguments = _arguments(plan, folder, warmup + steps) | SETTINGS[case.setting]
        arguments |= {"per_device_train_batch_size": case.batch_size}
        if method == "trainer":
            trainer: Trainer = _plain_trainer(policy, texts, shape, arguments)
        else:
            trainer = _our_trainer(plan, policy, texts, case, arguments)
        trainer.add_callback(clock)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    seconds = statistics.median(clock.seconds)
    return Measured(
        seconds=seconds,
        fastest=min(clock.seconds),
        slowest=max(clock.seconds),
        windows=len(clock.seconds),
        window=window,
        processes=PROCESSES,
        tokens_per_second=case.batch_size * PROCESSES * (shape.source + shape.target) / seconds,
        peak_mb=peak.get("mb"),
        reserved_mb=torch.cuda.max_memory_reserved() / 2**20 if plan.device == "cuda" else None,
        seconds_reward=_median_metric(trainer, "time/reward", warmup),
        seconds_reward_wait=_median_metric(trainer, "time/reward_wait", warmup),
    )


def _median_metric(trainer: Trainer, name: str, warmup: int) -> float | None:
    """Return the median of a metric over the steps after the warmup; None if no step has it."""
    metrics = trainer.step_metrics if isinstance(trainer, SemiOfflineTrainer) else {}
    values = as_numbers(metrics.get(name, []))[warmup:]
    return statistics.median(values) if values else None


def _texts(model: str, policy: Policy, number: int, shape: Shape, candidates: int) -> Any:
    if model == "ads":
        from semioffline.tasks import ads

        return ads.build({"train": number})["train"]
    known = policy.tokens.tokenizer.get_vocab()
    vocabulary = words(5000) if "/" in model else [word for word in words(5000) if word in known]
    return Texts(number, shape, vocabulary, candidates)


def _arguments(plan: BenchPlan, folder: str, steps: int) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": steps,
        "learning_rate": 1e-6,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": plan.device == "cpu",
        "dataloader_pin_memory": plan.device != "cpu",
        "bf16": plan.device == "cuda" and plan.dtype == "float32",
    }


def _our_trainer(
    plan: BenchPlan, policy: Policy, texts: Texts, case: Case, arguments: Mapping[str, object]
) -> SemiOfflineTrainer:
    method, shape = case.method, SHAPES[case.shape]
    own_settings = {"num_samples": max(case.samples, 2)} if method in ("semi_offline", "avg") else {}
    text = {"max_prompt_length": shape.source, "max_completion_length": shape.target}
    log = {"log_completions": False, "eval_metrics": [], "write_result": False}
    kind = config_class("mft" if method == "mft-2" else method)
    args = kind.of({**own_settings, **text, **log, **arguments, **plan.arguments})
    own = TwoRows(args) if isinstance(args, MFTConfig) and method == "mft-2" else None
    reward = plan.reward if method in ("semi_offline", *GENERATES) else None
    return SemiOfflineTrainer(policy, reward, args, texts, method=own)


def _plain_trainer(policy: Policy, texts: Texts, shape: Shape, arguments: dict[str, Any]) -> Trainer:
    """Return Transformers' Trainer with the plain model, to measure fine-tuning without this library."""
    prompts, completions = texts["prompt"], texts["completion"]
    sources = policy.tokens.encode_sources(prompts, shape.source)
    targets = policy.tokens.encode_targets(completions, prompts, shape.target)
    rows = []
    for source, target in zip(sources, targets, strict=True):
        ids, labels = source.ids, target.ids
        if not policy.is_encoder_decoder:
            ids, labels = source.ids + target.ids, [-100] * len(source.ids) + target.ids
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels})

    def collate(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([example[name] for example in examples]) for name in examples[0]}

    args = TrainingArguments(**arguments, remove_unused_columns=False)
    return Trainer(policy.base, args, data_collator=collate, train_dataset=rows)  # type: ignore[arg-type]


def with_ratios(rows: list[CaseResult]) -> list[CaseResult]:
    """Add to each row its seconds and memory divided by those of ft and of mft-2 in the same setting."""
    known = {row.case._replace(samples=0): row.measured for row in rows if row.measured is not None}
    found = []
    for row in rows:
        ratios = dict(row.ratios)
        for name in ("ft", "mft-2"):
            own, base = row.measured, known.get(row.case._replace(method=name, samples=0))
            if own is None or base is None:
                continue
            ratios[f"to_{name}"] = own.seconds / base.seconds
            if own.peak_mb and base.peak_mb:
                ratios[f"memory_to_{name}"] = own.peak_mb / base.peak_mb
        found.append(replace(row, ratios=ratios))
    return found


def describe(row: CaseResult) -> str:
    case, measured = row.case, row.measured
    name = case.method + (f" K={case.samples}" if case.samples else "")
    start = f"{Path(case.model).name:<14} {case.shape:<7}{case.batch_size:>4} {case.setting:<15} {name:<20}"
    if measured is None:
        return f"{start} failed: {row.error}"
    memory = f"{measured.peak_mb:9.0f} MB" if measured.peak_mb else ""
    known = {name: row.ratios[f"to_{name}"] for name in ("ft", "mft-2") if f"to_{name}" in row.ratios}
    ratios = " ".join(f"{ratio:6.2f} x {name}" for name, ratio in known.items())
    waits = [measured.seconds_reward, measured.seconds_reward_wait]
    reward = "  rewards {:.1f} ms, waited {:.1f} ms".format(*(1000 * (w or 0) for w in waits)) if waits[0] else ""
    speed = f"{1000 * measured.seconds:9.1f} ms {measured.tokens_per_second:10.0f} tokens/s"
    return f"{start} {speed} {memory} {ratios}{reward}"
