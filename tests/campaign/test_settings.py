"""Every setting, from Python and on the command line: what its description forbids is refused in one line that names
it, before anything is loaded, and what it allows is accepted."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.campaign.inputs import (
    COMMANDS,
    DECODING,
    WITH,
    WITH_OF_METHOD,
    Case,
    command_cases,
    promised,
    python_cases,
)
from torch import nn

from campaign.conftest import Tally
from campaign.processes import run_command
from integration.toy import build_model, build_rows, build_tokenizer
from semioffline import SemiOfflineTrainer, run
from semioffline.cli import main
from semioffline.cli.options import parse
from semioffline.cli.train import TrainOptions
from semioffline.config import MethodConfig
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.methods.shared.registry import config_class, method_names
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.validation import show

SAMPLE, SEED = 75, 20
REAL, PARTS = 200, 10
"""Inputs that are tried in processes of their own, and in how many tests."""
PYTHON, COMMAND = python_cases(), command_cases()


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder, without a model; the environment is as before afterwards."""

    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a model is loaded before the settings are checked")

    before = dict(os.environ)
    monkeypatch.setattr(Policy, "load", load)
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(before)  # torch_compile sets variables


def make(case: Case) -> None:
    given = {case.name: case.value}
    if case.where == "Decoding":
        Decoding(**(_decoding(case) if case.allowed else {}) | given)
    elif case.where in (MethodConfig.__name__, *method_names()):
        kind = MethodConfig if case.where == MethodConfig.__name__ else config_class(case.where)
        kind(**{"output_dir": "x", "use_cpu": True} | _with(case) | given)
    else:
        kinds = {kind.__name__: kind for kinds in COMMANDS.values() for kind in kinds} | {"TrainOptions": TrainOptions}
        kinds[case.where](**given)


def _with(case: Case) -> dict[str, Any]:
    method = case.where.split()[-1]
    return (WITH.get(case.name, {}) if case.allowed else {}) | WITH_OF_METHOD.get((method, case.name), {})


def _decoding(case: Case) -> dict[str, Any]:
    if case.name == "num_beam_groups" and case.value == 1:
        return {}
    return DECODING.get(case.name, {}) if case.name != "diversity_penalty" or case.value else {}


def problem_in_python(case: Case) -> str | None:
    """What the library does wrong; None where it does what the description says."""
    try:
        make(case)
    except UserError as error:
        if case.allowed:
            return f"is refused: {error}" if promised(case) else None
        return _problem_of(case, str(error))
    except Exception as error:
        return f"ends in {error!r}"
    return None if case.allowed else "is accepted"


def _problem_of(case: Case, message: str) -> str | None:
    if case.name not in message:
        return f"is refused without its name: {message}"
    if "\n" in message or len(message) > 600:
        return f"is refused in more than a line: {message[:300]}"
    return None if "must" in message or "invalid choice" in message else f"is not told what is allowed: {message}"


def problem_on_the_command_line(case: Case, told: Callable[[], str]) -> str | None:
    """told: what has been printed on stderr since the last call."""
    flags = [f"--{case.name}={case.value}"]
    if case.allowed:
        try:
            _parse(case, [*flags, *(f"--{name}={value}" for name, value in _with(case).items())])
        except UserError as error:
            return f"is refused: {error}" if promised(case) else None
        return None
    told()
    try:
        code = main([*case.where.split(), *flags])
    except Exception as error:
        return f"ends in {error!r}"
    lines = told().splitlines()
    if code != 2 or len(lines) != 1:
        return f"ends with code {code} and {lines}"
    return _problem_of(case, lines[0])


def _parse(case: Case, flags: list[str]) -> None:
    command, *method = case.where.split()
    if method:
        parse(case.where, [DataOptions, ModelOptions, TrainOptions, config_class(method[0])], flags)
    else:
        parse(command, COMMANDS[command], flags)


SLOW = 20.0
"""Seconds after which an input counts as hung."""


def outcomes(what: str, cases: list[Case], problem: Callable[[Case], str | None], tally: Tally) -> str:
    """What is wrong, over all cases."""
    counts: Counter[str] = Counter()
    problems: list[tuple[Case, str | None]] = []
    for case in cases:
        began = time.monotonic()
        told = problem(case)
        hung = time.monotonic() - began > SLOW
        problems.append((case, "takes long" if hung else told))
        counts["hung" if hung else "lost" if told else "handled"] += 1
    for outcome, number in counts.items():
        tally(what, outcome, number)
    return told_of(problems)


def told_of(problems: list[tuple[Case, str | None]]) -> str:
    return "\n".join(f"{c.where} {c.name}={show(c.value)} {told}" for c, told in problems if told)


