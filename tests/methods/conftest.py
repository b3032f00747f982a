"""A tiny BART that has learnt a little of the ads task, and short training without a trainer."""

import copy
from typing import Any

import pytest
import torch
from datasets import Dataset

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, StepOutput
from semioffline.data.examples import Collator, Examples
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.on_policy import sample_texts
from semioffline.methods.shared.registry import load_method
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.tasks import ads
from semioffline.training.own_rates import set_own_rates


def total(output: StepOutput, batch: Batch) -> torch.Tensor:
    """What the trainer makes of the terms of a single micro-batch."""
    counts = {"token": batch.target.keep_mask.sum(), "row": len(batch)}
    return torch.stack([term.weight * term.total / counts[term.per] for term in output.terms]).sum()


def train(
    policy: Policy,
    method: BaseMethod,
    examples: Examples,
    steps: int,
    lr: float,
    batch_size: int = 16,
    reward: Any = ads.click_rate,
) -> list[StepOutput]:
    scorer = Scorer(policy, RewardSet(reward))
    collate = Collator(policy.tokens.pad_id)
    method.prepare(policy, examples)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    set_own_rates(optimizer, method.own_rates())
    outputs = []
    for step in range(steps):
        chosen = torch.randint(len(examples), (batch_size,), generator=torch.Generator().manual_seed(step))
        batch = collate([examples[n] for n in chosen.tolist()])
        output = method.step(policy, batch, scorer, Randomness(0, step))
        optimizer.zero_grad()
        total(output, batch).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        outputs.append(output)
    return outputs


@pytest.fixture(scope="session")
def short_training() -> Any:
    """short_training(policy, method, examples, steps, lr, batch_size=16) -> the outputs of the steps."""
    return train


@pytest.fixture(scope="session")
def sampled_reward() -> Any:
    """sampled_reward(policy, examples, args, reward) -> the mean reward of four samples for each of 64 inputs."""

    def measure(policy: Policy, examples: Examples, args: Any, reward: Any) -> float:
        batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(64)])
        values = reward(completions=policy.tokens.decode(sample_texts(policy, batch, args, Randomness(9, 9), 4)))
        return sum(values) / len(values)

    return measure


@pytest.fixture(scope="session")
def ads_rows() -> Dataset:
    return ads.build({"train": 256})["train"]


@pytest.fixture(scope="session")
def _learnt(ads_rows: Dataset, settings: Any) -> Policy:
    policy = Policy(ads.build_model(), ads.build_tokenizer())
    examples = Examples(ads_rows, policy, 32, 32, progress=False)
    train(policy, load_method(settings("mft")), examples, steps=100, lr=3e-3, batch_size=32)
    return policy


@pytest.fixture
def learnt(_learnt: Policy) -> Policy:
    """A policy of its own for each test."""
    return Policy(copy.deepcopy(_learnt.model), _learnt.tokens.tokenizer)


@pytest.fixture
def ads_examples(ads_rows: Dataset, learnt: Policy) -> Examples:
    return Examples(ads_rows, learnt, 32, 32, progress=False)


@pytest.fixture(scope="session")
def ranked() -> Any:
    """ranked(policy, rows, number=4) -> rows whose candidates are the completions of other rows, rated by the clicks
    that they would get here; every second row has one less."""

    def build(policy: Policy, rows: Dataset, number: int = 4) -> Examples:
        made = rows.to_list()
        for n, row in enumerate(made):
            row["candidates"] = [made[(n + 7 * k) % len(made)]["completion"] for k in range(number - n % 2)]
            row["candidate_rewards"] = ads.click_rate(row["candidates"], [row["category"]] * len(row["candidates"]))
        return Examples(Dataset.from_list(made), policy, 40, 40, progress=False, with_candidates=True)

    return build
