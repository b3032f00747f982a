"""SemiOfflineConfig: Transformers' TrainingArguments and what the methods need. Plain data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any, cast

import torch
from transformers import SchedulerType, TrainingArguments, get_scheduler

from semioffline.algorithm.losses import ANCHORS, BASELINES, GOLD_REWARDS, LOSS_SCALES
from semioffline.algorithm.masking import MASK_PATTERNS, MASK_UNITS, OBSERVATIONS
from semioffline.data.examples import STATIC_TARGETS
from semioffline.errors import UserError, told_in_one_line
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import TRUNCATION_SIDES


def option(default: Any, help: str) -> Any:
    """A dataclass field that explains itself in one line."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class SemiOfflineConfig(TrainingArguments):
    # The method
    method: str = option("semi_offline", "Which method trains: the name of a module in semioffline/methods.")
    num_samples: int = option(64, "K, the samples drawn for each input (in semi_offline they cost no forward pass).")
    mask_rate: float = option(0.4, "p_m, the share of the static target's tokens that the model must decide.")
    mask_unit: str = option("token", "Hide single tokens or whole words: token | word.")
    rl_weight: float = option(5.0, "Lambda, the weight of the RL loss beside the MLE loss.")
    rl_ratio: float | None = option(
        None, "Instead of rl_weight, ranking_weight: how many times the MLE gradient the RL gradient is to be at first."
    )
    loss_scale: str = option(
        "token", "token: sum over samples, mean over hidden positions (the published lambda) | sequence: as printed."
    )
    baseline: str = option("mean", "What is subtracted from a sample's reward: mean | leave_one_out.")
    scale_rewards: bool = option(False, "Divide advantages by the standard deviation of the input's rewards.")
    static_target: str = option(
        "ground_truth", "The text that is masked: ground_truth | worst | best | random (candidate)."
    )
    mle_mask_rate: float = option(
        0.4, "Share of decoder inputs hidden in the masked examples of the MLE row (not for ft)."
    )
    mle_mask_share: float = option(0.5, "Share of the examples whose MLE row is masked at all (not for ft).")
    # Variants of semi_offline
    observation: str = option(
        "masked", "What the policy sees where it must decide: masked | full | no_mask | noisy | all | pre."
    )
    noise_rate: float = option(0.3, "observation=noisy: share of the hidden positions that show the static token.")
    mask_pattern: str = option("random", "Which positions are hidden: random | complementary | suffix | span | mixed.")
    mask_span: float = option(3.0, "mask_pattern=span: mean length of a run of hidden tokens (or words).")
    mask_rate_end: float | None = option(None, "mask_rate goes to this value, in a straight line over training.")
    refresh_every: int = option(
        0, "After n steps static targets are samples of the policy, at most n steps old; 0: those of the data."
    )
    eos_after: int | None = option(
        None, "Samples may end early: EOS may be drawn after so many tokens; they are as long as the target otherwise."
    )
    draw_end: bool = option(
        False,
        "With eos_after: the target's EOS is hidden, too; where another token is drawn, a sample goes on with it.",
    )
    draw_alike: bool = option(
        False, "Draw only tokens of the kind of the one they replace: beginnings of words, punctuation, ..."
    )
    anchor: str = option("mle", "What stands beside the RL loss: mle, as in the paper | gold, GOLD's weighted MLE.")
    # Other methods
    length_alpha: float = option(1.0, "Log-likelihoods of whole texts are divided by length ** this (avg, brio, ...).")
    ranking_weight: float = option(0.3, "Weight of brio's ranking loss, summed over pairs, beside the MLE loss.")
    ranking_margin: float = option(0.001, "brio: how far apart neighbours in the ranking should be.")
    critic_weight: float = option(1.0, "Weight of the critic's squared error (actor_critic).")
    gold_reward: str = option("s", "gold: a token's reward is its probability (s) or its log-probability (p).")
    gold_floor: float = option(0.1, "gold: the policy's own token probability counts at least this much.")
    gold_horizon: int = option(5, "gold: how many tokens ahead the reward-to-go looks.")
    gold_discount: float = option(1.0, "gold: a reward one token later counts this much less.")
    gold_baseline: float = option(-10.0, "gold p: subtracted from the log-probability; what lies below counts 0.")
    # Drawing
    temperature: float = option(1.0, "Temperature of the draws.")
    top_k: int = option(0, "Draw among the k most likely tokens only; 0 means all.")
    top_p: float = option(1.0, "Draw among the most likely tokens that hold this much probability.")
    reward_weights: list[float] | None = option(None, "Weight of each reward; all 1 when not given.")
    reward_timeout: float | None = option(
        None, "Seconds that one call of a reward function may take in training; no limit when not given."
    )
    overlap_rewards: bool = option(True, "Score samples while the device goes on; off, it waits. Same results.")
    reward_workers: int | None = option(
        None, "Processes that score with built-in rewards; the cores to spare by default, none for a model on the CPU."
    )
    # Text
    max_prompt_length: int | None = option(None, "Longest source in tokens; 512, or what the model's positions allow.")
    max_completion_length: int | None = option(
        None, "Longest target in tokens; 128, or what the model's positions allow."
    )
    truncation_side: str | None = option(
        None, "Which end of a long prompt is cut off: left | right; left for decoder-only models, right for others."
    )
    # Model
    disable_dropout: bool = option(False, "Set every dropout probability to 0.")
    share_prompt: bool = option(True, "Compute the source's part of the decoder once for all rows of an input.")
    pad_to_multiple_of: int = option(1, "Pad texts to a multiple of this many tokens: few shapes for torch_compile.")
    cuda_graphs: bool = option(
        False, "Replay the model's passes, and its decoding, as CUDA graphs; with pad_to_multiple_of."
    )
    # Evaluation by generation
    eval_metrics: list[str] = option(["rouge1", "rouge2", "rougeL"], "Metrics of evaluation during training, by name.")
    num_beams: int = option(1, "Beams in evaluation; 1 is greedy.")
    length_penalty: float = option(1.0, "Exponent on the length in beam search.")
    no_repeat_ngram_size: int = option(0, "Never repeat an n-gram of this size in evaluation; 0 means free.")
    min_new_tokens: int = option(0, "Shortest output in evaluation, in tokens.")
    early_stopping_patience: int | None = option(
        None, "Stop after so many evaluations without a better metric_for_best_model."
    )
    # Log
    log_completions: bool = option(True, "Write sampled completions to completions/step-*.parquet at every log.")
    num_completions_to_print: int = option(0, "Print so many sampled completions at every log.")
    # Transformers' own, with other defaults
    logging_nan_inf_filter: bool = option(False, "A loss that is not finite stops training: nothing to filter.")
    logging_steps: float = option(10, "Log every so many steps.")
    disable_tqdm: bool | None = option(False, "No progress bars.")
    remove_unused_columns: bool = option(False, "Rewards may need any column, so none is removed.")
    ddp_find_unused_parameters: bool | None = option(False, "Every parameter is used in every step.")

    def __post_init__(self) -> None:
        problems = self._problems()
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

    def _try_scheduler(self) -> None:
        """What a schedule does not take is told now, not after everything has been loaded."""
        kind, own = SchedulerType(self.lr_scheduler_type), cast(Any, self.lr_scheduler_kwargs)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=self.learning_rate)
        with told_in_one_line(Exception, before=f"lr_scheduler_type={kind.value}, lr_scheduler_kwargs={own}: "):
            get_scheduler(kind, optimizer, 10, 10_000_000, own)

    def _problems(self) -> list[str]:
        """Everything that is wrong, at once."""
        problems = self._number_problems()
        if problems:  # they cannot be compared
            return problems
        for name in _SHARES:
            if not 0.0 <= (getattr(self, name) or 0.0) <= 1.0:
                problems.append(f"{name}={getattr(self, name)} must lie between 0 and 1")
        for name in _NOT_NEGATIVE:
            if (getattr(self, name) or 0) < 0:
                problems.append(f"{name}={getattr(self, name)} must not be negative")
        if self.num_samples < 2:
            problems.append(
                f"num_samples={self.num_samples} must be at least 2: the baseline is the mean of the samples"
            )
        if self.temperature <= 0:
            problems.append(f"temperature={self.temperature} must be positive")
        if not 0.0 < self.top_p <= 1.0:
            problems.append(f"top_p={self.top_p} must lie in (0, 1]")
        if self.top_k < 0:
            problems.append(f"top_k={self.top_k} must be 0 (all) or positive")
        if self.reward_timeout is not None and not self.reward_timeout > 0:
            problems.append(f"reward_timeout={self.reward_timeout} must be positive, in seconds")
        if self.rl_ratio is not None and self.rl_ratio <= 0:
            problems.append(f"rl_ratio={self.rl_ratio} must be positive")
        if self.rl_ratio is not None and "+" in self.method and "brio" not in self.method.split("+"):
            problems.append(f"rl_ratio balances one RL term beside brio's, not those of {self.method}: set rl_weight")
        problems += self._variant_problems()
        problems += self._speed_problems()
        for name in ("adam_beta1", "adam_beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"{name}={getattr(self, name)} must lie in [0, 1)")
        if self.per_device_train_batch_size < 1 or self.per_device_eval_batch_size < 1:
            problems.append("per_device_train_batch_size and per_device_eval_batch_size must be at least 1")
        if self.gradient_accumulation_steps < 1:
            problems.append(f"gradient_accumulation_steps={self.gradient_accumulation_steps} must be at least 1")
        if self.early_stopping_patience is not None:
            if self.early_stopping_patience < 1:
                problems.append(f"early_stopping_patience={self.early_stopping_patience} must be at least 1")
            if self.eval_strategy == "no":
                problems.append("early_stopping_patience needs evaluations: set eval_strategy")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in (*allowed, None):
                problems.append(f"{name}={getattr(self, name)!r} must be one of {', '.join(allowed)}")
        for name in ("max_prompt_length", "max_completion_length"):
            if getattr(self, name) is not None and getattr(self, name) < 2:
                problems.append(f"{name}={getattr(self, name)} must be at least 2")
        try:
            self.decoding(max(self.min_new_tokens, 2))
        except UserError as error:
            problems.append(str(error))
        return problems

    def _number_problems(self) -> list[str]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        problems = [f"{name} is not a number" for name, value in values.items() if value != value]
        for name in ("rl_weight", "rl_ratio", "temperature", "learning_rate", "ranking_weight", "critic_weight"):
            if values[name] == math.inf:
                problems.append(f"{name} must be finite")
        return problems

    def _speed_problems(self) -> list[str]:
        problems = []
        if self.pad_to_multiple_of < 1:
            problems.append(f"pad_to_multiple_of={self.pad_to_multiple_of} must be at least 1")
        if self.cuda_graphs and self.gradient_accumulation_steps > 1:
            problems.append(
                f"cuda_graphs with gradient_accumulation_steps={self.gradient_accumulation_steps}: a graph keeps the "
                "gradients of its last pass only; accumulate in a larger batch instead"
            )
        if self.cuda_graphs and self.gradient_checkpointing:
            problems.append("cuda_graphs with gradient_checkpointing: choose one, speed or memory")
        return problems

    def _variant_problems(self) -> list[str]:
        problems = []
        if not self.mask_span >= 1.0:
            problems.append(f"mask_span={self.mask_span} must be at least 1, the length of a single token")
        if self.refresh_every < 0:
            problems.append(f"refresh_every={self.refresh_every} must be 0 (never) or positive")
        if self.eos_after is not None and self.eos_after < 1:
            problems.append(f"eos_after={self.eos_after} must be at least 1: a sample needs a token")
        if self.anchor == "gold" and "+" in self.method:
            problems.append(f"anchor='gold' is for semi_offline alone, not for {self.method}")
        if self.draw_end and self.eos_after is None:
            problems.append("draw_end needs eos_after: only then EOS may be drawn")
        if self.eos_after is not None and self.observation == "full":
            problems.append("eos_after with observation='full': its samples keep the length of the static target")
        if self.mask_pattern == "complementary" and (self.num_samples < 4 or self.num_samples % 2):
            problems.append(
                f"num_samples={self.num_samples} must be even and at least 4 with mask_pattern='complementary': "
                "each of its two masks gets half of the samples"
            )
        return problems

    def decoding(self, max_new_tokens: int) -> Decoding:
        """How evaluation decodes."""
        return Decoding(
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            min_new_tokens=self.min_new_tokens,
            max_new_tokens=max_new_tokens,
        )


_SHARES = ["mask_rate", "mask_rate_end", "mle_mask_rate", "mle_mask_share", "noise_rate", "gold_floor", "gold_discount"]
_SHARES += ["label_smoothing_factor"]
_NOT_NEGATIVE = ["rl_weight", "ranking_weight", "ranking_margin", "critic_weight", "length_alpha", "gold_horizon"]
_NOT_NEGATIVE += ["learning_rate", "adam_epsilon", "weight_decay", "max_grad_norm", "warmup_steps", "seed"]
_NOT_NEGATIVE += ["dataloader_num_workers", "reward_workers"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "mask_unit": MASK_UNITS,
    "mask_pattern": MASK_PATTERNS,
    "observation": OBSERVATIONS,
    "loss_scale": LOSS_SCALES,
    "baseline": BASELINES,
    "gold_reward": GOLD_REWARDS,
    "anchor": ANCHORS,
    "static_target": STATIC_TARGETS,
    "truncation_side": TRUNCATION_SIDES,
}
