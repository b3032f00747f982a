"""Settings that every method reads: Transformers' TrainingArguments, and those of this library. Plain data.

A method adds its own in its file (`GoldConfig`, `BrioConfig`, ...). Every setting declares its type, range, group and
help once, with `setting`; validation and the help of the command line are made from that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args, get_type_hints

import torch
from transformers import SchedulerType, TrainingArguments, get_scheduler

from semioffline.errors import UserError, told_in_one_line, unknown

TruncationSide = Literal["left", "right"]
StaticTarget = Literal["ground_truth", "worst", "best", "random"]


class Range(NamedTuple):
    """Numbers that a setting allows. Infinity and NaN are outside every range."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    """Whether `low` itself is outside."""
    open_high: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        if self.low == -math.inf and self.high == math.inf:
            return "be finite"
        if self.high == math.inf:
            return f"be above {self.low:g}" if self.open_low else f"be at least {self.low:g}"
        if not self.open_low and not self.open_high:
            return f"be between {self.low:g} and {self.high:g}"
        return f"lie in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"


FINITE = Range()
POSITIVE = Range(0, open_low=True)
NOT_NEGATIVE = Range(0)
SHARE = Range(0, 1)


def setting(default: Any, help: str, group: str = "", allowed: Range | None = None, free: bool = False) -> Any:
    """A dataclass field that declares all there is to know about a setting.

    Args:
        group: The heading under which `--help` lists it.
        allowed: The numbers that it allows.
        free: Whether it may change when a run is resumed: the result of training does not depend on it.
    """
    metadata = {"help": help, "group": group, "allowed": allowed, "free": free}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


TRANSFORMERS: dict[str, tuple[str, Range | None]] = {
    "output_dir": ("Run folder.", None),
    "max_steps": ("Optimizer steps; -1: num_train_epochs decides.", None),
    "num_train_epochs": ("Passes over the training data.", FINITE),
    "per_device_train_batch_size": ("Inputs of one forward pass and device.", Range(1)),
    "gradient_accumulation_steps": ("Forward passes of one optimizer step.", Range(1)),
    "learning_rate": ("Highest learning rate.", NOT_NEGATIVE),
    "lr_scheduler_type": ("Schedule of the learning rate: linear, constant, cosine, ...", None),
    "warmup_steps": ("Steps until the learning rate is reached; below 1: a share of all steps.", NOT_NEGATIVE),
    "max_grad_norm": ("Gradients are clipped to this norm; 0: never.", NOT_NEGATIVE),
    "label_smoothing_factor": ("Label smoothing of the MLE loss.", SHARE),
    "optim": ("Optimizer: adamw_torch_fused, adafactor, sgd, ...", None),
    "seed": ("Seed of everything random.", NOT_NEGATIVE),
    "bf16": ("Compute in bfloat16, with weights in --dtype.", None),
    "gradient_checkpointing": ("Less memory for activations, at one more forward pass.", None),
    "torch_compile": ("Compile the layers of the model.", None),
    "per_device_eval_batch_size": ("Inputs decoded at a time in evaluation.", Range(1)),
    "eval_strategy": ("When to evaluate on the validation split: no, steps, epoch.", None),
    "eval_steps": ("Steps between two evaluations.", None),
    "load_best_model_at_end": ("Load the checkpoint with the best metric_for_best_model at the end.", None),
    "metric_for_best_model": ("What the best checkpoint is chosen by; the reward where there is one.", None),
    "save_strategy": ("When to write a checkpoint: no, steps, epoch, best.", None),
    "save_steps": ("Steps between two checkpoints.", None),
    "report_to": ("Loggers: none, tensorboard, wandb, ...", None),
}
"""Transformers' settings that `--help` lists, with their help and range. `--help-all` lists the others too."""
_DEFINING = {"seed", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim"}
_DEFINING |= {"weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor"}
_DEFINING |= {"train_sampling_strategy"}
"""Transformers' settings that a resumed run must not change."""
_RANGES = {"adam_beta1": Range(0, 1, open_high=True), "adam_beta2": Range(0, 1, open_high=True)}
_RANGES |= dict.fromkeys(("adam_epsilon", "dataloader_num_workers", "weight_decay"), NOT_NEGATIVE)
_RANGES |= {name: allowed for name, (_, allowed) in TRANSFORMERS.items() if allowed is not None}


@dataclass
class MethodConfig(TrainingArguments):
    """Settings of a training run that do not depend on the method. A method's config class derives from it."""

    method: ClassVar[str] = ""
    """The name of the method that reads this config; empty for a method object of the user's own."""

    # Rewards
    reward_weights: list[float] | None = setting(None, "Weight of each reward; all 1 when not given.", "Reward")
    reward_timeout: float | None = setting(
        None,
        "Seconds that one call of a reward function may take in training; no limit when not given.",
        "Reward",
        POSITIVE,
        free=True,
    )
    overlap_rewards: bool = setting(
        True, "Score samples while the device goes on. Same results.", "Advanced", free=True
    )
    reward_workers: int | None = setting(
        None,
        "Processes that score with built-in rewards; spare cores by default, none for a model on the CPU.",
        "Advanced",
        NOT_NEGATIVE,
        free=True,
    )
    # Text
    max_prompt_length: int | None = setting(
        None, "Longest source in tokens; 512, or what the model's positions allow.", "Text", Range(2)
    )
    max_completion_length: int | None = setting(
        None, "Longest target in tokens; 128, or what the model's positions allow.", "Text", Range(2)
    )
    truncation_side: TruncationSide | None = setting(
        None, "End of a long prompt that is cut off: left | right; left for decoder-only models.", "Text"
    )
    # Model
    disable_dropout: bool = setting(False, "Set every dropout probability to 0.", "Speed and memory")
    share_prompt: bool = setting(
        True, "Compute the source's part of the decoder once for all rows of an input.", "Advanced", free=True
    )
    pad_to_multiple_of: int = setting(
        1,
        "Pad texts to a multiple of this many tokens: few shapes for torch_compile.",
        "Speed and memory",
        Range(1),
        free=True,
    )
    cuda_graphs: bool = setting(
        False,
        "Replay the model's passes and its decoding as CUDA graphs; with pad_to_multiple_of.",
        "Speed and memory",
        free=True,
    )
    # Evaluation by generation
    eval_metrics: list[str] = setting(
        ["rouge1", "rouge2", "rougeL"], "Metrics of evaluation during training, by name.", "Evaluation", free=True
    )
    num_beams: int = setting(1, "Beams in evaluation; 1 is greedy.", "Evaluation", Range(1), free=True)
    length_penalty: float = setting(1.0, "Exponent on the length in beam search.", "Evaluation", FINITE, free=True)
    no_repeat_ngram_size: int = setting(
        0, "Never repeat an n-gram of this size in evaluation; 0: no limit.", "Evaluation", NOT_NEGATIVE, free=True
    )
    min_new_tokens: int = setting(0, "Shortest output in evaluation, in tokens.", "Evaluation", NOT_NEGATIVE, free=True)
    early_stopping_patience: int | None = setting(
        None,
        "Stop after this many evaluations without a better metric_for_best_model.",
        "Evaluation",
        Range(1),
        free=True,
    )
    # Log
    log_completions: bool = setting(True, "Write sampled completions to completions/step-*.parquet.", "Log", free=True)
    num_completions_to_print: int = setting(
        0, "Sampled completions to print at every log.", "Advanced", NOT_NEGATIVE, free=True
    )
    # Transformers' own, with other defaults
    logging_steps: float = setting(10, "Steps between two lines of the log.", "Log", free=True)
    disable_tqdm: bool | None = setting(False, "No progress bars.", "Advanced", free=True)
    logging_nan_inf_filter: bool = setting(
        False, "A loss that is not finite stops training: nothing to filter.", free=True
    )
    remove_unused_columns: bool = setting(False, "Rewards may need any column, so none is removed.", free=True)
    ddp_find_unused_parameters: bool | None = setting(False, "Every parameter is used in every step.", free=True)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse settings that this method does not read, with the nearest name that it does."""
        for name in settings.keys() - setting_names(cls):
            raise unknown(f"setting of {cls.method or 'a method'}", name, setting_names(cls))
        return super().__new__(cls)

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """The config with these settings, by name. Their values are checked as those of any other."""
        values: dict[str, Any] = dict(settings)
        return cls(**values)

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise UserError("; ".join(problems))
        if isinstance(self.lr_scheduler_kwargs, str):
            with told_in_one_line(ValueError, before="lr_scheduler_kwargs is not JSON: "):
                json.loads(self.lr_scheduler_kwargs)
        chooses = self.load_best_model_at_end or self.early_stopping_patience is not None
        if chooses and self.metric_for_best_model is None:
            self.metric_for_best_model = "reward"
        with told_in_one_line(ValueError, ImportError):
            super().__post_init__()
        self._try_scheduler()

    @property
    def shows_bars(self) -> bool:
        return not self.disable_tqdm and self.local_process_index == 0

    def to_dict(self) -> dict[str, object]:
        return {"method": self.method} | super().to_dict()

    def _try_scheduler(self) -> None:
        """Report arguments that a schedule does not take now, not after everything has been loaded."""
        kind, own = SchedulerType(self.lr_scheduler_type), cast(Any, self.lr_scheduler_kwargs)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=self.learning_rate)
        with told_in_one_line(Exception, before=f"lr_scheduler_type={kind.value}, lr_scheduler_kwargs={own}: "):
            get_scheduler(kind, optimizer, 10, 10_000_000, own)

    def problems(self) -> list[str]:
        """Everything that is wrong with the settings. A method's config adds what ranges cannot say."""
        problems = list(self._outside())
        if problems:  # what is out of range cannot be compared
            return problems
        if self.early_stopping_patience is not None and self.eval_strategy == "no":
            problems.append("early_stopping_patience needs evaluations: set eval_strategy")
        if self.cuda_graphs and self.gradient_accumulation_steps > 1:
            problems.append(
                f"cuda_graphs with gradient_accumulation_steps={self.gradient_accumulation_steps}: a graph keeps the "
                "gradients of its last pass only; accumulate in a larger batch instead"
            )
        if self.cuda_graphs and self.gradient_checkpointing:
            problems.append("cuda_graphs with gradient_checkpointing: choose one, speed or memory")
        return problems

    def _outside(self) -> Iterator[str]:
        """Settings outside their range or choices."""
        choices = setting_choices(type(self))
        for item in fields(self):
            value, allowed = getattr(self, item.name), allowed_range(item)
            if value is None:
                continue
            if value != value:
                yield f"{item.name} is not a number"
            elif allowed is not None and value in (math.inf, -math.inf):
                yield f"{item.name} must be finite"
            elif allowed is not None and value not in allowed:
                yield f"{item.name}={value} must {allowed}"
            elif item.name in choices and value not in choices[item.name]:
                yield f"{item.name}={value!r} must be one of {', '.join(choices[item.name])}"


def allowed_range(item: Field[Any]) -> Range | None:
    """The range that a field declares, or the one that we declare for Transformers' field."""
    return item.metadata.get("allowed") or _RANGES.get(item.name)


def setting_names(config: type[MethodConfig]) -> frozenset[str]:
    """Of all settings that a method reads, Transformers' own included."""
    return frozenset(item.name for item in fields(config) if item.init)


def setting_choices(config: type[MethodConfig]) -> dict[str, tuple[str, ...]]:
    """Setting -> the values that its Literal allows. Only those of this library: Transformers checks its own."""
    own = {item.name for item in fields(config) if "group" in item.metadata}
    found: dict[str, tuple[str, ...]] = {}
    for name, kind in get_type_hints(config).items():
        parts = [kind, *get_args(kind)] if name in own else []
        literals = [part for part in parts if getattr(part, "__origin__", None) is Literal]
        if literals:
            found[name] = get_args(literals[0])
    return found


def defining_settings(*kinds: type) -> set[str]:
    """The settings of these dataclasses that a resumed run must not change: what is trained depends on them."""
    declared = [item for kind in kinds for item in fields(kind) if "free" in item.metadata]
    transformers = _DEFINING if any(issubclass(kind, MethodConfig) for kind in kinds) else set()
    return transformers | {item.name for item in declared if not item.metadata["free"]}
