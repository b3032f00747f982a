"""Compute signs that a reward is exploited, or that a difference is chance, from evaluated outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from semioffline.data.examples import Examples
from semioffline.evaluation.results import Evaluation
from semioffline.evaluation.statistics import standard_error
from semioffline.scoring.reward_set import RewardSet


def signs(evaluation: Evaluation, examples: Examples, rewards: RewardSet) -> dict[str, float]:
    """Return further metrics of an evaluation, next to the means.

    `identical`: the share of outputs that are also written for another input, and `identical_references`: the same of
    the first references; `length_references`: their words; `frac_reward_none`: the share of outputs without a reward;
    `NAME_stderr`: the standard error of a metric's mean.
    """
    rows = [example.columns for example in examples.examples]
    prompts = [str(row["prompt"]) for row in rows]
    references = [cast(list[str], row["references"])[0] for row in rows]
    found = {
        "identical": shared(evaluation.predictions, prompts),
        "identical_references": shared(references, prompts),
        "length_references": float(np.mean([len(text.split()) for text in references])),
    }
    each = {name: values for name, values in evaluation.values.items() if name not in evaluation.statistics}
    if rewards.functions:
        each["reward"] = rewards.add(evaluation.values).tolist()
        found["frac_reward_none"] = float(np.isnan(each["reward"]).mean())
    return found | {f"{name}_stderr": standard_error(values) for name, values in each.items()}


def shared(texts: Sequence[str], prompts: Sequence[str]) -> float:
    """Return the share of texts that also belong to another prompt."""
    owners: dict[str, set[str]] = {}
    for text, prompt in zip(texts, prompts, strict=True):
        owners.setdefault(text, set()).add(prompt)
    return sum(len(owners[text]) > 1 for text in texts) / max(len(texts), 1)
