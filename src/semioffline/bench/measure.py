"""Seconds, tokens a second and peak memory of training steps, in the trainer that people use."""

from __future__ import annotations

import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from semioffline.bench.models import SHAPES, Shape, Texts, build_policy, words
from semioffline.comparison import peak_memory
from semioffline.config import SemiOfflineConfig
from semioffline.errors import unknown
from semioffline.methods import BaseMethod
from semioffline.methods.ft import mle_row, mle_term
from semioffline.policy import Policy
from semioffline.run_log import as_numbers
from semioffline.scoring import Scorer
from semioffline.trainer import SemiOfflineTrainer
from semioffline.types import Batch, Randomness, StepOutput, Term

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compile": {"torch_compile": True},
    "graphs": {"cuda_graphs": True},
    "compile+graphs": {"torch_compile": True, "cuda_graphs": True},
}
METHODS = ("trainer", "ft", "mft", "mft-2", "semi_offline", "brio", "self_critic", "avg")
"""trainer: Transformers' own on the plain model. mft-2: M-FT with two decoder rows, as many as semi_offline has."""
GENERATES = ("self_critic", "avg")


@dataclass
class Plan:
    """What is measured."""

    models: list[str]
    shapes: list[str]
    methods: list[str]
    samples: list[int]
    settings: list[str]
    batch_size: int = 16
    warmup: int = 8
    steps: int = 20
    window: int = 4
    candidates: int = 16
    on_policy_samples: int = 16
    reward: str = "rouge"
    device: str = "cpu"
    dtype: str = "float32"
    arguments: dict[str, Any] = field(default_factory=dict)
    """More settings of the trainer."""


class TwoRows(BaseMethod):
    """M-FT on two rows of each input under different masks: the decoder's work of semi_offline, without RL."""

    batch_on_host = True

    def step(self, policy: Policy, batch: Batch, score: Scorer, randomness: Randomness) -> StepOutput:
        args = self.args
        both = [randomness, Randomness(randomness.seed + 1, randomness.step)]
        rows = [mle_row(policy, batch, own, args.mle_mask_rate, args.mle_mask_share) for own in both]
        first, second = policy.predict(batch.source, rows)
        term, other = (mle_term(logits, batch, args.label_smoothing_factor) for logits in (first, second))
        return StepOutput([term, Term("second", other.total, per="token")])


