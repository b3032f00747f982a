"""The options of `semioffline run`. Settings that are not given are chosen from the data, the model and the machine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from semioffline.config import check_own_settings, setting_names
from semioffline.errors import UserError, unknown
from semioffline.experiments.job_results import MFT, MORE_MFT
from semioffline.experiments.job_results import RESULT as RL
from semioffline.methods.shared.registry import config_class
from semioffline.policy.decoding import Decoding
from semioffline.policy.loading import lora_config
from semioffline.storage.untrusted import parse_settings
from semioffline.validation import (
    BATCH,
    BEAMS,
    NOT_NEGATIVE,
    POSITIVE,
    SAMPLES,
    SEED,
    SHARE,
    STEPS,
    TOKENS,
    Options,
    Range,
    setting,
)

METHODS = {MFT: "mft", RL: "semi_offline", MORE_MFT: "mft"}
"""The method of each stage that trains."""
DECIDED = {
    "output_dir": "every stage has its folder in --output_dir",
    "max_steps": "use --mft_steps, --rl_steps or --more_mft_steps",
    "num_train_epochs": "use --mft_steps, --rl_steps or --more_mft_steps",
    "max_prompt_length": "use --max_prompt_length",
    "max_completion_length": "use --max_completion_length",
}
"""Settings of a stage that the job chooses -> which flag to use instead."""
_STEPS = STEPS._replace(low=0)
_FREE = ("output_dir", "dry_run")


@dataclass
class JobOptions(Options):
    output_dir: str | None = setting(
        None, "Run folder. An interrupted job continues there. Default: runs/DATE.", "Job", place=True
    )
    reward: list[str] = setting(
        [], "Reward by name, file.py:function, module:function or model:NAME; several are added.", "Reward"
    )
    reward_weights: list[float] = setting(
        [], "Weight of each reward. Default: all 1.", "Reward", Range(-(10**9), 10**9)
    )
    eval_metrics: list[str] = setting([], "Further metrics to report. Default: the task's metrics.", "Reward")
    dry_run: bool = setting(False, "Print the plan and stop.", "Job")
    minutes: float = setting(
        20.0,
        "Target duration of the job in minutes. Training is shortened to fit.",
        "Job",
        Range(0, 10**6, open_low=True),
    )
    seed: int = setting(0, "Random seed.", "Job", SEED)
    mft_steps: int | None = setting(
        None, "Steps of fine-tuning with masks (M-FT); 0: none. Default: chosen automatically.", "Stages", _STEPS
    )
    rl_steps: int | None = setting(None, "Steps of semi-offline RL. Default: chosen automatically.", "Stages", STEPS)
    more_mft_steps: int | None = setting(
        None, "Steps of the M-FT baseline; 0: none. Default: as many as take the time of RL.", "Stages", _STEPS
    )
    mft_learning_rate: float | None = setting(
        None, "Learning rate of M-FT and of the M-FT baseline.", "Stages", NOT_NEGATIVE
    )
    rl_learning_rate: float | None = setting(None, "Learning rate of semi-offline RL.", "Stages", NOT_NEGATIVE)
    batch_size: int = setting(16, "Inputs per step.", "Stages", BATCH)
    eval_steps: int | None = setting(None, "Steps between two evaluations on validation.", "Stages", STEPS)
    settings: str = setting(
        "{}", 'More settings of the stages, as JSON: {"semi_offline": {"top_p": 0.9}, "mft": {...}}.', "Stages"
    )
    static_target: Literal["auto", "ground_truth", "worst", "best", "random"] = setting(
        "auto", "Text to mask: auto (tried out on 64 inputs) | ground_truth | worst | best | random candidate.", "RL"
    )
    num_candidates: int = setting(4, "Candidates to sample per input, if candidates are masked.", "RL", BEAMS)
    num_samples: int = setting(64, "K, samples per input, drawn from one forward pass.", "RL", SAMPLES)
    mask_rate: float = setting(0.4, "p_m, the share of the static target's tokens to mask.", "RL", SHARE)
    rl_ratio: float | None = setting(None, "Target ratio of RL to MLE gradient norm [1].", "RL", POSITIVE)
    rl_weight: float | None = setting(None, "Weight of the RL loss, instead of --rl_ratio.", "RL", NOT_NEGATIVE)
    max_prompt_length: int | None = setting(None, "Longest source in tokens.", "Text", TOKENS)
    max_completion_length: int | None = setting(None, "Longest text in tokens.", "Text", TOKENS)
    prompt_form: Literal["auto", "plain", "chat", "line"] = setting(
        "auto",
        "Prompts of decoder-only models: plain | chat (chat template) | line (with a line break).",
        "Text",
    )
    num_beams: int = setting(1, "Number of beams in evaluation; 1: greedy decoding.", "Evaluation", BEAMS)
    min_new_tokens: int = setting(0, "Shortest output in evaluation, in tokens.", "Evaluation", NOT_NEGATIVE)
    no_repeat_ngram_size: int = setting(
        0, "Never repeat an n-gram of this size; 0: no limit.", "Evaluation", NOT_NEGATIVE
    )
    validation_inputs: int = setting(
        200, "Number of validation inputs to use; fewer if decoding is slow.", "Evaluation", STEPS
    )
    test_inputs: int = setting(1000, "Number of test inputs to use; fewer if decoding is slow.", "Evaluation", STEPS)
    lora_r: int | None = setting(None, "Train LoRA adapters of this rank instead of all weights.", "Model", BATCH)
    lora_alpha: int = setting(32, "LoRA alpha: scale of the adapters.", "Model", BATCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = parse_settings(self.settings)
        if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
            raise UserError('--settings must be a map of stages to maps of settings: {"semi_offline": {"top_p": 0.9}}')
        for stage, own in given.items():
            if stage not in METHODS:
                raise unknown("stage in --settings", stage, METHODS)
            kind = config_class(METHODS[stage])
            for name in own.keys() - setting_names(kind):
                raise unknown(f"setting of {stage}", name, setting_names(kind))
            for name in own.keys() & DECIDED.keys():
                raise UserError(f"--settings: {name} of {stage} must not be given: {DECIDED[name]}")
            check_own_settings(kind, stage, own)
        self.own: dict[str, dict[str, object]] = given

    def adapter(self) -> Any:
        return None if self.lora_r is None else lora_config(self.lora_r, self.lora_alpha)

    def sampling(self, max_new_tokens: int, number: int) -> Decoding:
        """Return the decoding settings of static targets."""
        return Decoding(do_sample=True, top_p=0.95, max_new_tokens=max_new_tokens, num_return_sequences=number)

    def made_with(self) -> dict[str, object]:
        """Return the options that the result depends on."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _FREE}
