"""Find signs of trouble in the log of a run, and say what to try. The console reports them during training, the report
afterwards: both read the lines of metrics.jsonl.

The thresholds are for advice, not for proof: each is set where a user would want to look, and far from the values of
healthy runs. The rules need only the log, so every run folder can be read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from semioffline.evaluation.scale import is_percent

Line = Mapping[str, float]
"""One line of metrics.jsonl."""
RECENT = 3
"""Number of training lines that a rule reads: one line may be an exception, and three come early."""
PER_TEXT = ("eval_length", "eval_repetition", "eval_distinct")
OUTPUTS = ("eval_identical", "eval_identical_references", "eval_length_references", "eval_frac_reward_none")
NO_METRIC = {"eval_reward", "eval_runtime", *PER_TEXT, *OUTPUTS}
"""Evaluation metrics of which more is not better."""


@dataclass(frozen=True)
class Finding:
    """One sign of trouble."""

    name: str
    """Name of the rule. Each rule is reported once in a run."""
    text: str
    """One sentence with numbers."""
    advice: str
    """What to try, with the flags."""
    step: int | None
    """The step in which it was first seen."""


@dataclass
class Diagnostics:
    """Reads a log line by line. `add` returns the new findings."""

    train: list[Line] = field(default_factory=list)
    """Lines of training steps."""
    evals: list[Line] = field(default_factory=list)
    """Lines of evaluations."""
    found: dict[str, Finding] = field(default_factory=dict)

    def add(self, line: Line) -> list[Finding]:
        """Return the problems that this line is the first to show."""
        kind = "loss" if "loss" in line else "eval" if any(name.startswith("eval_") for name in line) else ""
        if not kind:
            return []
        (self.train if kind == "loss" else self.evals).append(line)
        new = []
        for name, rule in (TRAIN_RULES if kind == "loss" else EVAL_RULES).items():
            told = rule(self) if name not in self.found else None
            if told is not None:
                step = line.get("step")
                self.found[name] = Finding(name, *told, step=None if step is None else int(step))
                new.append(self.found[name])
        return new

    @property
    def uses_reward(self) -> bool:
        """Whether the run is trained on a reward: fine-tuning is expected to change the outputs."""
        return bool(self.train) and "reward" in self.train[-1]

    def recent(self, name: str) -> list[float]:
        """Return the last RECENT values in training lines; none if there are fewer."""
        values = [line[name] for line in self.train[-RECENT:] if _is_number(line.get(name))]
        return values if len(values) == RECENT else []

    def drift(self, name: str) -> tuple[float, float] | None:
        """Return a metric in the first and in the last evaluation; None if it is unknown."""
        values = [line.get(name) for line in (self.evals[0], self.evals[-1])]
        if not self.uses_reward or len(self.evals) < 2 or not all(map(_is_number, values)):
            return None
        return float(self.evals[0][name]), float(self.evals[-1][name])


def find_problems(log: Sequence[Line]) -> list[Finding]:
    """Return the problems that the lines of metrics.jsonl show, each once, in the order in which they were first
    seen."""
    diagnostics = Diagnostics()
    return [finding for line in log for finding in diagnostics.add(line)]


Told = tuple[str, str] | None
"""Text and advice, or nothing."""


# ---- training lines ----


def rl_gradient(log: Diagnostics, most: float = 10.0) -> Told:
    """Report an RL gradient that is much larger than the MLE gradient. Ratios up to about 10 have raised validation
    rewards (SAMSum). With larger ones the text was lost on every task we tried. A run with --rl_ratio has chosen its
    ratio."""
    if "rl_weight" in log.train[-1]:
        return None
    ratios = [line["grad/rl"] / line["grad/mle"] for line in log.train[-RECENT:] if line.get("grad/mle", 0) > 0 and
              _is_number(line.get("grad/rl"))]  # fmt: skip
    if len(ratios) < RECENT or median(ratios) <= most:
        return None
    text = (
        f"the RL gradient is {median(ratios):.0f} times the MLE gradient: the outputs may lose the language of the data"
    )
    return text, "try --rl_ratio 1, which makes the two equal, or a lower --rl_weight"


def equal_rewards(log: Diagnostics, most: float = 0.5) -> Told:
    """Report that most inputs add nothing to the RL gradient, because their samples have equal rewards. Methods with
    one sample per input are left out (self_critic, actor_critic)."""
    shares, last = log.recent("frac_reward_zero_std"), log.train[-1]
    if "reward_greedy" in last or "loss/critic" in last or not shares or fmean(shares) <= most:
        return None
    if _constant_reward(log):
        return None  # another rule's
    text = f"for {fmean(shares):.0%} of the inputs all samples have the same reward: they teach the RL term nothing"
    return text, (
        "try more samples (--num_samples), a higher --mask_rate, or another static target (--static_target worst; "
        "train needs `semioffline candidates` for it)"
    )


def reward_constant(log: Diagnostics) -> Told:
    """Report that all samples of all inputs, in RECENT lines, have the same reward."""
    value = _constant_reward(log)
    if value is None:
        return None
    text = f"the reward is always {value:.4g}: there is nothing to learn from it"
    return text, "look at completions/step-*.parquet, and call the reward function on a good and on a bad text"


def _constant_reward(log: Diagnostics) -> float | None:
    rewards = log.recent("reward")
    parts = [name for name in log.train[-1] if name.startswith("rewards/") and name.endswith("/std")]
    spread = [value for name in parts for value in log.recent(name)]
    if not rewards or not spread or max(spread) > 1e-9 * max(1.0, abs(rewards[-1])):
        return None
    return rewards[-1] if max(rewards) - min(rewards) <= 1e-9 * max(1.0, abs(rewards[-1])) else None


def reward_left_out(log: Diagnostics, most: float = 0.1) -> Told:
    """Report samples without a reward, which are drawn in vain. The threshold of a tenth is more than a function that
    skips a few texts reaches."""
    shares = log.recent("frac_reward_none")
    if not shares or fmean(shares) <= most:
        return None
    text = f"{fmean(shares):.0%} of the samples have no reward (None or NaN) and are left out"
    return (
        text,
        "look at the samples in completions/ whose reward is NaN, and at where the reward function returns None",
    )


def truncated(log: Diagnostics, prompts: float = 0.1, completions: float = 0.02) -> Told:
    """Report truncated texts. Truncated prompts hide part of the input: a few long ones are normal, a tenth is not.
    Truncated completions teach the model to stop in the middle: 2 % are enough to report."""
    shares = {name: log.train[0].get(f"truncated/{name}", 0.0) for name in ("prompts", "completions", "candidates")}
    cut = [f"{share:.0%} of the {name}" for name, share in shares.items()
           if share > (prompts if name == "prompts" else completions)]  # fmt: skip
    if not cut:
        return None
    flags = [flag for flag, names in (("--max_prompt_length", ("prompts",)), ("--max_completion_length",
             ("completions", "candidates"))) if any(f" {name}" in told for name in names for told in cut)]  # fmt: skip
    return f"{' and '.join(cut)} are cut to the maximum length", f"try a larger {' and '.join(flags)}"


def mask_token(log: Diagnostics, most: float = 0.65) -> Told:
    """Report a model that does not know its mask token: masks raise its loss nearly as much as random words. This is
    measured by `mask_token.check_mask_token` before the first step, with the same threshold."""
    first = log.train[0]
    plain, masked, wrong = (first.get(f"mask_token/{name}", math.nan) for name in ("plain", "masked", "wrong"))
    if not all(map(_is_number, (plain, masked, wrong))) or (wrong > plain and masked - plain <= most * (wrong - plain)):
        return None
    text = (
        f"the model does not know its mask token: its loss per token is {plain:.2f} without masks, {masked:.2f} with "
        f"40 % masks, and {wrong:.2f} with random words instead of the masks"
    )
    return text, "fine-tune it with masks first (semioffline train mft), and start from the result"


# ---- evaluation lines ----


def reward_missing(log: Diagnostics, most: float = 0.1) -> Told:
    """Report a validation reward that is not a number, or that covers only a part of the inputs."""
    last = log.evals[-1]
    if "eval_reward" in last and not _is_number(last["eval_reward"]):
        return "the validation reward is not a number: no output got a reward", (
            "evaluate by hand what the reward function returns for the outputs in predictions.jsonl"
        )
    share = last.get("eval_frac_reward_none", 0.0)
    if share <= most:
        return None
    return f"{share:.0%} of the validation outputs have no reward (None or NaN)", (
        "look at where the reward function returns None: the mean is over the others"
    )


def validation_falls(log: Diagnostics) -> Told:
    """Report that the validation reward falls while the reward of the samples rises: two evaluations in a row are below
    the best one by more than chance."""
    lines = [line for line in log.evals if _is_number(line.get("eval_reward"))]
    if len(lines) < 3 or not log.uses_reward:
        return None
    best = max(lines, key=lambda line: line["eval_reward"])
    if not all(_is_below(line, best, "eval_reward") for line in lines[-2:]):
        return None
    until = [line["reward"] for line in log.train if line.get("step", 0) <= best.get("step", 0) and "reward" in line]
    now = [line["reward"] for line in log.train[-RECENT:] if "reward" in line]
    before = fmean(until[-RECENT:]) if until else log.train[0].get("reward", math.nan)
    if not now or not fmean(now) > before:
        return None
    text = (
        f"the validation reward fell from {best['eval_reward']:.4g} (step {best.get('step', 0):.0f}) to "
        f"{lines[-1]['eval_reward']:.4g} while the reward of the samples rose from {before:.4g} to {fmean(now):.4g}"
    )
    return text, (
        "keep the best checkpoint (--load_best_model_at_end true), stop earlier (--early_stopping_patience 3), or "
        "lower --learning_rate or --rl_weight"
    )


def metric_falls(log: Diagnostics, least: float = 0.05) -> Told:
    """Report a metric that falls while the reward rises: it is not rewarded, and below its first value by more than
    chance and by 5 %."""
    rewards = log.drift("eval_reward")
    if rewards is None or not rewards[1] > rewards[0]:
        return None
    rewarded = {f"eval_{name.split('/')[1]}" for name in log.train[-1] if name.startswith("rewards/")}
    names = [n for n in log.evals[-1] if n.startswith("eval_") and n not in NO_METRIC | rewarded]
    fallen = []
    for name in (name for name in names if not name.endswith("_stderr")):
        values = log.drift(name)
        if values and values[1] < values[0] - least * abs(values[0]) and _is_below(log.evals[-1], log.evals[0], name):
            metric = name.removeprefix("eval_")
            before, after = (f"{100 * value if is_percent(metric) else value:.4g}" for value in values)
            fallen.append(f"{metric} fell from {before} to {after}")
    if not fallen:
        return None
    return f"{' and '.join(fallen)} while the reward rose from {rewards[0]:.4g} to {rewards[1]:.4g}", (
        "look at the outputs; try a lower --rl_weight (or --rl_ratio 1), or add the metric as a second --reward"
    )


def length_drift(log: Diagnostics, most: float = 0.3) -> Told:
    """Report outputs that are longer or shorter than at first by 30 %, and farther from the references. A few per cent
    are usual (the demo's outputs become 5 % shorter)."""
    lengths = log.drift("eval_length")
    if lengths is None:
        return None
    first, last = lengths
    right = log.evals[-1].get("eval_length_references", first)
    if not abs(last - first) > most * first or abs(last - right) <= abs(first - right):
        return None
    text = f"the outputs went from {first:.1f} to {last:.1f} words (references: {right:.1f})"
    return text, "add the reward length_penalty (--reward ... length_penalty), or lower --rl_weight"


def repetition(log: Diagnostics, most: float = 0.05) -> Told:
    """Report that the share of repeated word pairs has risen by one in twenty, which readers notice."""
    shares = log.drift("eval_repetition")
    if shares is None or not shares[1] - shares[0] > most:
        return None
    text = f"repeated word pairs in the outputs went from {shares[0]:.1%} to {shares[1]:.1%}"
    return text, "add the reward repetition_penalty (--reward ... repetition_penalty), or lower --rl_weight"


def distinct(log: Diagnostics, most: float = 0.1) -> Told:
    """Report that the share of different words in a text has fallen by a tenth: two more repeated words in twenty."""
    shares = log.drift("eval_distinct")
    if shares is None or not shares[1] < (1 - most) * shares[0]:
        return None
    text = f"different words per word of an output (distinct-1) fell from {shares[0]:.3f} to {shares[1]:.3f}"
    return text, "add the reward repetition_penalty (--reward ... repetition_penalty), or lower --rl_weight"


def identical(log: Diagnostics, most: float = 0.2) -> Told:
    """Report outputs that are written for several inputs: a fifth more of the outputs than of the references. Data
    whose references are alike (labels, short answers) is not reported."""
    last = log.evals[-1]
    share, usual = last.get("eval_identical", 0.0), last.get("eval_identical_references", 0.0)
    if not log.uses_reward or share - usual <= most:
        return None
    text = f"{share:.0%} of the outputs are also written for another input (references: {usual:.0%})"
    return text, "lower --rl_weight or --learning_rate; does the reward depend on the input?"


def _is_below(line: Line, other: Line, name: str) -> bool:
    """Return whether a value is lower by two standard errors of a difference, if they are logged (a cautious test,
    because the inputs are the same); else by 5 %."""
    errors = [each.get(f"{name}_stderr") for each in (line, other)]
    margin = 0.05 * abs(other[name])
    if all(_is_number(error) for error in errors):
        margin = 2 * math.hypot(*(float(error) for error in errors if error is not None))
    return line[name] < other[name] - margin


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


Rule = Callable[[Diagnostics], Told]
TRAIN_RULES: dict[str, Rule] = {
    "rl_gradient": rl_gradient,
    "equal_rewards": equal_rewards,
    "reward_constant": reward_constant,
    "reward_left_out": reward_left_out,
    "truncated": truncated,
    "mask_token": mask_token,
}
EVAL_RULES: dict[str, Rule] = {
    "reward_missing": reward_missing,
    "validation_falls": validation_falls,
    "metric_falls": metric_falls,
    "length_drift": length_drift,
    "repetition": repetition,
    "distinct": distinct,
    "identical": identical,
}
