"""semioffline compare: what each method buys and costs, on one's own data."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from semioffline.cli.options import DataOptions, ModelOptions, _as_flags, _take_config, at_least, parse
from semioffline.cli.run_folder import about, open_folder, write_settings
from semioffline.config import SemiOfflineConfig, option
from semioffline.errors import UserError, unknown
from semioffline.methods import load_method
from semioffline.policy.decoding import Decoding
from semioffline.scoring.reward_set import RewardSet, check_names

OWN = ("seeds", "steps")
"""What --settings may say about a method that is not a setting of SemiOfflineConfig."""
DEFAULTS = {"report_to": "none", "save_strategy": "no", "eval_strategy": "no", "eval_on_start": True}
DEFAULTS |= {"per_device_eval_batch_size": 100, "logging_steps": 50, "log_completions": False}
ANYWHERE = {"use_cpu": True, "bf16": False, "fp16": False, "cuda_graphs": False}
"""For a table of runs, which may have been made on another machine."""
PREPARATION = "preparation.json"
METHODS = ["ft", "mft", "gold", "brio", "self_critic", "actor_critic", "avg", "semi_offline", "brio+semi_offline"]


@dataclass
class CompareOptions:
    methods: list[str] = option(
        METHODS, "What is compared, all from the same M-FT start; METHOD@LABEL is METHOD with settings of its own."
    )
    reward: list[str] = option(
        [], "Reward by name, file.py:function, module:function or model:NAME; several are added."
    )
    seeds: list[int] = option([0], "One run for each; a method's own `seeds` (or `steps`) in --settings go first.")
    budget_seconds: float = option(60.0, "Seconds of training for each method.")
    budget_steps: int | None = option(None, "Steps for each method, instead of seconds.")
    start_steps: int = option(300, "Steps of the M-FT stage that all start from; 0: --model is that start already.")
    start_learning_rate: float = option(2e-3, "Learning rate of the M-FT stage (the default suits the tiny model).")
    unseen_inputs: int | None = option(
        None, "The M-FT stage leaves out so many training inputs, and all methods train on these alone."
    )
    num_candidates: int = option(8, "Candidates for each input, for the methods that need them.")
    candidate_temperature: float = option(1.0, "Their temperature: the lower, the more alike the most likely text.")
    candidate_rows: int | None = option(None, "Take only so many training inputs, where candidates are needed.")
    settings: str = option("{}", 'What differs by method, as JSON: {"avg": {"num_samples": 8}}; a map in a recipe.')
    evaluations: int = option(6, "Looks at the validation split: at the end, at half of the budget, a quarter, ...")
    keep: str = option("best", "Which of these looks is tested: best (by the reward on validation) | last.")
    jobs: int = option(
        1, "Runs at a time, each a process; a budget in seconds is then planned by timing every method alone first."
    )
    beside: list[str] = option(
        [], "LABEL=FOLDER of other comparisons with the same start: METHOD@LABEL in the table are their runs."
    )
    only: str | None = option(
        None, "METHOD:SEED, start:SEED or timing: do this and make no table; table: make one of what is done."
    )

    def sampling(self, max_new_tokens: int) -> Decoding:
        """How candidates are made."""
        return Decoding(
            do_sample=True,
            temperature=self.candidate_temperature,
            top_p=0.95,
            max_new_tokens=max_new_tokens,
            num_return_sequences=self.num_candidates,
        )


def run(argv: list[str]) -> None:
    from semioffline.experiments.comparison import (
        START,
        Plan,
        compare,
        labelled_folders,
        run_one,
        summarise,
        time_methods,
    )

    types = [DataOptions, ModelOptions, CompareOptions, SemiOfflineConfig]
    whole, only = _split_only(argv)
    table_only = only == "table"
    argv = [*argv, *_as_flags(ANYWHERE if table_only else {})]
    task = parse("compare", types, argv, {"task": "ads"})[0].load_task()
    defaults = {"task": "ads", **task.settings, "eval_metrics": list(task.metrics), **DEFAULTS}
    defaults |= {"reward": [task.reward] if task.reward else None}
    data, model, options, args = parse("compare", types, argv, defaults)
    by_method, beside = _by_method(options, args, _listed(argv)), labelled_folders(options.beside)
    device = model.checked_device()
    folder = open_folder(str(args.output_dir), resume=True)
    console = Console()

    def settings(method: str, **changes: Any) -> SemiOfflineConfig:
        own = {k: v for k, v in by_method[method].items() if k not in OWN}
        set_to: dict[str, Any] = {"method": method.partition("@")[0], "use_cpu": device == "cpu"}
        if method == START:  # no candidates yet; its own settings are for its training: it is tested as all are
            own, set_to = {}, set_to | {"method": "mft", "static_target": "ground_truth"}
        flags = _as_flags(own | changes | set_to)
        return parse("compare", types, [*argv, *flags], defaults)[3]

    first = partial(settings, START, **by_method[START] | {"output_dir": str(folder / "start")})
    start, rows = (None, None) if table_only else prepare(data, model, options, settings, first, folder, console.print)
    plan = Plan(
        folder=folder,
        methods=[START, *options.methods],
        seeds=_seeds(options, by_method) | {START: options.seeds[:1]},
        steps={m: by_method[m]["steps"] for m in options.methods if by_method[m].get("steps")},
        rewards=options.reward,
        rows=rows,
        dev=None if table_only else task.load(data.source(args.seed, data.eval_limit), "validation"),
        test=None if table_only else task.load(data.source(args.seed), "test"),
        load=lambda: ModelOptions(str(start), model.device, model.dtype).load(share_prompt=args.share_prompt),
        settings=settings,
        budget_seconds=options.budget_seconds,
        budget_steps=options.budget_steps,
        evaluations=options.evaluations,
        keep=options.keep,
        jobs=options.jobs,
        command=lambda method, seed: _command_of_one(argv, options.jobs, f"{method}:{seed}"),
        about=about("compare", whole),
        made_with={"data": asdict(data)} | {k: getattr(options, k) for k in ("reward", "keep", "evaluations")},
        beside=beside,
        extra={
            "kind": "comparison",
            "title": f"{data.task}: {len(options.methods)} methods",
            "own_settings": {method: own for method, own in by_method.items() if own},
            "preparation": _preparation(folder),
        },
    )
    if options.only == "timing":
        return time_methods(plan, console.print, plan.methods)
    if options.only is not None and not table_only:
        return run_one(plan, *_one(options.only, plan))
    _write(summarise(plan) if table_only else compare(plan, console.print), folder)
    write_settings(folder, data, model, options, args)


def _seeds(options: CompareOptions, by_method: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    return {method: list(dict.fromkeys(by_method[method].get("seeds", options.seeds))) for method in options.methods}


def _command_of_one(argv: list[str], jobs: int, only: str) -> list[str]:
    """One run in a process of its own, which leaves the others their share of the cores."""
    own = {"reward_workers": max(0, (os.cpu_count() or 1) // jobs - 1), "disable_tqdm": True}  # it writes to a file
    return [sys.executable, "-m", "semioffline", "compare", *_as_flags(own), *argv, "--only", only]


def _write(comparison: dict[str, Any], folder: Path) -> None:
    from semioffline.report import plots, table

    (folder / "comparison.json").write_text(json.dumps(comparison, indent=1))
    (folder / "comparison.md").write_text(table.markdown(comparison))
    Console(width=max(200, Console().width)).print(table.console(comparison))
    plots.draw(comparison, folder)
    print(f"comparison.json, comparison.md and plots in {folder}")


def _listed(argv: list[str]) -> list[str]:
    """The methods of the recipe, whatever --methods says."""
    recipe, _ = _take_config(argv)
    listed = [] if recipe is None else recipe.get("methods", METHODS)
    return [str(listed)] if not isinstance(listed, list) else listed


def _by_method(options: CompareOptions, args: SemiOfflineConfig, listed: list[str]) -> dict[str, dict[str, Any]]:
    """Each method's own settings, those of METHOD before those of METHOD@LABEL. All names are checked here.

    listed: the recipe's methods. --methods may leave some of them out; their settings are then not used.
    """
    from semioffline.experiments.comparison import START

    if not options.reward:
        raise UserError("methods are compared by a reward: give --reward (a name, file.py:function or model:NAME)")
    for method in options.methods:
        load_method(method.partition("@")[0], args)
    if options.keep not in ("best", "last"):
        raise unknown("choice for --keep", options.keep, ["best", "last"])
    at_least(1, options, "jobs", "evaluations", "budget_steps", "num_candidates", "candidate_rows")
    at_least(0, options, "start_steps", "seeds")
    if not 0 < options.budget_seconds < math.inf:
        raise UserError(f"--budget_seconds {options.budget_seconds} must be positive")
    if args.early_stopping_patience is not None:
        raise UserError("early_stopping_patience: in a comparison all seeds of a method have the same steps")
    options.sampling(1)
    try:
        given = json.loads(options.settings)
    except json.JSONDecodeError as error:
        raise UserError(f"--settings is not JSON: {error}") from error
    _check_shape(given)
    bases = [method.partition("@")[0] for method in options.methods]
    for method in given:
        if method not in [START, *options.methods, *bases, *listed, *(name.partition("@")[0] for name in listed)]:
            raise unknown("method in --settings", method, [START, *options.methods])
    own = {m: given.get(base, {}) | given.get(m, {}) for m, base in zip(options.methods, bases, strict=True)}
    return own | {START: {k: v for k, v in given.get(START, {}).items() if k not in OWN}}


def _made_before(wanted: dict[str, Any], data: DataOptions, options: CompareOptions, folder: Path) -> Path | None:
    """The candidates that were made for all runs: one run by itself (--only METHOD:SEED) does not look at everything
    again. None: it must."""
    from semioffline.data.candidates import OUTPUT

    path, told = folder / "candidates" / OUTPUT, folder / "candidates" / "settings.json"
    if options.only in (None, "timing") or str(options.only).startswith("start:") or data.train_file is not None:
        return None
    if not (path.exists() and told.exists()):
        return None
    before = json.loads(told.read_text())
    return path if {name: before.get(name) for name in wanted} == wanted else None


def _training_data(data: DataOptions) -> dict[str, Any]:
    return {k: v for k, v in asdict(data).items() if k not in ("eval_limit", "validation_file", "test_file")}


def _made_with(data: DataOptions, options: CompareOptions, args: SemiOfflineConfig) -> dict[str, Any]:
    """What candidates depend on, beside the model."""
    names = ("reward", "unseen_inputs", "num_candidates", "candidate_temperature", "candidate_rows")
    own = {"bf16": bool(args.bf16), "seed": args.seed} | {name: getattr(options, name) for name in names}
    return _training_data(data) | _lengths(args) | own


def _lengths(args: SemiOfflineConfig) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("max_prompt_length", "max_completion_length", "truncation_side")}


def _start_made_with(
    data: DataOptions, model: ModelOptions, options: CompareOptions, args: SemiOfflineConfig, first: Any
) -> dict[str, Any]:
    """What is said of the M-FT stage alone, and how its texts are cut."""
    names = ("start_steps", "start_learning_rate", "unseen_inputs")
    own = {name: value for name, value in first.keywords.items() if name != "output_dir"}
    own = {name: getattr(options, name) for name in names} | own
    return _training_data(data) | _lengths(args) | {"model": model.model} | own


def _check_shape(given: Any) -> None:
    """Of --settings: {method: {name: value}}, with seeds and steps as they are used here."""
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        raise UserError('--settings must be a map of methods to maps of settings: {"avg": {"num_samples": 8}}')
    for method, own in given.items():
        seeds, steps = own.get("seeds", [0]), own.get("steps")
        if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise UserError(f"--settings: the seeds of {method} must be a list of numbers, not {seeds}")
        if steps is not None and (type(steps) is not int or steps < 1):
            raise UserError(f"--settings: the steps of {method} must be a positive number, not {steps}")


def _one(only: str, plan: Any) -> tuple[str, int]:
    every = [f"{method}:{seed}" for method in plan.methods for seed in plan.seeds[method]]
    if only not in every:
        raise unknown("run in --only", only, [*every, "timing", "table"])
    method, _, seed = only.rpartition(":")
    return method, int(seed)


def _split_only(argv: list[str]) -> tuple[list[str], str | None]:
    """The command of the whole comparison, and what --only says: before anything else is read, because a table needs no
    GPU whatever the settings ask for."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--only")
    found, whole = parser.parse_known_args(argv)
    return whole, found.only