def by_setting(cases: list[Case]) -> list[Any]:
    """The cases of each setting, as parameters of a test."""
    ordered = sorted(cases, key=lambda case: (case.where, case.name))
    grouped = groupby(ordered, key=lambda case: (case.where, case.name))
    return [pytest.param(list(group), id=f"{where}-{name}") for (where, name), group in grouped]


def test_there_are_thousands_of_inputs_and_many_of_them_are_allowed() -> None:
    assert len(PYTHON) + len(COMMAND) >= 2000
    for cases in (PYTHON, COMMAND):
        assert 0.05 < sum(case.allowed for case in cases) / len(cases) < 0.5


def test_a_sample_of_inputs_in_python_ends_as_described() -> None:
    chosen = random.Random(SEED).sample(PYTHON, SAMPLE)
    assert not told_of([(case, problem_in_python(case)) for case in chosen])


def test_a_sample_of_inputs_on_the_command_line_ends_as_described(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = random.Random(SEED).sample(COMMAND, SAMPLE)
    assert not told_of([(case, problem_on_the_command_line(case, lambda: capsys.readouterr().err)) for case in chosen])


@pytest.mark.campaign
@pytest.mark.parametrize("cases", by_setting(PYTHON))
def test_every_input_in_python_ends_as_described(cases: list[Case], tally: Tally) -> None:
    assert not outcomes("settings in Python", cases, problem_in_python, tally)


@pytest.mark.campaign
@pytest.mark.parametrize("cases", by_setting(COMMAND))
def test_every_input_on_the_command_line_ends_as_described(
    cases: list[Case], capsys: pytest.CaptureFixture[str], tally: Tally
) -> None:
    def problem(case: Case) -> str | None:
        return problem_on_the_command_line(case, lambda: capsys.readouterr().err)

    assert not outcomes("settings on the command line", cases, problem, tally)


def _run(**wrong: Any) -> Any:
    given = {"model": build_model(), "data": build_rows(40), "reward": "rouge1", "device": "cpu", "dry_run": True}
    return run(**given | {"processing_class": build_tokenizer()} | wrong)


def _train(resume: Any = None, **wrong: Any) -> Any:
    args = config_class("semi_offline")(output_dir="x", use_cpu=True, report_to="none", max_steps=1)
    given = {"model": build_model(), "reward_funcs": "rouge1", "args": args, "train_dataset": build_rows(4)}
    trainer = SemiOfflineTrainer(**given | {"processing_class": build_tokenizer()} | wrong)
    return trainer.train(resume_from_checkpoint=resume)


NO_OBJECTS: list[Any] = [3, True, object(), {"a": 1}, [1]]
OBJECTS: list[tuple[Callable[..., Any], str, Any]] = [
    *((_run, "model", value) for value in (None, b"model", nn.Linear(2, 2), int, *NO_OBJECTS)),
    *((_run, "processing_class", value) for value in ("model", *NO_OBJECTS)),
    *((_run, "columns", value) for value in (3, "x", ["prompt"])),
    (_run, "nope", 1),
    *((_train, "model", value) for value in (None, nn.Linear(2, 2), *NO_OBJECTS)),
    *((_train, "processing_class", value) for value in ("model", None, *NO_OBJECTS)),
    *((_train, "args", value) for value in ("x", *NO_OBJECTS)),
    *((_train, name, value) for name in ("callbacks", "method", "peft_config") for value in ("x", *NO_OBJECTS)),
    (_train, "train_dataset", None),
    (_train, "resume", 3),
]


@pytest.mark.campaign
@pytest.mark.parametrize(("call", "name", "value"), OBJECTS)
def test_objects_of_another_kind_are_refused_by_name(
    call: Callable[..., Any], name: str, value: Any, tally: Tally
) -> None:
    told = ""
    try:
        call(**{name: value})
    except UserError as error:
        told = str(error)
    tally("objects in Python", "handled" if name in told else "lost")
    assert name in told


REFUSED = [case for case in COMMAND if not case.allowed and "\0" not in str(case.value)]


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_inputs_in_real_processes_end_as_described(part: int, tmp_path: Path, tally: Tally) -> None:
    """What is refused is refused in time, and without a model in sight."""

    def problem(case: Case) -> str | None:
        words = [*case.where.split(), f"--{case.name}={case.value}"]
        ended = run_command(words, tmp_path, tmp_path / "output", SLOW)
        if ended.code != 2 or len(ended.errors) != 1 or "Traceback" in ended.printed:
            return f"ends with code {ended.code} and {ended.printed[-500:]}"
        return _problem_of(case, ended.errors[0])

    cases = random.Random(f"{SEED} {part}").sample(REFUSED, REAL // PARTS)
    assert not outcomes("settings in real processes", cases, problem, tally)
