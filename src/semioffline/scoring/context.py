"""Pass further arguments to reward functions, as in TRL: trainer_state, log_metric and log_extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from semioffline.rewards.contract import Reward
from semioffline.scoring.calls import Distinct, parameters
from semioffline.storage.untrusted import check_name


class RewardContext:
    """Provides the arguments that the signature of a function names. Outside of training the state is None, and nothing
    is logged."""

    def __init__(self) -> None:
        self._state: Callable[[], object] = lambda: None
        self._follows = False
        self._metrics: dict[str, list[float]] = {}
        self.extra: dict[str, list[Any]] = {}
        """Column -> a value for each sample of the last call, for the log of completions."""

    def follow(self, state: Callable[[], object]) -> None:
        """Use the state of a trainer. state: returns it, because it is another object after a resume."""
        self._state, self._follows = state, True

    def arguments(self, function: Reward, once: Distinct) -> dict[str, Any]:
        """Return the arguments that this function names, for a call with these samples."""

        def log_extra(column: str, values: Sequence[Any]) -> None:
            given = list(values)
            whole = len(given) == len(once.columns["completions"])
            self.log_extra(column, once.spread(given) if whole else given)

        every = {"trainer_state": self._state(), "log_metric": self.log_metric, "log_extra": log_extra}
        named = parameters(function)
        return {name: value for name, value in every.items() if name in named}

    def log_metric(self, name: str, value: float) -> None:
        """Log a number under this name, as the mean over the calls since the last log."""
        if self._follows:
            self._metrics.setdefault(check_name("metric", name), []).append(float(value))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Add a column to the log of completions."""
        if self._follows:
            self.extra[check_name("column", column)] = list(values)

    def take_metrics(self) -> dict[str, float]:
        """Return the means of the logged numbers since the last call."""
        taken, self._metrics = self._metrics, {}
        return {name: sum(values) / len(values) for name, values in taken.items()}
