"""Prepare what all runs of a comparison share: the initial M-FT checkpoint and the training rows."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from semioffline.cli.compare_options import CompareOptions
from semioffline.cli.demo import initial_policy
from semioffline.cli.recipes import Recipe
from semioffline.config import MethodConfig, defining_settings
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.experiments.identity import TEXT
from semioffline.methods.shared.registry import load_method
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet, check_names
from semioffline.storage.files import lock_folder, make_folder, read_json, write_atomically

if TYPE_CHECKING:
    from datasets import Dataset

PREPARATION = "preparation.json"


def prepare(
    data: DataOptions,
    model: ModelOptions,
    options: CompareOptions,
    settings: Callable[..., MethodConfig],
    first: partial[MethodConfig],
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Path, Dataset]:
    """Return the folder of the M-FT model that all methods start from, and the training rows, with candidates if a
    method needs them. first: the settings of the M-FT stage."""
    from semioffline.data.candidates import check_settings
    from semioffline.tasks.reading.rows import load_rows
    from semioffline.training.trainer import SemiOfflineTrainer

    check_names(options.reward)
    start = folder / "start" / "model"
    if options.start_steps == 0:
        if model.model is None:
            raise UserError("--start_steps 0 needs --model MODEL, a model that was fine-tuned with masks")
        if options.unseen_inputs is not None:
            raise UserError("--unseen_inputs needs an M-FT stage, and --start_steps 0 skips it: give only one of them")
        start = Path(model.model)
    chosen = [load_method(settings(method, output_dir=str(folder))) for method in options.methods]
    needs = any(method.needs_candidates or method.static_target != "ground_truth" for method in chosen)
    args = first(max_steps=max(options.start_steps, 1))
    made = _is_saved(start)
    noted, wanted = start.parent / "settings.json", _start_made_with(data, model, options, args, first)
    if options.start_steps and made:
        check_settings(noted, wanted, "a start")
    if needs and made:
        before = _made_before(_made_with(data, options, args), data, options, folder)
        if before is not None:
            return start, _with_any(load_rows(before, max_row_mb=data.max_row_mb), say)
    task = data.load_task()
    seen = rows = task.load(data.source(args.seed), "train")
    if options.unseen_inputs is not None:
        seen, rows = divide_inputs(rows, options.unseen_inputs, args.seed)
    if options.start_steps and not made:
        say("start: M-FT")
        make_folder(noted.parent)
        lock_folder(noted.parent)
        shutil.rmtree(start, ignore_errors=True)  # of an attempt that was killed while it was saved
        noted.unlink(missing_ok=True)  # of one that was never finished
        check_settings(noted, wanted, "a start")
        rate = first.keywords.get("learning_rate", options.start_learning_rate)
        args = first(max_steps=options.start_steps, learning_rate=rate, eval_on_start=False, write_result=False)
        trainer = SemiOfflineTrainer(_first_policy(data, model, args.seed), None, args, seen)
        with _noting_seconds(folder, "M-FT"):
            trainer.train()
        trainer.save_model(str(start))
    if needs and "candidates" not in rows.column_names:
        rows = _with_candidates(data, model, options, args, folder, start, rows, say)
    return start, rows


def _is_saved(model: Path) -> bool:
    """Return whether a model was saved completely: the tokenizer is written last. Earlier versions did not write
    atomically."""
    weights, index = list(model.glob("*.safetensors")), model / "model.safetensors.index.json"
    try:
        if index.exists():
            weights += [model / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()]
        for path in weights:
            with safe_open(path, "pt"):  # refuses one that is cut off
                pass
    except (OSError, ValueError, LookupError, SafetensorError):
        return False
    return bool(weights) and (model / "tokenizer_config.json").exists()


def _made_before(wanted: Recipe, data: DataOptions, options: CompareOptions, folder: Path) -> Path | None:
    """Return the candidates that were made for all runs, so that one run by itself (--only METHOD:SEED) need not check
    everything again; None if it must."""
    from semioffline.data.candidates import OUTPUT

    path, told = folder / "candidates" / OUTPUT, folder / "candidates" / "settings.json"
    if options.only in (None, "timing") or str(options.only).startswith("start:") or data.train_file is not None:
        return None
    if not (path.exists() and told.exists()):
        return None
    before = read_json(told)
    return path if {name: before.get(name) for name in wanted} == wanted else None


def _training_data(data: DataOptions) -> Recipe:
    names = defining_settings(DataOptions)
    return {name: value for name, value in data.made_with().items() if name in names}


def _made_with(data: DataOptions, options: CompareOptions, args: MethodConfig) -> Recipe:
    """Return the settings that candidates depend on, apart from the model."""
    names = ("reward", "unseen_inputs", "num_candidates", "candidate_temperature", "candidate_rows")
    own = {"bf16": bool(args.bf16), "seed": args.seed} | {name: getattr(options, name) for name in names}
    return _training_data(data) | _lengths(args) | own


def _lengths(args: MethodConfig) -> Recipe:
    return {name: getattr(args, name) for name in TEXT}


def _start_made_with(
    data: DataOptions, model: ModelOptions, options: CompareOptions, args: MethodConfig, first: partial[MethodConfig]
) -> Recipe:
    """Return the settings of the M-FT stage and of the truncation of its texts."""
    names = ("start_steps", "start_learning_rate", "unseen_inputs")
    own = {name: value for name, value in first.keywords.items() if name != "output_dir"}
    own = {name: getattr(options, name) for name in names} | own
    return _training_data(data) | _lengths(args) | {"model": model.model} | own


@contextmanager
def _noting_seconds(folder: Path, what: str) -> Iterator[None]:
    """Record the seconds of shared stages, which do not count as budget of a method."""
    began = time.perf_counter()
    yield
    known = seconds_before(folder) | {what: time.perf_counter() - began}
    write_atomically(folder / PREPARATION, json.dumps(known, indent=1))


def seconds_before(folder: Path) -> dict[str, float]:
    """Return the seconds of each shared stage."""
    path = folder / PREPARATION
    return read_json(path) if path.exists() else {}


def divide_inputs(rows: Dataset, number: int, seed: int) -> tuple[Dataset, Dataset]:
    """Split rows by input. Return (the rows of all other inputs, the rows of `number` inputs)."""
    prompts = [str(prompt) for prompt in rows["prompt"]]
    inputs = list(dict.fromkeys(prompts))
    if not 0 < number < len(inputs):
        raise UserError(
            f"unseen_inputs={number} must leave inputs for both stages: the training data has {len(inputs)}"
        )
    left_out = set(random.Random(seed).sample(inputs, number))
    kept = [[n for n, prompt in enumerate(prompts) if (prompt in left_out) is out] for out in (False, True)]
    return rows.select(kept[0]), rows.select(kept[1])


def _first_policy(data: DataOptions, model: ModelOptions, seed: int) -> Policy:
    if model.model is None and data.task != "ads":
        raise UserError(f"--task {data.task} needs --model")
    return initial_policy(model, seed)


def _with_candidates(
    data: DataOptions, model: ModelOptions, options: CompareOptions, args: MethodConfig, folder: Path, start: Path,
    rows: Dataset, say: Callable[[str], None],
) -> Dataset:  # fmt: skip
    import torch

    from semioffline.data.candidates import OUTPUT, write_candidates
    from semioffline.data.examples import Examples
    from semioffline.data.lengths import text_limits
    from semioffline.tasks.reading.rows import load_rows

    say(f"candidates: {options.num_candidates} for each input")
    if options.candidate_rows is not None:
        rows = rows.shuffle(seed=args.seed).select(range(min(options.candidate_rows, len(rows))))
    device = model.checked_device()
    policy = ModelOptions(str(start), model.device, model.dtype).load().to(device)
    if args.cuda_graphs:
        policy.generator.replay_decoding(must=False)
    limits = text_limits(policy, args)
    examples = Examples(rows, policy, *limits, args.truncation_side)
    decoding = options.sampling(limits[1])
    rewards = RewardSet(options.reward, args.reward_weights, device=device, timeout=args.reward_timeout)
    where = (folder / "candidates", _made_with(data, options, args), args.per_device_eval_batch_size, 1024, args.seed)
    half = torch.autocast(policy.device.type, torch.bfloat16, enabled=bool(args.bf16))  # as training decodes
    begun = where[0].exists()  # then nobody knows how long it took in total
    if not (where[0] / OUTPUT).exists():
        make_folder(where[0])
        lock_folder(where[0])
    with half, nullcontext() if begun else _noting_seconds(folder, "candidates"):
        path = write_candidates(policy, examples, rows, decoding, rewards, *where)
    return _with_any(load_rows(path, max_row_mb=data.max_row_mb), say)


def _with_any(rows: Dataset, say: Callable[[str], None]) -> Dataset:
    """Keep only the rows that have a candidate."""
    kept = rows.filter(bool, input_columns="candidates")
    if len(kept) < len(rows):
        say(f"{len(rows) - len(kept)} of {len(rows)} rows have no candidate and are left out")
    return kept
