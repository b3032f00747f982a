"""Call reward functions: build their arguments, check their results, and score identical samples once."""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from semioffline.errors import UserError, short
from semioffline.rewards.containment import Contained
from semioffline.rewards.contract import Reward
from semioffline.rewards.limits import time_limit
from semioffline.validation import show

logger = logging.getLogger(__name__)

LARGEST = 1e15
"""Upper limit of rewards: float32 cannot hold the squares of much larger ones, and training would end in NaN."""
_LONGEST_MESSAGE = 1000
"""Maximum number of characters of an exception's message that are shown."""


class RewardError(UserError):
    """The error if a reward function raised, or returned something other than one number or None for each sample."""


def reward_columns(
    columns: dict[str, list[Any]], texts: list[str], ids: list[list[int]], many: int = 1
) -> dict[str, list]:
    """Return the arguments of reward functions: `many` texts per input, and every column with each value repeated
    `many` times."""
    return repeat(columns, [many] * len(columns["prompt"])) | {"completions": texts, "completion_ids": ids}


def repeat(columns: dict[str, list[Any]], counts: Sequence[int]) -> dict[str, list]:
    """Repeat each value of every column as often as its row has samples. `prompt` is renamed to `prompts`."""
    return {
        {"prompt": "prompts"}.get(name, name): [v for v, n in zip(values, counts, strict=True) for _ in range(n)]
        for name, values in columns.items()
        if name != "completion"
    }


_PLAIN = {str, int, float, bool, type(None)}


def own_copy(columns: dict[str, list]) -> dict[str, list]:
    """Copy columns, so that a function may change them without effect on other functions and the data. Samples of one
    row share values."""
    return {name: _own_values(values) for name, values in columns.items()}


def _own_values(values: list[Any]) -> list[Any]:
    if set(map(type, values)) <= _PLAIN:
        return list(values)
    distinct = {id(value): value for value in values}
    flat = all(type(v) is list and (not v or type(v[0]) in _PLAIN) for v in distinct.values())  # lists have one type
    copies = {key: value.copy() if flat else copy.deepcopy(value) for key, value in distinct.items()}
    return [copies[id(value)] for value in values]


def call(name: str, function: Reward, columns: dict[str, list], timeout: float | None = None) -> Any:
    """Call a function and return its result, which may be awaitable. Exceptions get the function's name. So does
    sys.exit(), which would otherwise end training without a result."""
    try:
        return time_limit(Contained(function), timeout)(**columns)
    except KeyboardInterrupt:  # Ctrl-C
        raise
    except BaseException as error:
        raise raised(name, error) from error


def raised(name: str, error: BaseException) -> RewardError:
    return RewardError(f"the reward function '{name}' raised {type(error).__name__}: {_message(error)}")


def _message(error: BaseException) -> str:
    try:
        return short(str(error), _LONGEST_MESSAGE)
    except Exception as another:
        return f"(its message cannot be made: {type(another).__name__})"


class Distinct(NamedTuple):
    """The samples to score, without repetitions of another sample of their row."""

    columns: dict[str, list]
    numbers: list[int] | None
    """For each sample, the number of the distinct sample that it equals; None: all samples are distinct."""

    def spread(self, values: Sequence[Any]) -> list[Any]:
        """Return a value for every sample, given those of the distinct ones."""
        return list(values) if self.numbers is None else [values[number] for number in self.numbers]


def find_distinct(function: Reward, columns: dict[str, list], rows: Sequence[int]) -> Distinct:
    """Return the distinct samples for a reward function: all of them if it is not deterministic. If it names
    `completion_ids`, equal texts with different tokens are distinct."""
    if not function.deterministic:
        return Distinct(columns, None)
    keys: Iterable[Any] = zip(rows, columns["completions"], strict=True)
    if "completion_ids" in columns and "completion_ids" in parameters(function):
        keys = zip(rows, map(tuple, columns["completion_ids"]), columns["completions"], strict=True)
    places: dict[Any, int] = {}
    numbers = [places.setdefault(key, len(places)) for key in keys]
    if len(places) == len(numbers):
        return Distinct(columns, None)
    first: dict[int, int] = {}
    for at, number in enumerate(numbers):
        first.setdefault(number, at)
    return Distinct({key: [values[at] for at in first.values()] for key, values in columns.items()}, numbers)


def parameters(function: Reward) -> set[str]:
    """Return the names of a function's arguments."""
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of an object that Python cannot look into
        return set()


def call_once(
    name: str, function: Reward, columns: dict[str, list], rows: Sequence[int], timeout: float | None = None
) -> list[float]:
    """Call a built-in reward and check its values. Identical samples of a row are scored once."""
    once = find_distinct(function, columns, rows)
    return once.spread(check(name, call(name, function, once.columns, timeout), once.columns["completions"]))


def check(name: str, out: Any, texts: Sequence[str]) -> list[float]:
    """Check that there is one finite number, None or NaN for each sample, and convert None to NaN. texts: the
    samples."""
    number = len(texts)
    if hasattr(out, "tolist"):  # an array or a tensor
        out = _converted(name, out.tolist)
    if not isinstance(out, (list, tuple)):
        raise RewardError(
            f"the reward function '{name}' returned {type(out).__name__}, but must return a list of {number} numbers"
        )
    if len(out) != number:
        raise RewardError(f"the reward function '{name}' returned {len(out)} values for {number} samples")
    if set(map(type, out)) == {float} and -LARGEST < min(out) <= max(out) < LARGEST and math.isfinite(sum(out)):
        return list(out)
    values = [_number(name, at, value, text) for at, (value, text) in enumerate(zip(out, texts, strict=True))]
    missing = sum(map(math.isnan, values)) - sum(value is None for value in out)
    if missing and name not in _WARNED:
        _WARNED.add(name)
        logger.warning(
            "the reward function '%s' returned NaN for %d of %d samples, which are left out of the step",
            name,
            missing,
            number,
        )
    return values


_WARNED: set[str] = set()


def _converted(name: str, convert: Callable[[], Any]) -> Any:
    """Convert a tensor or array to plain numbers. Several numbers are not accepted as one number, nor a sparse tensor
    as a list."""
    try:
        return convert()
    except Exception as error:
        raise RewardError(
            f"the reward function '{name}' returned what cannot be read as numbers: {_message(error)}"
        ) from error


def _number(name: str, at: int, value: Any, text: str) -> float:
    if value is None:
        value = math.nan
    if not isinstance(value, (int, float)) and hasattr(value, "item"):
        value = _converted(name, value.item)
    if not isinstance(value, (int, float)) or abs(value) >= LARGEST:
        raise RewardError(
            f"the reward function '{name}' returned {show(value)} for sample {at}, {text[:80]!r}: "
            f"expected a finite number between -{LARGEST:g} and {LARGEST:g}, or None"
        )
    return float(value)


def columns_for(functions: Iterable[Reward], columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the columns that the functions name in their signatures."""
    named = {name for function in functions for name in parameters(function)}
    named |= {"prompt"} if "prompts" in named else set()
    return {name: values for name, values in columns.items() if name in named}
