"""Rewards that misbehave, each in its own way. The name of a group says how a command must end."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import decimal
import fractions
import gc
import logging
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

LONG = 10_000.0
"""Seconds: no test waits for it."""
STOPS: list[str] = []
"""One line that names the reward, exit code 2, no result. Within the time limit where it hangs."""
GOES_ON: list[str] = []
"""Exit code 0, with a result."""
ENDS: list[str] = []
"""They end the process, or interrupt it as Ctrl-C does: not with exit code 0, and no result."""


def good(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


def _add(group: list[str], name: str, act: Callable[..., Any], later: bool = False) -> None:
    """act(completions, columns) -> what is returned. later: as a coroutine, which runs in the event loop."""

    def now(completions: list[str], **columns: Any) -> Any:
        return act(completions, columns)

    async def afterwards(completions: list[str], **columns: Any) -> Any:
        found = act(completions, columns)
        return await found if asyncio.iscoroutine(found) else found

    function: Any = afterwards if later else now
    function.__name__ = name
    globals()[name] = function
    group.append(name)


def _both(group: list[str], name: str, act: Callable[..., Any]) -> None:
    _add(group, name, act)
    _add(group, f"{name}_async", act, later=True)


def _first(act: Callable[[], Any]) -> Callable[..., Any]:
    """Do something, then answer as one should."""

    def both(completions: list[str], columns: Any) -> Any:
        act()
        return good(completions)

    return both


def _raise(error: BaseException) -> Callable[..., Any]:
    def act(completions: list[str], columns: Any) -> Any:
        raise error

    return act


def _value(change: Callable[[list[float]], Any]) -> Callable[..., Any]:
    return lambda completions, columns: change(good(completions))


# ---- what they return ----

WRONG_VALUES: dict[str, Callable[[list[float]], Any]] = {
    "nothing": lambda values: None,
    "too_few": lambda values: values[:-1],
    "too_many": lambda values: [*values, 0.0],
    "empty": lambda values: [],
    "a_number": lambda values: 1.0,
    "a_text": lambda values: "1" * len(values),
    "some_bytes": lambda values: bytes(len(values)),
    "a_dict": lambda values: dict(enumerate(values)),
    "a_set": set,
    "a_generator": lambda values: (value for value in values),
    "an_iterator": iter,
    "texts": lambda values: [str(value) for value in values],
    "nested": lambda values: [[value] for value in values],
    "complex_numbers": lambda values: [complex(value) for value in values],
    "decimals": lambda values: [decimal.Decimal(value) for value in values],
    "fractions": lambda values: [fractions.Fraction(value) for value in values],
    "infinity": lambda values: [*values[:-1], float("inf")],
    "minus_infinity": lambda values: [-float("inf"), *values[1:]],
    "too_large": lambda values: [1e308] * len(values),
    "huge_ints": lambda values: [10**400] * len(values),
    "huger_ints": lambda values: [10**5000] * len(values),
    "a_scalar_tensor": lambda values: torch.tensor(1.0),
    "a_tensor_of_rows": lambda values: torch.ones(len(values), 2),
    "tensors_of_two": lambda values: [torch.ones(2) for _ in values],
    "arrays_of_two": lambda values: [np.ones(2) for _ in values],
    "a_sparse_tensor": lambda values: torch.ones(len(values)).to_sparse(),
    "a_tensor_without_data": lambda values: torch.ones(len(values), device="meta"),
    "an_array_of_objects": lambda values: np.array([object() for _ in values]),
    "an_array_of_texts": lambda values: np.array(["x" for _ in values]),
    "a_class": lambda values: list,
    "itself": lambda values: good,
    "an_exception": lambda values: ValueError("x"),
    "dates": lambda values: [np.datetime64("2026-01-01")] * len(values),
}
for _name, _change in WRONG_VALUES.items():
    _both(STOPS, f"returns_{_name}", _value(_change))

GOOD_VALUES: dict[str, Callable[[list[float]], Any]] = {
    "booleans": lambda values: [value > 0 for value in values],
    "a_tuple": tuple,
    "ints": lambda values: [int(value) for value in values],
    "numpy_numbers": lambda values: [np.float16(value) for value in values],
    "numpy_booleans": lambda values: [np.bool_(value > 0) for value in values],
    "tensors": lambda values: [torch.tensor(value) for value in values],
    "a_half_tensor": lambda values: torch.tensor(values, dtype=torch.bfloat16),
    "a_tensor_with_gradient": lambda values: torch.tensor(values, requires_grad=True) * 2,
    "none_at_all": lambda values: [None] * len(values),
    "nan": lambda values: [float("nan"), *values[1:]],
    "equal": lambda values: [0.0] * len(values),
    "tiny": lambda values: [5e-324] * len(values),
}
for _name, _change in GOOD_VALUES.items():
    _both(GOES_ON, f"returns_{_name}", _value(_change))


# ---- what they raise ----


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


ERRORS: dict[str, BaseException] = {
    "an_exception": ValueError("bad"),
    "many_lines": ValueError("one\ntwo\r\n[/b]\x1b[31m" + "x" * 10**6),
    "no_message": KeyError(),
    "an_error_without_a_message": Unspeakable(),
    "half_a_character": ValueError("\ud83d"),
    "its_own_timeout": TimeoutError("the service is slow"),
    "system_exit": SystemExit(0),
    "system_exit_with_text": SystemExit("bye"),
    "generator_exit": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "stop_iteration": StopIteration(),
    "an_os_error": OSError(28, "No space left on device", "their.cache"),
    "a_broken_pipe": BrokenPipeError(32, "Broken pipe"),
    "memory_error": MemoryError(),
    "a_base_exception": BaseException("base"),
    "a_group": ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
}
for _name, _error in ERRORS.items():
    _both(STOPS, f"raises_{_name}", _raise(_error))
_add(ENDS, "raises_keyboard_interrupt", _raise(KeyboardInterrupt()))
_add(STOPS, "raises_keyboard_interrupt_async", _raise(KeyboardInterrupt()), later=True)


def _recurse(*_: Any) -> Any:
    return _recurse()


_both(STOPS, "recurses", _recurse)


# ---- hangs ----


def _spin(*_: Any) -> Any:
    while True:
        pass


def _lock(*_: Any) -> Any:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


async def _sleep_and_refuse_to_end() -> None:
    while True:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            continue


async def _join_what_never_ends() -> None:
    await asyncio.to_thread(time.sleep, LONG)


def _pool(*_: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [LONG, LONG]))


def _thread(*_: Any) -> Any:
    thread = threading.Thread(target=time.sleep, args=(LONG,))
    thread.start()
    thread.join()


_both(STOPS, "sleeps", lambda *_: time.sleep(LONG))
_both(STOPS, "spins", _spin)
_both(STOPS, "waits_for_its_own_lock", _lock)
_both(STOPS, "waits_for_a_pool_of_threads", _pool)
_both(STOPS, "waits_for_a_thread", _thread)
_both(STOPS, "waits_for_a_process", lambda *_: subprocess.run(["sleep", "15"], check=True))
_both(STOPS, "reads_a_pipe", lambda *_: os.read(os.pipe()[0], 1))
_add(STOPS, "sleeps_in_the_loop", lambda *_: asyncio.sleep(LONG), later=True)
_add(STOPS, "refuses_to_be_cancelled", lambda *_: _sleep_and_refuse_to_end(), later=True)
_add(STOPS, "waits_in_another_thread", lambda *_: _join_what_never_ends(), later=True)
_add(STOPS, "stops_the_event_loop", lambda *_: _stop_loop(), later=True)
_add(STOPS, "ends_in_a_task_of_its_own", lambda *_: _exit_in_task(), later=True)


async def _stop_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(LONG)


async def _exit_in_task() -> None:
    async def leave() -> None:
        sys.exit(0)

    task = asyncio.create_task(leave())
    await asyncio.sleep(LONG)
    await task


_add(ENDS, "holds_the_interpreter", lambda *_: re.match("(a|aa)+$", "a" * 200 + "b"))
_add(ENDS, "holds_the_interpreter_async", lambda *_: re.match("(a|aa)+$", "a" * 200 + "b"), later=True)


# ---- what they do to the process ----


def _fork(*_: Any) -> Any:
    child = os.fork()
    if child:
        os.waitpid(child, 0)


def _fork_and_raise(completions: list[str], columns: Any) -> Any:
    _fork()
    raise ValueError("in both")


def _wreck(completions: list[str], columns: dict[str, Any]) -> Any:
    values = good(completions)
    for column in columns.values():
        column.clear()
    completions.clear()
    return values


def _wreck_deeply(completions: list[str], columns: dict[str, Any]) -> Any:
    for row in columns["references"]:
        row.clear()
    for ids in columns["completion_ids"]:
        ids[:] = [10**9]
    return good(completions)


def _folder() -> None:
    os.chdir("/")


def _close_output() -> None:
    with contextlib.suppress(OSError):
        os.close(1)


_both(GOES_ON, "deletes_its_arguments", _wreck)
_both(GOES_ON, "deletes_what_is_in_them", _wreck_deeply)
_both(GOES_ON, "changes_the_folder", _first(_folder))
_both(GOES_ON, "prints", _first(lambda: print("[/b]\x1b[31m" + "x" * 10**5)))
_both(GOES_ON, "closes_the_output", _first(lambda: sys.stdout.close()))
_both(GOES_ON, "closes_descriptor_1", _first(_close_output))
_both(GOES_ON, "takes_the_output_away", _first(lambda: setattr(sys, "stdout", None)))
_both(GOES_ON, "switches_gradients_off", _first(lambda: torch.set_grad_enabled(False)))
_both(GOES_ON, "sets_seeds", _first(lambda: (random.seed(0), np.random.seed(0), torch.manual_seed(0))))
_both(GOES_ON, "warns", _first(lambda: warnings.warn("careful", stacklevel=1)))
_both(GOES_ON, "silences_logging", _first(lambda: logging.disable()))
_both(GOES_ON, "collects_garbage", _first(lambda: gc.collect(0)))
_both(GOES_ON, "clears_the_environment", _first(os.environ.clear))
_both(GOES_ON, "forks", _first(_fork))
_both(STOPS, "forks_and_raises", _fork_and_raise)
_add(GOES_ON, "ignores_ctrl_c", _first(lambda: threading.Timer(0, lambda: None).start()))
_both(GOES_ON, "starts_a_thread", _first(lambda: threading.Thread(target=time.sleep, args=(0.1,)).start()))
_both(GOES_ON, "starts_a_process", _first(lambda: subprocess.run(["true"], check=True)))
_both(GOES_ON, "uses_processes", _first(lambda: multiprocessing.get_context("fork").Pool(1).map(abs, [1])))
_both(ENDS, "ends_the_process", lambda *_: os._exit(0))
_both(ENDS, "kills_itself", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
_both(ENDS, "aborts", lambda *_: os.abort())
_add(ENDS, "reads_from_address_0", lambda *_: ctypes.string_at(0))
