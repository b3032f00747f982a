"""An optimizer step depends on its rows, not on how they are cut into micro-batches and processes.

L_MLE is divided by the target tokens of the whole step, L_RL by its rows, and random numbers are keyed by (seed, step,
example). So 1 x 8, 4 x 2 and 2 x 4 rows give the same three steps, on one process or two.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from steps_worker import CASES, ROWS, WRONG
from toy import WITH_T5, build_rows, build_uneven_rows, train, weights

from semioffline import SemiOfflineTrainer
from semioffline.algorithm.randomness import Randomness

WHOLE = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
CUTS = [
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
]


def largest_error(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest |a - b| over all parameters in units of the tolerance (atol 1e-7, rtol 1e-5): up to 1 is equal."""
    assert a.keys() == b.keys()
    return max(((a[name] - b[name]).abs() / (1e-7 + 1e-5 * b[name].abs())).max().item() for name in a)


def assert_trained(trained: dict[str, torch.Tensor], kind: str) -> None:
    """Every parameter that can move has moved: equality of untouched weights would say nothing."""
    from toy import build_model

    before = build_model(kind).state_dict()
    still = {name for name in before if not name.endswith("bias") and torch.equal(before[name], trained[name])}
    assert not still


@pytest.mark.parametrize("rows", [build_rows(24), build_uneven_rows(21)], ids=["even", "uneven"])
@pytest.mark.parametrize("kind", WITH_T5)
def test_accumulation_does_not_change_the_step(kind: str, rows: Dataset, tmp_path: Path) -> None:
    """With 21 rows of different lengths the third step is a partial one (5 rows) too."""
    whole = weights(train(tmp_path / "whole", kind=kind, rows=rows, **WHOLE))
    assert_trained(whole, kind)
    for cut in CUTS:
        assert largest_error(weights(train(tmp_path / "cut", kind=kind, rows=rows, **cut)), whole) <= 1


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_scale": "sequence", "baseline": "leave_one_out", "scale_rewards": True},
        {"mask_unit": "word", "label_smoothing_factor": 0.1, "temperature": 0.7, "top_p": 0.9},
        {"method": "mft"},
        {"method": "scheduled_sampling", "teacher_forcing_end": 0.2},
        {"method": "erpo", "max_completion_length": 16},
        {"method": "raml"},
        {"method": "spg", "max_completion_length": 16},
        {"method": "avg", "max_completion_length": 16, "top_p": 0.9},
        {"method": "self_critic", "max_completion_length": 16},
        {"method": "actor_critic", "max_completion_length": 16},
        {"method": "actor_critic", "max_completion_length": 16, "critic_role": "reward", "critic_learning_rate": 0.3},
        {"method": "grpo", "max_completion_length": 16, "num_iterations": 2},
        {"method": "ppo", "max_completion_length": 16, "num_iterations": 2, "critic_warmup_steps": 1},
        {"kl_weight": 2.0},
    ],
    ids=[
        "sequence",
        "word",
        "mft",
        "scheduled_sampling",
        "erpo",
        "raml",
        "spg",
        "avg",
        "self_critic",
        "actor_critic",
        "critic_reward",
        "grpo",
        "ppo",
        "kl",
    ],
)
def test_settings_keep_it(settings: dict, tmp_path: Path) -> None:
    rows = build_uneven_rows(16)
    whole = weights(train(tmp_path / "whole", rows=rows, max_steps=2, **WHOLE, **settings))
    assert largest_error(weights(train(tmp_path / "cut", rows=rows, max_steps=2, **CUTS[0], **settings)), whole) <= 1


