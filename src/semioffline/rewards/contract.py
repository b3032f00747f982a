"""The interface of rewards, and their shared parts: checks of references, options after a `?`, versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import getattr_static
from typing import Any, Protocol, runtime_checkable

from semioffline.errors import UserError, unknown

RewardFunction = Callable[..., Any]
"""A reward as a user writes it: a function or an object that is called as `Reward` is."""


class Reward(Protocol):
    """A reward or metric, as the library calls it. `as_reward` makes one of a user's function.

    It is called by keyword with lists of equal length: prompts, completions, completion_ids, references and every other
    column. It returns one number (or None, to leave that sample out) for each completion. It may be async.
    """

    @property
    def name(self) -> str:
        """In logs: rewards/NAME/mean."""

    @property
    def signature(self) -> str | None:
        """What the number is, for results: metric, variant, version. None: nothing but the name is known."""

    @property
    def on_device(self) -> bool:
        """Whether it runs a model, and so cannot be made again in worker processes."""

    @property
    def single_process(self) -> bool:
        """Whether it must not run in several processes at once."""

    @property
    def deterministic(self) -> bool:
        """Whether the value depends on the text and its row alone: identical texts of an input are then scored once.
        False for a judge that answers differently each time, or a reward that compares the texts of a call."""

    def __call__(self, *args: Any, **columns: Any) -> Any: ...


@runtime_checkable
class CorpusMetric(Protocol):
    """A metric whose value over a set is not the mean over inputs, such as corpus BLEU."""

    def statistics(self, completions: list[str], references: list[list[str]]) -> list[list[float]]:
        """For each input, the statistics that are summed over inputs."""

    def corpus_score(self, sums: Sequence[float]) -> float:
        """The value over the set, from summed statistics."""


class BaseReward(ABC):
    """Base class of the rewards of this package: the attributes of `Reward` with their usual values."""

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
    """Wraps a user's function, with its name, signature and other attributes."""

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
    """A user's function as a reward. Two of the same function are equal, so that a metric is measured once."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionReward) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


class CorpusFunction(FunctionReward):
    """The same of an object that is also a `CorpusMetric`."""

    function: Any

    def statistics(self, completions: list[str], references: list[list[str]]) -> list[list[float]]:
        return self.function.statistics(completions, references)

    def corpus_score(self, sums: Sequence[float]) -> float:
        return self.function.corpus_score(sums)


def as_reward(given: RewardFunction) -> Reward:
    """A user's reward as a `Reward`. A user's function is wrapped here, once.

    Raises an error if what the object says about itself is not as `Reward` has it.
    """
    _check(given)
    if isinstance(given, BaseReward):
        return given
    return CorpusFunction(given) if isinstance(given, CorpusMetric) else FunctionReward(given)


def reward_name(function: RewardFunction) -> str:
    """The `name` of a reward, or the name of its function or class."""
    return getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__


def _check(given: RewardFunction) -> None:
    """Properties are not read: they may be slow, or not ready yet."""
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
    """One list with one or more strings for each completion."""
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
"""Options that a reward takes: name -> how its text is read."""


def parse_options(given: str, known: RewardOptions) -> tuple[str, dict[str, object]]:
    """ "NAME?pair=true&dtype=bfloat16" -> ("NAME", {"pair": True, "dtype": "bfloat16"}); `known` reads each value."""
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
