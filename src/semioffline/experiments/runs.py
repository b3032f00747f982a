"""Make one run of a comparison: train one method with one seed, evaluate on validation, and test."""

from __future__ import annotations

import json
import time
from pathlib import Path

from semioffline.config import MethodConfig
from semioffline.errors import UserError, changes
from semioffline.evaluation.results import write_predictions
from semioffline.experiments.best_checkpoint import BestCheckpoint
from semioffline.experiments.identity import EVALUATION, run_settings
from semioffline.experiments.plan import RESULT, START, Plan, read_run
from semioffline.experiments.results import CurvePoint, RunResult, Timing
from semioffline.experiments.timing import fit_into_budget, free_memory, known_timings, time_method
from semioffline.policy.meter import peak_memory
from semioffline.storage.files import lock_folder, make_folder, read_content, read_json, write_atomically
from semioffline.training.console import Console
from semioffline.training.trainer import SemiOfflineTrainer

SETTINGS = "settings.json"


def run_one(plan: Plan, method: str, seed: int) -> None:
    """Train and test one method with one seed. The result.json in its folder marks it as done."""
    folder = plan.run_folder(method, seed)
    timing = _timing(plan, method)
    steps = _steps(plan, method, None if timing is None else timing.steps)
    args = plan.settings(method, output_dir=str(folder), seed=seed, max_steps=max(steps, 1), write_result=False)
    make_folder(folder)
    lock_folder(folder)
    write_atomically(folder / SETTINGS, json.dumps(_noted(plan, args), indent=1))
    (folder / "metrics.jsonl").unlink(missing_ok=True)  # of a run that was interrupted
    first = _initial_point(plan, method, args)
    args.eval_on_start = args.eval_on_start and first is None
    first_reward = None if first is None else first.reward
    console = Console(heading=("method",))
    trainer = SemiOfflineTrainer(plan.load(), list(plan.rewards), args, plan.rows, plan.dev, callbacks=[console])
    checkpoint = BestCheckpoint(trainer.policy, steps, plan.evaluations, plan.keep, first_reward)
    trainer.add_callback(checkpoint)
    started = time.perf_counter()
    with peak_memory() as peak:
        if steps:
            trainer.train()  # from the first step also after an interruption: the best weights so far are lost
            checkpoint.restore()
        else:
            trainer.evaluate()
    wall = time.perf_counter() - started
    examples = trainer.prepare(plan.test)
    evaluation = trainer.evaluate_outputs(examples)
    write_predictions(folder / "predictions.jsonl", evaluation, examples)
    cost = trainer.policy.meter.per_input()
    alone = timing if plan.jobs > 1 else None
    curve = _curve(folder, trainer, cost["forward_passes"], alone, first)
    result = RunResult(
        method=method,
        seed=seed,
        steps=trainer.state.global_step,
        best_step=checkpoint.best_step,
        validation_inputs=_validation_inputs(plan),
        seconds=curve[-1].seconds if plan.jobs == 1 or timing is not None or not steps else None,
        timed=_how_timed(plan, alone),
        wall_seconds=wall,
        peak_mb=peak.get("mb"),
        cost_per_input=cost,
        metrics=evaluation.result(seed=seed),
        values=evaluation.values,
        statistics=evaluation.statistics,
        curve=curve,
        about=plan.about,
    )
    write_atomically(folder / RESULT, json.dumps(result.to_json()))
    del trainer, checkpoint
    free_memory()


def _timing(plan: Plan, method: str) -> Timing | None:
    """Return the timing of a method. With a budget in steps it is that of `--only timing`, or None."""
    if method == START or plan.budget_steps is not None:
        return known_timings(plan).get(method)
    return time_method(plan, method)


def check_finished_run(plan: Plan, method: str, seed: int) -> None:
    """Reject a finished run that was made with other settings: the table would show it under the present ones."""
    folder = plan.run_folder(method, seed)
    if not (folder / SETTINGS).exists():
        return
    before = read_json(folder / SETTINGS)
    known = known_timings(plan)
    planned = fit_into_budget(plan, known[method]).steps if method in known else before["max_steps"]
    args = plan.settings(method, output_dir=str(folder), seed=seed, max_steps=max(_steps(plan, method, planned), 1))
    now = _noted(plan, args)
    names = {"comparison", "eval_metrics", *EVALUATION} if method == START else run_settings(now)  # it is not trained
    different = changes(before, now, names)
    if different:
        raise UserError(f"{folder} is a run with other settings ({different}): use another --output_dir, or remove it")


def _noted(plan: Plan, args: MethodConfig) -> dict[str, object]:
    """Return the settings that a run depends on, for its settings.json."""
    budget = "seconds" if plan.budget_steps is None else "steps"
    return json.loads(json.dumps(args.to_dict() | {"budget": budget, "comparison": plan.made_with}, default=str))


def _how_timed(plan: Plan, alone: Timing | None) -> str:
    if alone is not None:
        return "alone, before the runs"
    return "in the run" if plan.jobs == 1 else "not at all: it ran beside others"


def _steps(plan: Plan, method: str, planned: int | None) -> int:
    """Return the number of optimizer steps of a method. planned: those that fit into a budget in seconds."""
    if method == START:
        return 0
    steps = plan.steps.get(method) or plan.budget_steps or planned
    if steps is None:
        raise ValueError(f"{method} has neither a number of steps nor a timing")
    return steps


def _validation_inputs(plan: Plan) -> int:
    return 0 if plan.dev is None else len(plan.dev)


def _initial_point(plan: Plan, method: str, args: MethodConfig) -> CurvePoint | None:
    """Return the validation reward before the first step, from the run of the initial checkpoint; None if that run is
    not done, or if this method is evaluated differently."""
    start = plan.run_folder(START, plan.seeds[START][0])
    if method == START or not (start / RESULT).exists():
        return None
    result, before, now = read_run(start), read_json(start / SETTINGS), args.to_dict()
    same = all(before.get(name) == now[name] for name in EVALUATION)
    return result.curve[0] if same and result.validation_inputs == _validation_inputs(plan) else None


def _curve(
    folder: Path, trainer: SemiOfflineTrainer, passes: float, alone: Timing | None, first: CurvePoint | None
) -> list[CurvePoint]:
    """Return the validation rewards with the seconds of training steps and the forward passes over all inputs.

    Args:
        passes: Forward passes per input.
        alone: The timing of a step when no other run shares the machine; None: the run itself was timed.
        first: The evaluation before the first step, if the run has not made it.
    """
    args = trainer.args
    per_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size * passes
    points = [] if first is None else [CurvePoint(first.reward, stderr=first.stderr)]
    for line in map(json.loads, read_content(folder / "metrics.jsonl").splitlines()):
        step = line["step"]
        if "eval_reward" in line and (first is None or step):
            timed = line["time/train"]
            seconds = timed if alone is None or not step else alone.seconds_recording + step * alone.seconds_per_step
            points.append(
                CurvePoint(line["eval_reward"], step, seconds, step * per_step, line.get("eval_reward_stderr"))
            )
    return points
