"""Settings that every method reads: Transformers' TrainingArguments, and those of this library.

A method adds its own in its file (`GoldConfig`, `BrioConfig`, ...). Every setting declares its type, range, group and
help once, with `setting`; validation and the help of the command line are made from that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, Self, cast, get_type_hints

import torch
from transformers import SchedulerType, TrainingArguments, get_scheduler

from semioffline.errors import UserError, told_in_one_line, unknown
from semioffline.validation import (
    BATCH,
    BEAMS,
    NOT_NEGATIVE,
    PENALTY,
    POSITIVE,
    PROCESSES,
    SECONDS,
    SEED,
    SHARE,
    STEPS,
    TOKENS,
    Description,
    Range,
    describe,
    setting,
    show,
    wrong_settings,
)

TruncationSide = Literal["left", "right"]
StaticTarget = Literal["ground_truth", "worst", "best", "random"]
_EVERY = STEPS._replace(low=0, open_low=True)


TRANSFORMERS: dict[str, tuple[str, Range | None]] = {
    "output_dir": ("Run folder.", None),
    "max_steps": ("Optimizer steps; -1: num_train_epochs decides.", STEPS._replace(also=-1)),
    "num_train_epochs": ("Passes over the training data.", Range(0, 10**6, open_low=True)),
    "per_device_train_batch_size": ("Inputs of one forward pass and device.", BATCH),
    "gradient_accumulation_steps": ("Forward passes of one optimizer step.", BATCH),
    "learning_rate": ("Highest learning rate.", NOT_NEGATIVE),
    "lr_scheduler_type": ("Schedule of the learning rate: linear, constant, cosine, ...", None),
    "warmup_steps": ("Steps until the learning rate is reached; below 1: a share of all steps.", STEPS._replace(low=0)),
    "max_grad_norm": ("Gradients are clipped to this norm; 0: never.", NOT_NEGATIVE),
    "label_smoothing_factor": ("Label smoothing of the MLE loss.", SHARE),
    "optim": ("Optimizer: adamw_torch_fused, adafactor, sgd, ...", None),
    "seed": ("Random seed.", SEED),
    "bf16": ("Compute in bfloat16, with weights in --dtype.", None),
    "gradient_checkpointing": ("Less memory for activations, at one more forward pass.", None),
    "torch_compile": ("Compile the layers of the model.", None),
    "per_device_eval_batch_size": ("Inputs decoded at a time in evaluation.", BATCH),
    "eval_strategy": ("When to evaluate on the validation split: no, steps, epoch.", None),
    "eval_steps": ("Steps between two evaluations; below 1: a share of all steps.", _EVERY),
    "load_best_model_at_end": ("Load the checkpoint with the best metric_for_best_model at the end.", None),
    "metric_for_best_model": ("What the best checkpoint is chosen by; the reward where there is one.", None),
    "save_strategy": ("When to write a checkpoint: no, steps, epoch, best.", None),
    "save_steps": ("Steps between two checkpoints; below 1: a share of all steps.", _EVERY),
    "report_to": ("Loggers: none, tensorboard, wandb, ...", None),
}
"""Settings of Transformers that `--help` lists, with their help and range. `--help-all` lists the others too."""
_DEFINING = {"seed", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim"}
_DEFINING |= {"weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor"}
_DEFINING |= {"train_sampling_strategy"}
"""Transformers' settings that a resumed run must not change."""
_RANGES = {"adam_beta1": Range(0, 1, open_high=True), "adam_beta2": Range(0, 1, open_high=True), "data_seed": SEED}
_RANGES |= dict.fromkeys(("weight_decay", "eval_delay", "neftune_noise_alpha"), NOT_NEGATIVE)
_RANGES |= {"adam_epsilon": POSITIVE}  # at 0, a gradient of 0 makes a weight NaN
_RANGES |= dict.fromkeys(("eval_accumulation_steps", "torch_empty_cache_steps"), STEPS)
_RANGES |= {"dataloader_num_workers": PROCESSES, "dataloader_prefetch_factor": Range(1, 1024), "ddp_timeout": STEPS}
_RANGES |= {name: allowed for name, (_, allowed) in TRANSFORMERS.items() if allowed is not None}
_CHECKPOINTING = {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}
"""Arguments of torch.utils.checkpoint."""
_NESTED = ("accelerator_config", "deepspeed", "fsdp", "fsdp_config", "parallelism_config")
"""Settings that contain settings. Transformers' errors about them do not name the outer setting."""
_PLACES = {"output_dir", "resume_from_checkpoint"}


