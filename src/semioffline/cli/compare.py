"""semioffline compare: what each method buys and costs, on one's own data."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from semioffline.cli.options import DataOptions, ModelOptions, _as_flags, parse
from semioffline.cli.run_folder import open_folder, write_settings
from semioffline.config import SemiOfflineConfig, option
from semioffline.errors import UserError, unknown
from semioffline.methods import load_method

METHODS = ["ft", "mft", "gold", "brio", "self_critic", "actor_critic", "avg", "semi_offline", "brio+semi_offline"]


@dataclass
class CompareOptions:
    methods: list[str] = option(METHODS, "What is compared; all start from the same M-FT model.")
    reward: list[str] = option(
        [], "Reward by name, file.py:function, module:function or model:NAME; several are added."
    )
    seeds: list[int] = option([0], "One run for each; a method's own `seeds` in --settings go first.")
    budget_seconds: float = option(60.0, "Seconds of training for each method.")
    budget_steps: int | None = option(None, "Steps for each method, instead of seconds.")
    start_steps: int = option(300, "Steps of the M-FT stage that all start from; 0: --model is that start already.")
    start_learning_rate: float = option(2e-3, "Learning rate of the M-FT stage (the default suits the tiny model).")
    num_candidates: int = option(8, "Candidates for each input, for the methods that need them.")
    candidate_rows: int | None = option(None, "Take only so many training inputs, where candidates are needed.")
    settings: str = option("{}", 'What differs by method, as JSON: {"avg": {"num_samples": 8}}; a map in a recipe.')
    evaluations: int = option(6, "Looks at the validation split: at the end, at half of the budget, a quarter, ...")
    keep: str = option("best", "Which of these looks is tested: best (by the reward on validation) | last.")
    jobs: int = option(1, "Runs at a time, each a process; then every method is timed alone first.")
    only: str | None = option(None, "METHOD:SEED: run this one and make no table, to spread runs over machines.")


def run(argv: list[str]) -> None:
    from semioffline.comparison import Plan, compare, run_one
    from semioffline.report import plots, table

    types = [DataOptions, ModelOptions, CompareOptions, SemiOfflineConfig]
    task = parse("compare", types, argv, {"task": "ads"})[0].load_task()
    defaults = {"task": "ads", **task.settings, "eval_metrics": list(task.metrics), "report_to": "none"}
    defaults |= {"reward": [task.reward] if task.reward else None, "save_strategy": "no", "eval_strategy": "no"}
    defaults |= {
        "eval_on_start": True,
        "per_device_eval_batch_size": 100,
        "logging_steps": 50,
        "log_completions": False,
    }
    data, model, options, args = parse("compare", types, argv, defaults)
    by_method = _by_method(options, args)
    device = model.checked_device()
    folder = open_folder(str(args.output_dir), resume=True)
    console = Console()

    def settings(method: str, **changes: Any) -> SemiOfflineConfig:
        own = {k: v for k, v in by_method.get(method, {}).items() if k != "seeds"}
        flags = _as_flags(own | changes | {"method": method, "use_cpu": device == "cpu"})
        return parse("compare", types, [*argv, *flags], defaults)[3]

    start, rows = prepare(data, model, options, settings, folder, console.print)
    source = data.source(args.seed)
    this = [sys.executable, "-m", "semioffline", "compare"]
    plan = Plan(
        folder=folder,
        methods=options.methods,
        seeds={m: by_method.get(m, {}).get("seeds", options.seeds) for m in options.methods},
        rewards=options.reward,
        rows=rows,
        dev=task.load(data.source(args.seed, data.eval_limit), "validation"),
        test=task.load(source, "test"),
        load=lambda: ModelOptions(str(start), model.device, model.dtype).load(share_prompt=args.share_prompt),
        settings=settings,
        budget_seconds=options.budget_seconds,
        budget_steps=options.budget_steps,
        evaluations=options.evaluations,
        keep=options.keep,
        jobs=options.jobs,
        command=lambda method, seed: [*this, *argv, "--only", f"{method}:{seed}"],
        extra={"title": f"{data.task}: {len(options.methods)} methods", "percent": _percent(args.eval_metrics)},
    )
    if options.only is not None:
        run_one(plan, *_one(options.only, plan))
        return
    comparison = compare(plan, console.print)
    (folder / "comparison.json").write_text(json.dumps(comparison, indent=1))
    (folder / "comparison.md").write_text(table.markdown(comparison))
    plots.draw(comparison, folder)
    write_settings(folder, data, model, options, args)
    Console(width=max(160, console.width)).print(table.console(comparison))
    print(f"comparison.json, comparison.md and plots in {folder}")


def _by_method(options: CompareOptions, args: SemiOfflineConfig) -> dict[str, dict[str, Any]]:
    """Check names before anything runs."""
    if not options.reward:
        raise UserError("methods are compared by a reward: give --reward (a name, file.py:function or model:NAME)")
    for method in options.methods:
        load_method(method, args)
    if options.keep not in ("best", "last"):
        raise unknown("choice for --keep", options.keep, ["best", "last"])
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs} must be at least 1")
    try:
        by_method = json.loads(options.settings)
    except json.JSONDecodeError as error:
        raise UserError(f"--settings is not JSON: {error}") from error
    for method in by_method:
        if method not in options.methods:
            raise unknown("method in --settings", method, options.methods)
    return by_method


def _one(only: str, plan: Any) -> tuple[str, int]:
    every = [f"{method}:{seed}" for method in plan.methods for seed in plan.seeds[method]]
    if only not in every:
        raise unknown("run in --only", only, every)
    method, _, seed = only.rpartition(":")
    return method, int(seed)


def _percent(metrics: list[str]) -> dict[str, bool]:
    return {name: name.startswith(("rouge", "bleu", "corpus_bleu", "chrf", "lmqg", "meteor")) for name in metrics}


def prepare(
    data: DataOptions, model: ModelOptions, options: CompareOptions, settings: Any, folder: Path, say: Any
) -> tuple[Path, Any]:
    """The M-FT model that all methods start from, and the training rows, with candidates where a method needs them."""
    from semioffline.trainer import SemiOfflineTrainer

    task = data.load_task()
    args = settings("mft", output_dir=str(folder / "start"), max_steps=max(options.start_steps, 1))
    rows = task.load(data.source(args.seed), "train")
    start = folder / "start" / "model"
    if options.start_steps == 0:
        if model.model is None:
            raise UserError("--start_steps 0 needs --model: a model that was fine-tuned with masks")
        start = Path(model.model)
    elif not (start / "config.json").exists():
        say("start: M-FT")
        rate = {"learning_rate": options.start_learning_rate, "eval_on_start": False}
        args = settings("mft", output_dir=str(folder / "start"), max_steps=options.start_steps, **rate)
        trainer = SemiOfflineTrainer(_first_policy(data, model, args.seed), None, args, rows)
        trainer.train()
        trainer.save_model(str(start))
    chosen = [settings(method, output_dir=str(folder)) for method in options.methods]
    needs = any(
        load_method(args.method, args).needs_candidates or args.static_target != "ground_truth" for args in chosen
    )
    if needs and "candidates" not in rows.column_names:
        rows = _with_candidates(data, model, options, args, folder, start, rows, say)
    return start, rows


def _first_policy(data: DataOptions, model: ModelOptions, seed: int) -> Any:
    from semioffline.cli.demo import _policy

    if model.model is None and data.task != "ads":
        raise UserError(f"--task {data.task} needs --model")
    return _policy(model, seed)


def _with_candidates(
    data: DataOptions, model: ModelOptions, options: CompareOptions, args: SemiOfflineConfig, folder: Path, start: Path,
    rows: Any, say: Any,
) -> Any:  # fmt: skip
    from semioffline.candidates import write_candidates
    from semioffline.data import Examples
    from semioffline.decoding import Decoding
    from semioffline.scoring import RewardSet
    from semioffline.tasks.files import load_rows
    from semioffline.trainer import text_limits

    say(f"candidates: {options.num_candidates} for each input")
    if options.candidate_rows is not None:
        rows = rows.select(range(min(options.candidate_rows, len(rows))))
    device = model.checked_device()
    policy = ModelOptions(str(start), model.device, model.dtype).load().to(device)
    limits = text_limits(policy, args)
    examples = Examples(rows, policy, *limits, args.truncation_side)
    decoding = Decoding(
        do_sample=True, top_p=0.95, max_new_tokens=limits[1], num_return_sequences=options.num_candidates
    )
    rewards = RewardSet(options.reward, args.reward_weights, device=device)
    made_with = asdict(data) | {"reward": options.reward}
    path = write_candidates(
        policy,
        examples,
        rows,
        decoding,
        rewards,
        folder / "candidates",
        made_with,
        args.per_device_eval_batch_size,
        1024,
        args.seed,
    )
    return load_rows(path)
