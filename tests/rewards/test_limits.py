"""A limit on the time of a reward, and another try."""

import asyncio
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from semioffline.errors import UserError
from semioffline.rewards.contract import reward_name
from semioffline.rewards.limits import Retry, TimeLimit, time_limit
from semioffline.rewards.rouge import Rouge
from semioffline.scoring.reward_set import RewardSet

COLUMNS = {"completions": ["a", "b b"], "prompts": ["x", "y"]}


def quick(completions, **kwargs):
    return [float(len(text)) for text in completions]


def broken(completions, **kwargs):
    raise KeyError("category")


async def later(completions, seconds=0.0, **kwargs):
    await asyncio.sleep(seconds)
    return quick(completions)


def test_a_reward_in_time_is_as_it_was():
    assert time_limit(quick, 5)(**COLUMNS) == [1, 3]
    assert asyncio.run(time_limit(later, 5)(**COLUMNS)) == [1, 3]
    assert time_limit(quick, None) is quick


def test_a_reward_that_hangs_is_left_behind():
    end = threading.Event()

    def hangs(completions, **kwargs):
        end.wait(20)
        return quick(completions)

    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer after 0\.1 s \(reward_timeout\)"):
        time_limit(hangs, 0.1)(**COLUMNS)
    assert time.monotonic() - started < 5
    end.set()


def test_a_coroutine_that_hangs_is_cancelled():
    with pytest.raises(TimeoutError, match=r"no answer after 0\.1 s"):
        asyncio.run(time_limit(later, 0.1)(seconds=20, **COLUMNS))


def test_a_coroutine_s_own_timeout_is_not_reported_as_the_limit():
    async def slow_service(completions, **kwargs):
        raise TimeoutError("the service is slow")

    with pytest.raises(TimeoutError, match="the service is slow"):
        asyncio.run(time_limit(slow_service, 5)(**COLUMNS))


async def blocks(completions, **kwargs):
    time.sleep(3)


async def refuses_to_be_cancelled(completions, **kwargs):
    for _ in range(8):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.5)


async def stops_its_loop(completions, **kwargs):
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


async def exits_in_a_task(completions, **kwargs):
    task = asyncio.create_task(exits(completions))
    await asyncio.sleep(60)
    await task


async def exits(completions, **kwargs):
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (blocks, r"'blocks' raised TimeoutError: no answer after 0.2 s \(reward_timeout\)"),
        (refuses_to_be_cancelled, "'refuses_to_be_cancelled' raised TimeoutError: no answer after 0.2 s"),
        (stops_its_loop, "'stops_its_loop' has stopped the event loop"),
        (exits_in_a_task, "'exits_in_a_task' has stopped the event loop"),
        (exits, "'exits' raised SystemExit: 0"),
    ],
)
def test_the_limit_holds_whatever_a_coroutine_does_to_its_loop(function, says):
    """Among others, it is the one that is named; and the next call has a loop that runs."""

    async def well(completions, **kwargs):
        return quick(completions)

    started = time.monotonic()
    with pytest.raises(UserError, match=says):
        RewardSet([well, function], timeout=0.2)(COLUMNS)
    assert time.monotonic() - started < 5
    assert RewardSet([well, later], timeout=20)(COLUMNS)[0] == [2, 6]


def test_a_function_that_exits_is_an_error_also_without_a_limit():
    def leaves(completions, **kwargs):
        raise SystemExit(0)

    for timeout in (None, 5):
        with pytest.raises(UserError, match="'leaves' raised SystemExit: 0"):
            RewardSet(leaves, timeout=timeout)(COLUMNS)