class Clock(TrainerCallback):
    """Seconds a step over windows of several. The device is waited for at their ends only: within a window the host may
    be ahead of it, as in training."""

    def __init__(self, warmup: int, window: int, device: str):
        self.warmup, self.window, self.device = warmup, window, device
        self.seconds: list[float] = []
        self.started = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step >= self.warmup and (state.global_step - self.warmup) % self.window == 0:
            self._wait()
            if state.global_step == self.warmup and self.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > self.warmup and (state.global_step - self.warmup) % self.window == 0:
            self._wait()
            self.seconds.append((time.perf_counter() - self.started) / self.window)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def run(plan: Plan, say: Callable[[str], None], keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Measure every case; `keep` gets all rows so far after each one, so that nothing is lost."""
    rows: list[dict[str, Any]] = []
    logging.getLogger("semioffline.data").setLevel(logging.ERROR)  # texts are cut on purpose
    for model, shape, setting, method, samples in cases(plan):
        row = {"model": model, "shape": shape, "setting": setting, "method": method, "samples": samples}
        row |= {"source": SHAPES[shape].source, "target": SHAPES[shape].target, "batch_size": plan.batch_size}
        try:
            row |= measure(plan, model, SHAPES[shape], setting, method, samples)
        except Exception as error:  # a case that fails must not cost the others; it stands in the result with its error
            row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        gc.collect()
        if plan.device == "cuda":
            torch.cuda.empty_cache()
        rows.append(row)
        add_ratios(rows)
        say(describe(row))
        keep(rows)
    return rows


def cases(plan: Plan) -> Iterator[tuple[str, str, str, str, int]]:
    for name, known, given in (
        ("shape", SHAPES, plan.shapes),
        ("method", METHODS, plan.methods),
        ("setting", SETTINGS, plan.settings),
    ):
        for one in given:
            if one not in known:
                raise unknown(name, one, known)
    for model in plan.models:
        for shape in plan.shapes:
            for setting in plan.settings:
                for method in plan.methods:
                    if method == "trainer" and setting != "plain":
                        continue
                    many = {"semi_offline": plan.samples, "avg": [plan.on_policy_samples]}.get(method, [0])
                    for samples in many:
                        yield model, shape, setting, method, samples


def measure(plan: Plan, model: str, shape: Shape, setting: str, method: str, samples: int) -> dict[str, Any]:
    """One case: a fresh model, `warmup` steps, then windows of steps."""
    os.environ.pop("ACCELERATE_DYNAMO_BACKEND", None)  # what torch_compile in the case before left behind
    slow = method in GENERATES
    warmup, steps, window = (2, 4, 1) if slow else (plan.warmup, plan.steps, plan.window)
    policy = build_policy(model, torch.device(plan.device), getattr(torch, plan.dtype))
    vocabulary = words(5000) if "/" in model else [w for w in words(5000) if w in policy.tokenizer.get_vocab()]
    texts = Texts(plan.batch_size * (warmup + steps), shape, vocabulary, plan.candidates if method == "brio" else 0)
    clock = Clock(warmup, window, plan.device)
    with tempfile.TemporaryDirectory() as folder, peak_memory() as peak:
        arguments = _arguments(plan, folder, warmup + steps) | SETTINGS[setting]
        if method == "trainer":
            trainer: Any = _plain_trainer(policy, texts, shape, arguments)
        else:
            trainer = _our_trainer(plan, policy, texts, shape, method, samples, arguments)
        trainer.add_callback(clock)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    seconds = statistics.median(clock.seconds)
    row = {
        "seconds": seconds,
        "fastest": min(clock.seconds),
        "slowest": max(clock.seconds),
        "windows": len(clock.seconds),
        "window": window,
        "tokens_per_second": plan.batch_size * (shape.source + shape.target) / seconds,
        "peak_mb": peak.get("mb"),
        "reserved_mb": torch.cuda.max_memory_reserved() / 2**20 if plan.device == "cuda" else None,  # with graphs
    }
    for name in ("time/reward", "time/reward_wait"):
        values = as_numbers(getattr(trainer, "_metrics", {}).get(name, []))[warmup:]
        row[name.replace("time/", "seconds_")] = statistics.median(values) if values else None
    return row


def _arguments(plan: Plan, folder: str, steps: int) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": plan.batch_size,
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
    plan: Plan, policy: Policy, texts: Texts, shape: Shape, method: str, samples: int, arguments: dict[str, Any]
) -> SemiOfflineTrainer:
    args = SemiOfflineConfig(
        method="mft" if method == "mft-2" else method,
        num_samples=max(samples, 2),
        max_prompt_length=shape.source,
        max_completion_length=shape.target,
        log_completions=False,
        eval_metrics=[],
        **arguments,
        **plan.arguments,
    )
    own = TwoRows(args) if method == "mft-2" else None
    reward = plan.reward if method in ("semi_offline", *GENERATES) else None
    return SemiOfflineTrainer(policy, reward, args, texts, method=own)


def _plain_trainer(policy: Policy, texts: Texts, shape: Shape, arguments: dict[str, Any]) -> Trainer:
    """Transformers' Trainer, the model and tensors: what fine-tuning costs without this library."""
    prompts, completions = texts["prompt"], texts["completion"]
    sources = policy.encode_sources(prompts, shape.source)
    targets = policy.encode_targets(completions, prompts, shape.target)
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


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """For each row, its seconds and memory over those of ft and of mft-2 in the same setting."""
    known = {(r["model"], r["shape"], r["setting"], r["method"]): r for r in rows if "seconds" in r}
    for row in rows:
        for name in ("ft", "mft-2"):
            base = known.get((row["model"], row["shape"], row["setting"], name))
            if base is None or "seconds" not in row:
                continue
            row[f"to_{name}"] = row["seconds"] / base["seconds"]
            if row["peak_mb"] and base["peak_mb"]:
                row[f"memory_to_{name}"] = row["peak_mb"] / base["peak_mb"]


def describe(row: dict[str, Any]) -> str:
    name = row["method"] + (f" K={row['samples']}" if row["samples"] else "")
    start = f"{Path(row['model']).name:<14} {row['shape']:<7} {row['setting']:<15} {name:<20}"
    if "error" in row:
        return f"{start} failed: {row['error']}"
    memory = f"{row['peak_mb']:9.0f} MB" if row["peak_mb"] else ""
    ratios = " ".join(f"{row[k]:6.2f} x {k.removeprefix('to_')}" for k in ("to_ft", "to_mft-2") if k in row)
    waits = [row.get("seconds_reward"), row.get("seconds_reward_wait")]
    reward = "  rewards {:.1f} ms, waited {:.1f} ms".format(*(1000 * (w or 0) for w in waits)) if waits[0] else ""
    speed = f"{1000 * row['seconds']:9.1f} ms {row['tokens_per_second']:10.0f} tokens/s"
    return f"{start} {speed} {memory} {ratios}{reward}"