@dataclass
class MethodConfig(TrainingArguments):
    """Settings that all methods read. A subclass of Transformers' `TrainingArguments`."""

    method: ClassVar[str] = ""
    """The name of the method that reads this config; empty for a method object of your own."""

    # Rewards
    reward_weights: list[float] | None = setting(
        None, "Weight of each reward. Default: all 1.", "Reward", Range(-(10**9), 10**9)
    )
    reward_timeout: float | None = setting(
        None,
        "Time limit for one call of a reward function, in seconds. Default: no limit. An evaluation scores all outputs "
        "in one call; its limit is this time for each training batch of outputs.",
        "Reward",
        SECONDS,
        free=True,
    )
    overlap_rewards: bool = setting(
        True, "Score samples while the device computes. The results are the same.", "Advanced", free=True
    )
    reward_workers: int | None = setting(
        None,
        "Processes that compute built-in rewards. Default: one per spare core; 0 for a model on the CPU.",
        "Advanced",
        PROCESSES,
        free=True,
    )
    # Text
    max_prompt_length: int | None = setting(
        None, "Longest source in tokens. Default: 512, or the model's maximum.", "Text", TOKENS
    )
    max_completion_length: int | None = setting(
        None, "Longest target in tokens. Default: 128, or the model's maximum.", "Text", TOKENS
    )
    truncation_side: TruncationSide | None = setting(
        None, "Side where long prompts are cut: left (default for decoder-only models) | right.", "Text"
    )
    # Model
    disable_dropout: bool = setting(False, "Set every dropout probability to 0.", "Advanced")
    share_prompt: bool = setting(
        True, "Compute the decoder's work on the source once for all rows of an input.", "Advanced", free=True
    )
    pad_to_multiple_of: int = setting(
        1,
        "Pad texts to a multiple of this many tokens, for fewer shapes in torch_compile.",
        "Advanced",
        BATCH,
        free=True,
    )
    cuda_graphs: bool = setting(
        False,
        "Replay model and decoding as CUDA graphs. Combine with pad_to_multiple_of.",
        "Speed and memory",
        free=True,
    )
    # Evaluation by generation
    eval_metrics: list[str] = setting(
        ["rouge1", "rouge2", "rougeL"], "Names of the metrics to evaluate during training.", "Evaluation", free=True
    )
    num_beams: int = setting(1, "Number of beams in evaluation; 1: greedy decoding.", "Evaluation", BEAMS, free=True)
    length_penalty: float = setting(
        1.0, "Beam search: exponent of the length in a beam's score.", "Evaluation", PENALTY, free=True
    )
    no_repeat_ngram_size: int = setting(
        0, "Never repeat an n-gram of this size in evaluation; 0: no limit.", "Evaluation", NOT_NEGATIVE, free=True
    )
    min_new_tokens: int = setting(0, "Shortest output in evaluation, in tokens.", "Evaluation", NOT_NEGATIVE, free=True)
    early_stopping_patience: int | None = setting(
        None,
        "Stop after this many evaluations without a better metric_for_best_model.",
        "Evaluation",
        STEPS,
        free=True,
    )
    # Log
    log_completions: bool = setting(True, "Write sampled completions to completions/step-*.parquet.", "Log", free=True)
    write_result: bool = setting(
        True,
        "Write result.json after training. With a validation split, also decode it before and after training, into "
        "before.jsonl and predictions.jsonl.",
        "Advanced",
        free=True,
    )
    num_completions_to_print: int = setting(
        0, "Inputs to print at every log step, each with its best sample.", "Advanced", NOT_NEGATIVE, free=True
    )
    # Checkpoints
    save_minutes: float | None = setting(
        10.0,
        "Also write a checkpoint if the last one is this many minutes old. Only with one process, and not with "
        "save_strategy=no.",
        "Advanced",
        Range(0, 10**6, open_low=True),
        free=True,
    )
    save_total_limit: int | None = setting(
        1,
        "Checkpoints to keep, in addition to the best one if it is loaded at the end. Each is about three times the "
        "size of the model. With 2, a run can continue if the last checkpoint is damaged.",
        "Training",
        STEPS._replace(low=0),
        free=True,
    )
    # Transformers' own, with other defaults
    logging_steps: float = setting(
        10, "Steps between two log lines; below 1: a share of all steps.", "Log", _EVERY, free=True
    )
    verbose: bool = setting(False, "Show the log lines and progress bars of Transformers.", "Log", free=True)
    disable_tqdm: bool | None = setting(
        False, "Print plain log lines instead of a live progress line.", "Advanced", free=True
    )
    logging_nan_inf_filter: bool = setting(False, "Fixed: a loss that is not finite stops training.", free=True)
    remove_unused_columns: bool = setting(False, "Fixed: rewards may need any column, so none is removed.", free=True)
    ddp_find_unused_parameters: bool | None = setting(False, "Fixed: every parameter is used in every step.", free=True)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Reject settings that this method does not read, and suggest the nearest name that it reads."""
        for name in settings.keys() - setting_names(cls):
            raise unknown(f"setting of {cls.method or 'a method'}", name, setting_names(cls))
        return super().__new__(cls)

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """Make a config from a map of settings."""
        values: dict[str, Any] = dict(settings)
        return cls(**values)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        wrong = list(wrong_settings(self, config_descriptions(kind))) or self.problems()
        if wrong:
            raise UserError("; ".join(wrong))
        if isinstance(self.lr_scheduler_kwargs, str):
            with told_in_one_line(ValueError, before="lr_scheduler_kwargs is not JSON: "):
                json.loads(self.lr_scheduler_kwargs)
        chooses = self.load_best_model_at_end or self.early_stopping_patience is not None
        if chooses and self.metric_for_best_model is None:
            self.metric_for_best_model = "reward"
        given = ((name, getattr(self, name)) for name in _NESTED)
        before = "".join(f"{name}={show(value)}: " for name, value in given if value)
        with told_in_one_line(Exception, before=before):  # Transformers finds out what is wrong in many ways
            super().__post_init__()
        for name in set(self.gradient_checkpointing_kwargs or {}) - _CHECKPOINTING:
            raise unknown("name in gradient_checkpointing_kwargs", str(name), _CHECKPOINTING)
        self._try_scheduler()

    @property
    def shows_bars(self) -> bool:
        """Whether loops show their progress."""
        return not self.disable_tqdm and not self.verbose and self.local_process_index == 0

    def to_dict(self) -> dict[str, object]:
        return {"method": self.method} | super().to_dict()

    def _try_scheduler(self) -> None:
        """Report invalid arguments of the learning rate schedule now, before data and model are loaded."""
        kind, own = SchedulerType(self.lr_scheduler_type), cast(Any, self.lr_scheduler_kwargs)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=self.learning_rate)
        with told_in_one_line(Exception, before=f"lr_scheduler_type={kind.value}, lr_scheduler_kwargs={own}: "):
            get_scheduler(kind, optimizer, 10, 10_000_000, own)

    def problems(self) -> list[str]:
        """Return the problems of combinations of settings that are valid alone. The config of a method adds its own."""
        wrong = []
        if self.early_stopping_patience is not None and self.eval_strategy == "no":
            wrong.append("early_stopping_patience needs evaluations: set eval_strategy")
        if self.load_best_model_at_end and self.eval_strategy == "no":
            wrong.append("load_best_model_at_end needs evaluations: set eval_strategy, and save_strategy to the same")
        if self.cuda_graphs and self.gradient_accumulation_steps > 1:
            wrong.append(
                f"cuda_graphs cannot be combined with gradient_accumulation_steps={self.gradient_accumulation_steps}: "
                "use a larger batch instead"
            )
        if self.neftune_noise_alpha is not None or self.use_liger_kernel:
            wrong.append("neftune_noise_alpha and use_liger_kernel are not supported: leave them unset")
        if self.debug:
            wrong.append(f"debug={self.debug!r} is not supported: leave it unset")
        if self.cuda_graphs and self.gradient_checkpointing:
            wrong.append("cuda_graphs cannot be combined with gradient_checkpointing: choose one of them")
        return wrong


@cache
def config_descriptions(kind: Any) -> dict[str, Description]:
    """Return a map from each setting, including those of Transformers, to the values that it allows."""
    hints = get_type_hints(kind)
    return {
        item.name: describe(item, hints[item.name], _RANGES.get(item.name), item.name in _PLACES)
        for item in fields(kind)
        if item.init
    }


def check_own_settings(kind: Any, owner: str, given: Mapping[str, object]) -> None:
    """Reject values in --settings that a setting does not allow. owner: the method or stage. given: settings that it
    reads."""
    described = config_descriptions(kind)
    for name, value in given.items():
        wrong = described[name].type_problem(value) or described[name].range_problem(value)
        if wrong:
            raise UserError(f"--settings: {name}={show(value)} of {owner} {wrong}")


def setting_names(config: type[MethodConfig]) -> frozenset[str]:
    """Return the names of all settings that a method reads, including those of Transformers."""
    return frozenset(item.name for item in fields(config) if item.init)


def defining_settings(*kinds: type) -> set[str]:
    """Return the names of the settings that must not change when a run is resumed, because the result depends on
    them."""
    declared = [item for kind in kinds for item in fields(kind) if "free" in item.metadata]
    transformers = _DEFINING if any(issubclass(kind, MethodConfig) for kind in kinds) else set()
    return transformers | {item.name for item in declared if not item.metadata["free"]}