def prepare(
    data: DataOptions, model: ModelOptions, options: CompareOptions, settings: Any, first: Any, folder: Path, say: Any
) -> tuple[Path, Any]:
    """The M-FT model that all methods start from, and the training rows, with candidates where a method needs them.
    first: the settings of the M-FT stage."""
    from semioffline.data.candidates import check_settings
    from semioffline.tasks.files import load_rows
    from semioffline.training.trainer import SemiOfflineTrainer

    check_names(options.reward)
    start = folder / "start" / "model"
    if options.start_steps == 0:
        if model.model is None:
            raise UserError("--start_steps 0 needs --model: a model that was fine-tuned with masks")
        if options.unseen_inputs is not None:
            raise UserError("--unseen_inputs are left out of the M-FT stage, and --start_steps 0 has none")
        start = Path(model.model)
    chosen = [settings(method, output_dir=str(folder)) for method in options.methods]
    needs = any(
        load_method(args.method, args).needs_candidates or args.static_target != "ground_truth" for args in chosen
    )
    args = first(max_steps=max(options.start_steps, 1))
    made = (start / "config.json").exists()
    noted, wanted = start.parent / "settings.json", _start_made_with(data, model, options, args, first)
    if options.start_steps and made:
        check_settings(noted, wanted, "a start")
    if needs and made:
        before = _made_before(_made_with(data, options, args), data, options, folder)
        if before is not None:
            return start, _with_any(load_rows(before), say)
    task = data.load_task()
    seen = rows = task.load(data.source(args.seed), "train")
    if options.unseen_inputs is not None:
        seen, rows = _divide(rows, options.unseen_inputs, args.seed)
    if options.start_steps and not made:
        say("start: M-FT")
        noted.parent.mkdir(exist_ok=True)
        noted.unlink(missing_ok=True)  # of one that was never finished
        check_settings(noted, wanted, "a start")
        rate = first.keywords.get("learning_rate", options.start_learning_rate)
        args = first(max_steps=options.start_steps, learning_rate=rate, eval_on_start=False)
        trainer = SemiOfflineTrainer(_first_policy(data, model, args.seed), None, args, seen)
        with _noting_seconds(folder, "M-FT"):
            trainer.train()
        trainer.save_model(str(start))
    if needs and "candidates" not in rows.column_names:
        rows = _with_candidates(data, model, options, args, folder, start, rows, say)
    return start, rows


