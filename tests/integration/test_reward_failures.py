"""Rewards that go wrong in the middle of training: the message names the function, and nothing is lost.

What each wrong value is called is tested with the scoring itself; here it is met at the fifth step of six, after two
checkpoints.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import read_log, train, weights

from semioffline.errors import UserError
from semioffline.rewards.limits import Retry

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, BAD = 6, 5
SAVED = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 2, "reward_timeout": 1.5}


def words(completions: list[str]) -> list[float]:
    return [len(set(text.split())) / 10 for text in completions]


class Moody:
    """A reward that is good, but for one call."""

    name = "moody"

    def __init__(self, bad: Callable[[list[float]], Any] = lambda values: values, at: int = BAD) -> None:
        self.bad, self.at, self.calls = bad, at, 0

    def __call__(self, completions: list[str], **columns: Any) -> Any:
        self.calls += 1
        return self.bad(words(completions)) if self.calls == self.at else words(completions)


class MoodyLater(Moody):
    async def __call__(self, completions: list[str], **columns: Any) -> Any:
        out = super().__call__(completions)
        return await out if asyncio.iscoroutine(out) else out


def raises(values: list[float]) -> Any:
    raise ZeroDivisionError("nothing to divide by")


def hangs(values: list[float]) -> Any:
    time.sleep(6)
    return values


async def hangs_later(values: list[float]) -> Any:
    await asyncio.sleep(30)


STOPS: dict[str, tuple[type[Moody], Callable[[list[float]], Any], str]] = {
    "raises": (Moody, raises, "'moody' raised ZeroDivisionError: nothing to divide by"),
    "raises, async": (MoodyLater, raises, "'moody' raised ZeroDivisionError: nothing to divide by"),
    "hangs": (Moody, hangs, r"'moody' raised TimeoutError: no answer after 1\.5 s \(reward_timeout\)"),
    "hangs, async": (MoodyLater, hangs_later, r"'moody' raised TimeoutError: no answer after 1\.5 s"),
    "returns None": (Moody, lambda values: None, "'moody' returned NoneType, but must return a list of 32 numbers"),
    "too short": (Moody, lambda values: values[:-1], "'moody' returned 31 values for 32 samples"),
    "too long": (Moody, lambda values: [*values, 0.0], "'moody' returned 33 values for 32 samples"),
    "a tensor of one number": (Moody, lambda values: torch.tensor(values).mean(), "'moody' returned float"),
    "a tensor of rows": (Moody, lambda values: torch.tensor(values)[:, None], r"'moody' returned \[.*\] for sample 0"),
    "infinite": (Moody, lambda values: [*values[:-1], math.inf], "'moody' returned inf for sample 31"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of a run in which nothing went wrong."""
    torch.set_num_threads(1)
    return weights(train(tmp_path_factory.mktemp("whole"), reward=Moody(), **SAVED))


@pytest.mark.parametrize("case", STOPS)
def test_training_stops_with_the_name_and_goes_on_from_the_last_checkpoint(
    case: str, whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    kind, bad, says = STOPS[case]
    with pytest.raises(UserError, match=says) as caught:
        train(tmp_path, reward=kind(bad), **SAVED)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.glob("*checkpoint*")) == ["checkpoint-2", "checkpoint-4"]
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    resumed = train(tmp_path, resume=True, reward=Moody(), **SAVED)
    assert resumed.state.global_step == STEPS
    assert [line["step"] for line in read_log(tmp_path) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    for name, value in weights(resumed).items():
        assert torch.equal(value, whole[name]), name


GOES_ON: dict[str, tuple[Callable[[list[float]], Any], float, int]] = {
    "some None": (lambda values: [None, *values[1:-7], *[None] * 7], 8 / 32, 1),
    "some NaN": (lambda values: [math.nan, *values[1:-7], *[math.nan] * 7], 8 / 32, 1),
    "all None": (lambda values: [None] * len(values), 1.0, 8),
    "all NaN": (lambda values: [math.nan] * len(values), 1.0, 8),
    "a tensor with NaN": (lambda values: torch.tensor([math.nan, *values[1:]]), 1 / 32, 0),
    "a tensor": (torch.tensor, 0.0, 0),
}


@pytest.mark.parametrize("case", GOES_ON)
def test_samples_without_a_reward_are_left_out_and_counted(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, share, rows = GOES_ON[case]
    reward = Moody(bad)
    reward.name = f"moody, {case}"  # it is told once for each name
    trainer = train(tmp_path, reward=reward, **SAVED)
    assert trainer.state.global_step == STEPS
    lines = {line["step"]: line for line in read_log(tmp_path) if "loss" in line}
    assert lines[BAD]["frac_reward_none"] == pytest.approx(share)
    assert lines[BAD - 1]["frac_reward_none"] == 0
    assert lines[BAD]["rows_without_reward"] == rows
    assert (f"rewards/{reward.name}/mean" in lines[BAD]) == (share < 1)
    assert all(torch.isfinite(value).all() for value in weights(trainer).values())
    told = f"the reward function '{reward.name}' returned NaN for {round(share * 32)} of 32 samples" in caplog.text
    assert told == ("NaN" in case)  # None is said on purpose


def test_a_tensor_is_the_same_as_a_list(whole: dict[str, torch.Tensor], tmp_path: Path) -> None:
    for name, value in weights(train(tmp_path, reward=Moody(torch.tensor), **SAVED)).items():
        assert torch.allclose(value, whole[name], atol=1e-6), name


def test_a_step_without_any_reward_is_a_step_of_fine_tuning(tmp_path: Path) -> None:
    """The rows count with no RL loss; the next step goes on."""
    train(tmp_path, reward=Moody(lambda values: [None] * len(values)), **SAVED)
    lines = {line["step"]: line for line in read_log(tmp_path) if "loss" in line}
    assert lines[BAD]["loss/rl"] == 0
    assert lines[BAD]["loss/mle"] > 0
    assert lines[BAD + 1]["loss/rl"] != 0


def test_a_service_that_fails_for_a_moment_stops_nothing(whole: dict[str, torch.Tensor], tmp_path: Path) -> None:
    def down(values: list[float]) -> Any:
        raise ConnectionError("503")

    moody = Moody(down)
    trainer = train(tmp_path, reward=Retry(moody, attempts=2, wait=0), **SAVED)
    assert moody.calls == STEPS + 1
    for name, value in weights(trainer).items():
        assert torch.equal(value, whole[name]), name


def test_among_several_rewards_the_one_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'moody' returned 31 values"):
        train(tmp_path, reward=["click_rate", Moody(lambda values: values[:-1])], **SAVED)
    assert (tmp_path / "checkpoint-4").is_dir()


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_limit_that_makes_no_sense_is_refused(seconds: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward_timeout=.* must be above 0"):
        train(tmp_path, **(SAVED | {"reward_timeout": seconds}))
