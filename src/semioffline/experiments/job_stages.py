"""The stages of a job. Each stage skips finished work, continues after an interruption, and writes a file when it is
finished."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import set_seed

from semioffline.config import MethodConfig
from semioffline.data.candidates import OUTPUT, write_candidates
from semioffline.data.examples import Examples
from semioffline.evaluation.results import Evaluation, MetricResult, write_predictions
from semioffline.experiments.job import MODEL, Job, candidate_batch, stage_config, time_both
from semioffline.experiments.job_plan import PROBED, JobPlan, StagePlan, eval_interval, rows_with_candidates
from semioffline.experiments.job_results import INITIAL, MFT, MORE_MFT
from semioffline.experiments.job_results import RESULT as RL
from semioffline.experiments.static_target import StaticChoice, choose_target, probe_target
from semioffline.experiments.timing import free_memory
from semioffline.methods.semi_offline import SemiOfflineConfig
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.storage.files import make_folder, read_content, read_json, write_atomically
from semioffline.storage.records import Record, read_record
from semioffline.tasks.reading.rows import load_rows
from semioffline.training.console import Console
from semioffline.training.initial_outputs import BEFORE
from semioffline.training.run_folder import write_settings
from semioffline.training.trainer import SemiOfflineTrainer

if TYPE_CHECKING:
    from datasets import Dataset

LABELS = {INITIAL: "initial checkpoint", MFT: "M-FT", RL: "semi-offline RL", MORE_MFT: "more M-FT"}
TRAINED, TESTED, PREDICTIONS = "trained.json", "tested.json", "predictions.jsonl"
TARGET, STEPS, CANDIDATES, SECONDS = "static_target.json", "steps.json", "candidates", "seconds.json"
SHARD = 64
"""Number of inputs in a shard: a kill loses at most the candidates of these."""


@dataclass(frozen=True)
class Trained(Record):
    """The content of trained.json. The file exists when the model of a stage is complete."""

    steps: int
    seconds: float
    cost_per_input: dict[str, float]


@dataclass(frozen=True)
class Tested(Record):
    """The content of tested.json: the scores of one model on the test rows."""

    metrics: dict[str, MetricResult]
    rewards: list[float]
    """One value for each input."""


@dataclass(frozen=True)
class MoreSteps(Record):
    """The content of steps.json: the number of steps of more M-FT, computed once."""

    steps: int
    mft_step: float
    """Seconds of a step of M-FT and of semi-offline RL, timed one after the other."""
    rl_step: float
    static_targets: float
    """Seconds of choosing and making static targets."""


# ---- training ----


def train_stage(job: Job, plan: JobPlan, name: str, stage: StagePlan, rows: Dataset, **own: object) -> Trained:
    """Train one model and save it. M-FT keeps its last weights. Other stages keep the best weights on validation, which
    may be the initial ones."""
    folder = job.folder / name
    if not (folder / TRAINED).exists():
        job.say(f"\n{LABELS[name]}: {stage.steps} steps, learning rate {stage.learning_rate:g}")
        make_folder(folder)
        args = stage_config(job, plan, name, stage, **own)
        write_settings(folder, args)
        _write_before(job, plan, name)
        set_seed(args.seed)  # an adapter's weights are drawn when it is added
        policy, validation, console = load_start(job, plan, name), job.rows(plan, "validation"), Console(heading=())
        trainer = SemiOfflineTrainer(policy, job.rewards, args, rows, validation, callbacks=[console])
        trainer.train(resume_from_checkpoint=True)
        if _start_was_best(trainer):
            job.say(f"{LABELS[name]}: no step was better on validation than the model before: that is kept")
            trainer.policy.load_state_dict(load_start(job, plan, name).state_dict())
        trainer.save_model(str(folder / MODEL))
        cost = trainer.policy.meter.per_input()
        done = Trained(trainer.state.global_step, trainer.run_log.total, cost)
        write_atomically(folder / TRAINED, json.dumps(done.to_json(), indent=1))
        del trainer, policy
        free_memory()
    for path in folder.glob("checkpoint-*"):  # they were for going on
        shutil.rmtree(path, ignore_errors=True)
    return read_record(Trained, folder / TRAINED)


def _start_was_best(trainer: SemiOfflineTrainer) -> bool:
    """Return whether the validation reward before the first step is higher than that of the best step."""
    best, name = trainer.state.best_metric, "eval_" + str(trainer.args.metric_for_best_model).removeprefix("eval_")
    before = [log[name] for log in trainer.state.log_history if log["step"] == 0 and name in log]
    return best is not None and bool(before) and before[0] > best


def load_start(job: Job, plan: JobPlan, name: str) -> Policy:
    """Load the initial model of a stage."""
    if name == MFT or plan.mft is None:
        return job.load(job.options.adapter())
    return job.load_saved(job.folder / MFT / MODEL)


def _write_before(job: Job, plan: JobPlan, name: str) -> None:
    """Write before.jsonl: the outputs of the initial model of a stage for the test rows."""
    start = INITIAL if name == MFT or plan.mft is None else MFT
    outputs = read_content(job.folder / start / PREDICTIONS)
    write_atomically(job.folder / name / BEFORE, outputs)


# ---- testing ----


def test_model(job: Job, plan: JobPlan, name: str) -> Tested:
    """Decode the test rows with the model of a stage, and score them."""
    folder = job.folder / name
    if not (folder / TESTED).exists():
        job.say(f"{LABELS[name]}: test on {plan.tested} inputs")
        make_folder(folder)
        policy = job.load(None) if name == INITIAL else job.load_saved(folder / MODEL)
        off = {"eval_strategy": "no", "eval_on_start": False, "load_best_model_at_end": False}
        args = stage_config(job, plan, MFT, StagePlan(1, 0.0, 1), **off, output_dir=str(folder))
        trainer = SemiOfflineTrainer(policy, job.rewards, args)
        examples = trainer.prepare(job.rows(plan, "test"))
        evaluation = trainer.evaluate_outputs(examples)
        _add_reward(evaluation, trainer.reward_set)
        write_predictions(folder / PREDICTIONS, evaluation, examples)
        tested = Tested(evaluation.result(seed=job.options.seed), evaluation.values["reward"])
        write_atomically(folder / TESTED, json.dumps(tested.to_json()))
        del trainer, policy
        free_memory()
    return read_record(Tested, folder / TESTED)


def _add_reward(evaluation: Evaluation, rewards: RewardSet) -> None:
    """Add `reward`, the weighted sum of the trained rewards, as the first metric."""
    sums = rewards.add({name: evaluation.values[name] for name in rewards.functions}).tolist()
    parts = zip(rewards.weights, rewards.functions, strict=True)
    said = " + ".join(name if weight == 1 else f"{weight:g}*{name}" for weight, name in parts)
    evaluation.put_first("reward", sums, said)


# ---- static targets ----


def choose_static_target(job: Job, plan: JobPlan) -> StaticChoice:
    """Choose the static target by a probe, unless the user has chosen it."""
    path = job.folder / TARGET
    if not path.exists():
        given = job.options.static_target
        began = time.perf_counter()
        choice = _probe(job, plan) if given == "auto" else StaticChoice(given, "as you say")
        write_atomically(path, json.dumps(choice.to_json() | {"seconds": time.perf_counter() - began}, indent=1))
    choice = read_record(StaticChoice, path)
    job.say(f"static target: {choice.target} ({choice.reason})", margin=2)
    return choice


def _probe(job: Job, plan: JobPlan) -> StaticChoice:
    policy = load_start(job, plan, RL).to(job.device)
    args = stage_config(job, plan, RL, plan.rl)
    assert isinstance(args, SemiOfflineConfig)
    rewards = RewardSet(job.rewards, args.reward_weights, device=job.device)
    rows = _rows_with_candidates(job, plan)
    rows = rows.select(range(min(PROBED, len(rows))))
    with tempfile.TemporaryDirectory() as place:
        path = _write_candidates(job, plan, policy, rewards, args, rows, Path(place))
        scored = _with_any(load_rows(path))
    lengths = plan.max_prompt_length, plan.max_completion_length, args.truncation_side
    probes = [
        probe_target(policy, Examples(part, policy, *lengths, target, progress=False), rewards, args)
        for part, target in ((rows, "ground_truth"), (scored, "worst"))
        if len(part)
    ]
    if len(probes) == 1:
        return StaticChoice("ground_truth", "the model wrote nothing that could be scored", probes[0])
    return choose_target(*probes)


def make_static_targets(job: Job, plan: JobPlan, choice: StaticChoice) -> Dataset:
    """Return the training rows of RL. If candidates are masked, make them first."""
    if choice.target == "ground_truth" or "candidates" in job.rows(plan, "train").column_names:
        return job.rows(plan, "train")
    rows = _rows_with_candidates(job, plan)
    folder = job.folder / CANDIDATES
    if not (folder / SECONDS).exists():
        job.say(f"static targets: {job.options.num_candidates} candidates for each of {len(rows)} inputs")
        policy = load_start(job, plan, RL).to(job.device)
        args = stage_config(job, plan, RL, plan.rl)
        rewards = RewardSet(job.rewards, args.reward_weights, device=job.device)
        before, began = len(list((folder / "shards").glob("*.jsonl"))), time.perf_counter()
        _write_candidates(job, plan, policy, rewards, args, rows, folder)
        shards = math.ceil(len(rows) / SHARD)
        made, seconds = shards - before, time.perf_counter() - began
        whole = seconds * shards / made if made else len(rows) * plan.speed.candidates
        write_atomically(folder / SECONDS, json.dumps({"seconds": whole}))
        del policy
        free_memory()
    scored = _with_any(load_rows(folder / OUTPUT))
    if len(scored) < len(rows):
        job.say(f"{len(rows) - len(scored)} of {len(rows)} inputs have no candidate and are left out")
    return scored


def _rows_with_candidates(job: Job, plan: JobPlan) -> Dataset:
    """Return a random selection of training rows, as many as get candidates."""
    return job.rows(plan, "train").shuffle(seed=job.options.seed).select(range(rows_with_candidates(plan)))


def _write_candidates(
    job: Job, plan: JobPlan, policy: Policy, rewards: RewardSet, args: MethodConfig, rows: Dataset, folder: Path
) -> Path:
    limits = plan.max_prompt_length, plan.max_completion_length
    examples = Examples(rows, policy, *limits, args.truncation_side, progress=False)
    decoding = job.options.sampling(limits[1], job.options.num_candidates)
    batch = candidate_batch(job, plan)
    policy.eval()
    return write_candidates(
        policy, examples, rows, decoding, rewards, folder, {}, batch, SHARD, job.options.seed
    )  # fmt: skip


def _with_any(rows: Dataset) -> Dataset:
    """Keep only the rows that have a candidate."""
    return rows.filter(bool, input_columns="candidates")


# ---- the same time ----


def count_more_steps(job: Job, plan: JobPlan, choice: StaticChoice, rows: Dataset) -> StagePlan | None:
    """Plan more M-FT for as long as RL takes with its static targets; None if the user wants none. Steps of both are
    timed one after the other."""
    given, path = job.options.more_mft_steps, job.folder / STEPS
    if given == 0:
        return None
    if given is None and not path.exists():
        policy = load_start(job, plan, RL)
        with tempfile.TemporaryDirectory() as place:
            mft, rl = time_both(job, plan, rows, policy, choice.target, place)
        del policy
        spent = sum(static_seconds(job).values())
        steps = max(1, round((plan.rl.steps * rl + spent) / mft))
        write_atomically(path, json.dumps(MoreSteps(steps, mft, rl, spent).to_json(), indent=1))
    steps = read_record(MoreSteps, path).steps if given is None else given
    rate = plan.rl.learning_rate if plan.mft is None else plan.mft.learning_rate
    if job.options.mft_learning_rate is not None:
        rate = job.options.mft_learning_rate
    steps = steps if given is not None else _divisible(steps)
    return StagePlan(steps, rate, min(job.options.eval_steps or eval_interval(steps), steps))


def _divisible(steps: int) -> int:
    """Return the next number divisible by five, so that the last step is also evaluated."""
    return -(-steps // 5) * 5


def static_seconds(job: Job) -> dict[str, float]:
    """Return the seconds of each stage that prepares RL: the probe and the static targets."""
    paths = {"probe": job.folder / TARGET, "static targets": job.folder / CANDIDATES / SECONDS}
    return {name: float(read_json(path).get("seconds", 0.0)) for name, path in paths.items() if path.exists()}