@contextmanager
def _noting_seconds(folder: Path, what: str) -> Iterator[None]:
    """Of what all methods share, which their budget does not count."""
    began = time.perf_counter()
    yield
    known = _preparation(folder) | {what: time.perf_counter() - began}
    (folder / PREPARATION).write_text(json.dumps(known, indent=1))


def _preparation(folder: Path) -> dict[str, float]:
    path = folder / PREPARATION
    return json.loads(path.read_text()) if path.exists() else {}


def _divide(rows: Any, number: int, seed: int) -> tuple[Any, Any]:
    """(the rows of all other inputs, the rows of `number` inputs)"""
    prompts = [str(prompt) for prompt in rows["prompt"]]
    inputs = list(dict.fromkeys(prompts))
    if not 0 < number < len(inputs):
        raise UserError(f"unseen_inputs={number} must leave inputs to both stages: there are {len(inputs)}")
    left_out = set(random.Random(seed).sample(inputs, number))
    kept = [[n for n, prompt in enumerate(prompts) if (prompt in left_out) is out] for out in (False, True)]
    return rows.select(kept[0]), rows.select(kept[1])


def _first_policy(data: DataOptions, model: ModelOptions, seed: int) -> Any:
    from semioffline.cli.demo import _policy

    if model.model is None and data.task != "ads":
        raise UserError(f"--task {data.task} needs --model")
    return _policy(model, seed)