def test_a_function_that_holds_the_interpreter_is_ended_with_the_process():
    code = """
import re
from semioffline.rewards import limits
limits.LAST = limits.GRACE = 0.3
limits.TimeLimit(lambda **columns: re.match("(a|aa)+$", "a" * 200 + "b"), 0.3)()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr


def test_what_a_function_does_to_the_process_is_undone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = os.getpid()

    def rude(completions, **kwargs):
        os.chdir("/")
        os.environ["FORKED"] = str(os.fork() == 0)  # the child must not come back
        torch.set_grad_enabled(False)
        return quick(completions)

    assert RewardSet(rude)(COLUMNS)[0] == [1, 3]
    assert os.getpid() == process
    assert Path.cwd() == tmp_path
    assert torch.is_grad_enabled()
    assert os.wait()[1] != 0


def test_errors_and_names_pass_through():
    with pytest.raises(KeyError, match="category"):
        time_limit(broken, 5)(**COLUMNS)
    assert reward_name(time_limit(broken, 5)) == reward_name(Retry(broken)) == "broken"
    limited = time_limit(Rouge("rouge1"), 5)
    assert (limited.name, limited.signature) == ("rouge1", Rouge("rouge1").signature)
    assert pickle.loads(pickle.dumps(limited))(completions=["a"], references=[["a"]]) == [1.0]


class Sometimes:
    """Fails so many times, then answers."""

    name = "sometimes"

    def __init__(self, failures, error=ConnectionError):
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self, completions, **kwargs):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"call {self.calls}")
        return quick(completions)


class SometimesLater(Sometimes):
    async def __call__(self, completions, **kwargs):
        await asyncio.sleep(0)
        return super().__call__(completions)


@pytest.mark.parametrize("kind", [Sometimes, SometimesLater])
def test_another_try_after_an_error_of_the_network(kind):
    service = kind(2)
    assert RewardSet(Retry(service, attempts=3, wait=0))(COLUMNS)[0] == [1, 3]
    assert service.calls == 3


@pytest.mark.parametrize("kind", [Sometimes, SometimesLater])
def test_the_last_error_is_told_with_the_name(kind):
    service = kind(9)
    with pytest.raises(UserError, match="'sometimes' raised ConnectionError: call 3"):
        RewardSet(Retry(service, attempts=3, wait=0))(COLUMNS)
    assert service.calls == 3


@pytest.mark.parametrize("kind", [Sometimes, SometimesLater])
def test_or_the_samples_are_left_out(kind):
    sums, _ = RewardSet(Retry(kind(9), attempts=2, wait=0, give_up="none"))(COLUMNS)
    assert all(value != value for value in sums)


@pytest.mark.parametrize(
    "broken_answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[1",  # incomplete
        b"HTTP/1.1 abc\r\n\r\n",  # malformed
        b"not HTTP\r\n\r\n",
        b"",  # the connection ends
    ],
    ids=["incomplete", "malformed", "not HTTP", "nothing"],
)
def test_an_incomplete_or_malformed_answer_is_asked_for_again(broken_answer):
    answers = [broken_answer, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n[1, 3]"]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        def service(completions, **kwargs):
            port = server.getsockname()[1]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                return json.loads(answer.read())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert Retry(service, attempts=2, wait=0)(**COLUMNS) == [1, 3]
        thread.join(10)


def test_mistakes_in_the_reward_are_not_tried_again():
    service = Sometimes(9, KeyError)
    with pytest.raises(KeyError, match="call 1"):
        Retry(service, attempts=3, wait=0)(**COLUMNS)
    assert service.calls == 1


def test_a_service_that_hangs_is_tried_again():
    """Limit inside, attempts outside: TimeoutError is an OSError."""
    calls = []

    def slow_at_first(completions, **kwargs):
        calls.append(len(calls))
        time.sleep(3 if len(calls) == 1 else 0)
        return quick(completions)

    assert Retry(time_limit(slow_at_first, 1), wait=0)(**COLUMNS) == [1, 3]
    assert len(calls) == 2


def test_the_pause_doubles(monkeypatch):
    pauses = []
    monkeypatch.setattr("semioffline.rewards.limits.time.sleep", pauses.append)
    with pytest.raises(ConnectionError):
        Retry(Sometimes(9), attempts=4, wait=0.5)(**COLUMNS)
    assert pauses == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: TimeLimit(quick, 0), "reward_timeout=0 must be positive"),
        (lambda: Retry(quick, attempts=0), "attempts=0"),
        (lambda: Retry(quick, wait=-1), "wait=-1"),
        (lambda: Retry(quick, give_up="zero"), "give_up='zero'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(build, says):
    with pytest.raises(UserError, match=says):
        build()
