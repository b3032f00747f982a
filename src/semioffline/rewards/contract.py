"""The interface of rewards, and shared functions: checks of references, options after a `?`, versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import getattr_static
from typing import Any, Protocol, runtime_checkable

from semioffline.errors import UserError, unknown

RewardFunction = Callable[..., Any]
"""A reward that a user writes: a function, or an object that is called like a `Reward`."""


class Reward(Protocol):
    """A reward or metric, as the library calls it. `as_reward` makes one of a user's function.

    It is called by keyword with lists of equal length: prompts, completions, completion_ids, references and every other
    column. It returns one number for each completion, or None to leave that sample out. It may be async.
    """

    @property
    def name(self) -> str:
        """The name in logs: rewards/NAME/mean."""

    @property
    def signature(self) -> str | None:
        """A text that identifies the number in results: metric, variant, version. None: only the name is known."""

    @property
    def on_device(self) -> bool:
        """Whether it runs a model, so that worker processes cannot build it."""

    @property
    def single_process(self) -> bool:
        """Whether it must not run in several processes at once."""

    @property
    def deterministic(self) -> bool:
        """Whether the value depends only on the text and its row. Identical texts of an input are then scored once.
        False for a judge that answers differently each time, or a reward that compares the texts of a call."""

    def __call__(self, *args: Any, **columns: Any) -> Any: ...


@runtime_checkable
class CorpusMetric(Protocol):
    """A metric whose value over a set is not the mean over inputs, such as corpus BLEU."""

    def statistics(self, completions: list[str], references: list[list[str]]) -> list[list[float]]:
        """Return the statistics of each input, which are summed over inputs."""

    def corpus_score(self, sums: Sequence[float]) -> float:
        """Return the value over the set from summed statistics."""


class BaseReward(ABC):
    """Base class of the rewards of this package, with the usual values of the attributes of `Reward`."""

    on_device: bool = False
    single_process: bool = False
    deterministic: bool = True

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def signature(self) -> str | None: ...

    @abstractmethod
    def __call__(self, *args: Any, **columns: Any) -> Any: ...


class WrappedReward(BaseReward):
    """Wraps a user's function and copies its name, signature and other attributes."""

    def __init__(self, function: RewardFunction) -> None:
        self.function = self.__wrapped__ = function  # `inspect.signature` looks for the second
        self.on_device = getattr(function, "on_device", False)
        self.single_process = getattr(function, "single_process", False)
        self.deterministic = getattr(function, "deterministic", True)

    @property
    def name(self) -> str:
        return reward_name(self.function)

    @property
    def signature(self) -> str | None:
        return getattr(self.function, "signature", None)

    def __call__(self, *args: Any, **columns: Any) -> Any:
        return self.function(*args, **columns)


class FunctionReward(WrappedReward):
    """A user's function as a reward. Two rewards of the same function are equal, so that a metric is measured once."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionReward) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


class CorpusFunction(FunctionReward):
    """A user's object as a reward, if it is also a `CorpusMetric`."""

    function: Any

    def statistics(self, completions: list[str], references: list[list[str]]) -> list[list[float]]:
        return self.function.statistics(completions, references)

    def corpus_score(self, sums: Sequence[float]) -> float:
        return self.function.corpus_score(sums)


def as_reward(given: RewardFunction) -> Reward:
    """Convert a user's reward to a `Reward`. A function is wrapped.

    Raises an error if an attribute of the object does not have the type that `Reward` declares.
    """
    _check(given)
    if isinstance(given, BaseReward):
        return given
    return CorpusFunction(given) if isinstance(given, CorpusMetric) else FunctionReward(given)


def reward_name(function: RewardFunction) -> str:
    """Return the `name` of a reward, or the name of its function or class."""
    return getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__


def _check(given: RewardFunction) -> None:
    """Check the attributes of a user's reward. Properties are not read, because they may be slow or not ready yet."""
    name = reward_name(given)
    if not isinstance(name, str):
        raise UserError(f"the reward {type(given).__name__} has a name that is not a text: {name!r}")
    for attribute, kind, wanted in (
        ("signature", str, "a text"),
        ("on_device", bool, "True or False"),
        ("single_process", bool, "True or False"),
        ("deterministic", bool, "True or False"),
    ):
        value = getattr_static(given, attribute, None)
        if callable(value) or not (value is None or isinstance(value, kind) or hasattr(value, "__get__")):
            raise UserError(f"the reward '{name}' has {attribute}={value!r}, but it must be {wanted}")
    one, other = (getattr_static(given, method, None) for method in ("statistics", "corpus_score"))
    if (one is None) != (other is None):
        there, missing = ("statistics", "corpus_score") if other is None else ("corpus_score", "statistics")
        raise UserError(f"the reward '{name}' has {there} but no {missing}: a metric over a whole set needs both")


def check_references(completions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Check that there is a list with one or more strings for each completion."""
    if len(references) != len(completions):
        raise UserError(f"{len(completions)} completions but {len(references)} lists of references: give one for each.")
    for i, row in enumerate(references):
        if isinstance(row, str) or not row:
            raise UserError(f"references[{i}] is {row!r}: give a list with one or more strings.")


@lru_cache(maxsize=1)
def package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("semioffline")
    except PackageNotFoundError:
        return "dev"


RewardOptions = Mapping[str, Callable[[str], object]]
"""Options of a reward: name -> the function that reads its text."""


def parse_options(given: str, known: RewardOptions) -> tuple[str, dict[str, object]]:
    """Parse "NAME?pair=true&dtype=bfloat16" into ("NAME", {"pair": True, "dtype": "bfloat16"}). known: option -> the
    function that reads its value."""
    name, _, tail = given.partition("?")
    options: dict[str, object] = {}
    for part in filter(None, tail.split("&")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"'{part}' in '{given}': options are name=value, joined by &")
        if key not in known:
            raise unknown(f"option in '{given}'", key, known)
        try:
            options[key] = known[key](value)
        except ValueError as error:
            raise UserError(f"{key}={value} in '{given}': {error}") from error
    return name, options


def yes_or_no(text: str) -> bool:
    answers = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answers:
        raise ValueError("expected true or false")
    return answers[text.lower()]


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("expected a whole number from 1 on")
    return int(text)