def _with_candidates(
    data: DataOptions, model: ModelOptions, options: CompareOptions, args: SemiOfflineConfig, folder: Path, start: Path,
    rows: Any, say: Any,
) -> Any:  # fmt: skip
    import torch

    from semioffline.data.candidates import write_candidates
    from semioffline.data.examples import Examples
    from semioffline.tasks.files import load_rows
    from semioffline.training.trainer import text_limits

    say(f"candidates: {options.num_candidates} for each input")
    if options.candidate_rows is not None:
        rows = rows.shuffle(seed=args.seed).select(range(min(options.candidate_rows, len(rows))))
    device = model.checked_device()
    policy = ModelOptions(str(start), model.device, model.dtype).load().to(device)
    if args.cuda_graphs:
        policy.replay_decoding(must=False)
    limits = text_limits(policy, args)
    examples = Examples(rows, policy, *limits, args.truncation_side)
    decoding = options.sampling(limits[1])
    rewards = RewardSet(options.reward, args.reward_weights, device=device)
    where = (folder / "candidates", _made_with(data, options, args), args.per_device_eval_batch_size, 1024, args.seed)
    half = torch.autocast(policy.device.type, torch.bfloat16, enabled=bool(args.bf16))  # as training decodes
    begun = where[0].exists()  # then nobody knows how long it took in all
    with half, nullcontext() if begun else _noting_seconds(folder, "candidates"):
        path = write_candidates(policy, examples, rows, decoding, rewards, *where)
    return _with_any(load_rows(path), say)


def _with_any(rows: Any, say: Any) -> Any:
    """Without the rows for which the model wrote nothing that could be scored."""
    kept = rows.filter(bool, input_columns="candidates")
    if len(kept) < len(rows):
        say(f"{len(rows) - len(kept)} of {len(rows)} rows have no candidate and are left out")
    return kept