@pytest.mark.parametrize(
    "settings", [{"method": "dpo", "dpo_pairs": "all"}, {"method": "dpo"}, {"method": "best_of_n"}]
)
def test_methods_of_candidates_keep_it(settings: dict, tmp_path: Path) -> None:
    """Rows with different numbers of candidates, some of which are as good as each other."""
    rows = build_uneven_rows(16).to_list()
    for n, row in enumerate(rows):
        words = row["completion"].split()
        row["candidates"] = [" ".join(words[k:] or words) + " today" * k for k in range(1 + n % 4)]
        row["candidate_rewards"] = [1.0 - 0.3 * (k // 2) for k in range(len(row["candidates"]))]
    settings = settings | {"rows": Dataset.from_list(rows), "max_steps": 2}
    whole = weights(train(tmp_path / "whole", **WHOLE, **settings))
    assert largest_error(weights(train(tmp_path / "cut", **CUTS[0], **settings)), whole) <= 1


def test_candidates_keep_it(tmp_path: Path) -> None:
    """ilql learns from rows with different numbers of candidates; its slow copies move once a step."""
    rows = build_uneven_rows(16).to_list()
    for n, row in enumerate(rows):
        words = row["completion"].split()
        row["candidates"] = [" ".join(words[start:] or words) for start in range(1 + n % 3)]
        row["candidate_rewards"] = [0.1 * n - 0.2 * start for start in range(1 + n % 3)]
    settings = {"rows": Dataset.from_list(rows), "method": "ilql", "polyak": 0.5, "learning_rate": 0.05}
    whole = weights_of_all(train(tmp_path / "whole", **WHOLE, **settings, max_steps=2))
    for cut in CUTS:
        assert largest_error(weights_of_all(train(tmp_path / "cut", **cut, **settings, max_steps=2)), whole) <= 1


def weights_of_all(trainer: SemiOfflineTrainer) -> dict[str, torch.Tensor]:
    """With those of the heads."""
    return {name: value.detach().clone() for name, value in trainer.policy.state_dict().items()}


def test_random_static_targets_keep_it(tmp_path: Path) -> None:
    """Rows with different numbers of candidates: which one a row gets must not depend on the others in its batch."""
    rows = build_rows(24).to_list()
    for n, row in enumerate(rows):
        words = row["completion"].split()
        row["candidates"] = [" ".join(words[start:]) for start in range(1 + n % 5)]
    settings = {"rows": Dataset.from_list(rows), "static_target": "random"}
    whole = weights(train(tmp_path / "whole", **WHOLE, **settings))
    for cut in CUTS:
        assert largest_error(weights(train(tmp_path / "cut", **cut, **settings)), whole) <= 1


RIGHT = Randomness.uniform


def _by_place(self, purpose, examples, sizes):
    """Random numbers keyed by the place in the micro-batch instead of the example."""
    return RIGHT(self, purpose, torch.arange(len(examples)), sizes)


def _by_process(self, purpose, examples, sizes):
    """Random numbers from the process's own stream."""
    return torch.rand(sum(sizes))


@pytest.mark.parametrize("wrong", [_by_place, _by_process])
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_key_is_seen(kind: str, wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above has teeth: with numbers that depend on the micro-batch the steps differ by far."""
    monkeypatch.setattr(Randomness, "uniform", wrong)
    whole = weights(train(tmp_path / "whole", kind=kind, **WHOLE))
    assert largest_error(weights(train(tmp_path / "cut", kind=kind, **CUTS[0])), whole) > 100


@pytest.mark.slow
def test_two_processes_make_the_same_step(tmp_path: Path) -> None:
    """Two processes equal one; with the process's rank in the key they do not."""
    script = Path(__file__).with_name("steps_worker.py")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([sys.executable, *launch], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = build_uneven_rows(ROWS)
    whole = {kind: weights(train(tmp_path / kind, kind=kind, rows=rows, **WHOLE)) for kind in WITH_T5}
    for name, settings in CASES.items():
        assert largest_error(torch.load(tmp_path / f"{name}.pt"), whole[settings["kind"]]) <= 1, name
    for kind in WRONG:
        assert largest_error(torch.load(tmp_path / f"wrong-key-{kind}.pt"), whole[kind]) > 100, kind
