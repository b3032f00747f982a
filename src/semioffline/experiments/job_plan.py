"""The plan of a job: rules that choose settings from data and model, and the file that stores them.

The plan is written once, before the first step. A job that continues reads it, because numbers of steps depend on
measured times and must not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from semioffline.data.inspection import Inspection
from semioffline.data.prompt_form import PromptForm
from semioffline.experiments.job_options import JobOptions
from semioffline.storage.records import Record
from semioffline.training.mask_token import MaskCheck

PLAN = "plan.json"
EVALUATIONS = 5
"""Approximate number of validations in each stage."""
FEWEST_STEPS = 20
FEWEST_TESTS = 500
FEWEST_VALIDATED = 64
TEST_SHARE = 0.3
"""Share of the minutes that testing may take. If it would take more, fewer test inputs are used."""
VALIDATION_SHARE = 0.2
"""Share of the minutes that evaluations may take. If they would take more, fewer validation inputs are used."""
CANDIDATE_PASSES = 2
"""Passes of the RL stage over inputs with candidates: with more inputs, candidates would take most of the time."""
PROBED = 64
"""Inputs of the probe that chooses the static target."""


@dataclass(frozen=True)
class Speed(Record):
    """Measured seconds on this machine."""

    mft_step: float
    rl_step: float
    output: float
    """Seconds to decode one input."""
    candidates: float = 0.0
    """Seconds to sample the candidates of one input."""


@dataclass(frozen=True)
class StagePlan(Record):
    """The plan of one stage that trains."""

    steps: int
    learning_rate: float
    eval_steps: int


@dataclass(frozen=True, kw_only=True)
class JobPlan(Record):
    """The decisions before the first step, as stored in plan.json."""

    made_with: dict[str, object]
    """The options of the job. A folder with other options is rejected."""
    digest: str
    """Digest of the rows."""
    parameters: int
    model_kind: str
    device: str
    found: Inspection
    form: PromptForm
    form_reason: str
    max_prompt_length: int
    max_completion_length: int
    mask: MaskCheck
    speed: Speed
    mft: StagePlan | None
    """None if the model knows its mask token, or if the user wants no M-FT."""
    rl: StagePlan
    tested: int
    """Number of test inputs."""
    validated: int
    """Number of validation inputs."""
    batch_size: int
    eval_batch_size: int
    seconds: dict[str, float] = field(default_factory=dict)
    """stage -> estimated seconds"""


def learning_rates(parameters: int, is_t5: bool, has_adapter: bool) -> tuple[float, float]:
    """Return the learning rates of (M-FT, RL). M-FT: 2e-4 for 135 million parameters, and less for larger models by the
    square root; four times as much for T5, which is trained with large rates, and five times as much for adapters. RL
    takes a twentieth, and T5 three times that (benchmarks/defaults.json)."""
    rate = 2e-4 * math.sqrt(135e6 / max(parameters, 1)) * (4 if is_t5 else 1) * (5 if has_adapter else 1)
    rate = _round(min(rate, 2e-3))
    return rate, _round(rate / 20) * (3 if is_t5 else 1)


def wanted_steps(rows: int, batch_size: int) -> tuple[int, int]:
    """Choose numbers of steps (M-FT, RL). M-FT: three passes over the training rows, 100 to 600 steps. RL: one pass,
    100 to 300 steps."""
    epoch = math.ceil(rows / batch_size)
    return min(max(3 * epoch, 100), 600), min(max(epoch, 100), 300)


def eval_interval(steps: int) -> int:
    """Return the number of steps between evaluations. It divides all steps, so that the last step is evaluated, and
    gives about EVALUATIONS evaluations."""
    return next(n for n in range(1, steps + 1) if steps % n == 0 and n >= steps / EVALUATIONS)


def plan_stages(
    options: JobOptions, rates: tuple[float, float], rows: Mapping[str, int], speed: Speed, needs_mft: bool
) -> tuple[StagePlan | None, StagePlan, int, int]:
    """Return (M-FT, RL, test inputs, validation inputs): what the data need, reduced to the minutes that the user
    has."""
    wanted = wanted_steps(rows["train"], options.batch_size)
    first, second = (options.mft_steps, options.rl_steps)
    mft = 0 if not needs_mft else wanted[0] if first is None else first
    rl = wanted[1] if second is None else second
    budget = 60 * options.minutes
    models = 3 + (mft > 0) - (options.more_mft_steps == 0)
    tested = min(rows["test"], options.test_inputs)
    tested = min(tested, max(FEWEST_TESTS, int(TEST_SHARE * budget / (models * speed.output))))
    evaluations = (models - 1) * (EVALUATIONS + 1)
    validated = min(rows["validation"], options.validation_inputs)
    validated = min(validated, max(FEWEST_VALIDATED, int(VALIDATION_SHARE * budget / (evaluations * speed.output))))
    fixed = speed.output * (models * tested + evaluations * validated)
    target = 0.0 if options.static_target == "ground_truth" else speed.candidates
    fixed += 2 * PROBED * target  # more M-FT takes the same time as the probe, the candidates and RL
    left = max(budget - fixed, 0.0)
    training = mft * speed.mft_step + 2 * rl * (speed.rl_step + target * options.batch_size / CANDIDATE_PASSES)
    share = min(1.0, left / training)
    if first is None and mft:
        mft = _cut(mft, share)
    if second is None:
        rl = _cut(rl, share)
    mft_rate, rl_rate = rates
    mft_rate = mft_rate if options.mft_learning_rate is None else options.mft_learning_rate
    rl_rate = rl_rate if options.rl_learning_rate is None else options.rl_learning_rate
    stages = [
        StagePlan(steps, rate, min(options.eval_steps or eval_interval(steps), steps)) if steps else None
        for steps, rate in ((mft, mft_rate), (rl, rl_rate))
    ]
    assert stages[1] is not None
    return stages[0], stages[1], tested, validated


def rows_with_candidates(plan: JobPlan) -> int:
    """Return the number of training rows that get candidates."""
    return min(plan.found.rows["train"], math.ceil(plan.rl.steps * plan.batch_size / CANDIDATE_PASSES))


def estimate(plan: JobPlan, options: JobOptions, with_candidates: bool = True) -> dict[str, float]:
    """Return stage -> estimated seconds."""
    speed, models = plan.speed, 3 + (plan.mft is not None) - (options.more_mft_steps == 0)

    def evaluated(stage: StagePlan) -> float:
        return (stage.steps // stage.eval_steps + 1) * plan.validated * speed.output

    found = {} if plan.mft is None else {"M-FT": plan.mft.steps * speed.mft_step + evaluated(plan.mft)}
    if with_candidates:
        found["static targets"] = (PROBED + rows_with_candidates(plan)) * speed.candidates
    found["semi-offline RL"] = plan.rl.steps * speed.rl_step + evaluated(plan.rl)
    if options.more_mft_steps != 0:
        found["more M-FT"] = found["semi-offline RL"] + found.get("static targets", 0.0)
    found["tests"] = models * plan.tested * speed.output
    return found


def _cut(steps: int, share: float) -> int:
    """Return a smaller number of steps, divisible by EVALUATIONS."""
    fewer = max(int(steps * share), FEWEST_STEPS)
    return min(steps, max(FEWEST_STEPS, fewer // EVALUATIONS * EVALUATIONS))


def _round(rate: float) -> float:
    """Round to one digit."""
    return float(f"{rate:.0e}")
