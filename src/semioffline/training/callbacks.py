"""Put the callbacks of a run in order: first the log, then those that show it."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import EarlyStoppingCallback, TrainerCallback

from semioffline.config import MethodConfig
from semioffline.data.order import Epochs
from semioffline.errors import UserError, short
from semioffline.training.checkpoints import Progress, SafeCheckpoints, SaveByTime
from semioffline.training.console import Advice, Console
from semioffline.training.run_log import RunLog
from semioffline.training.trackers import CompletionTables


def find_console(given: Sequence[TrainerCallback] | None) -> Console:
    """Return the console that the user has created, or a new one."""
    if not isinstance(given, (list, tuple, type(None))) or not all(map(_is_callback, given or ())):
        raise UserError(f"callbacks={short(repr(given))} must be a list of transformers.TrainerCallback")
    return next((found for found in given or () if isinstance(found, Console)), Console())


def _is_callback(given: object) -> bool:
    """Return whether this is a callback, or a class of callbacks, which Transformers instantiates itself."""
    return isinstance(given, TrainerCallback) or (isinstance(given, type) and issubclass(given, TrainerCallback))


def arrange(
    trainer: SafeCheckpoints,
    args: MethodConfig,
    given: Sequence[TrainerCallback] | None,
    log: RunLog,
    epochs: Epochs,
    console: Console,
) -> list[TrainerCallback]:
    """Return all callbacks in their order. given: the user's callbacks, which come before ours."""
    patience = args.early_stopping_patience
    stopping: list[TrainerCallback] = [] if patience is None else [EarlyStoppingCallback(patience)]
    theirs = [found for found in given or () if found is not console]
    shown: list[TrainerCallback] = [Advice()] if args.verbose else [console, Advice()]
    ours: list[TrainerCallback] = [Progress(trainer), SaveByTime(), log, epochs, CompletionTables(trainer)]
    return [*theirs, *stopping, *ours, *shown]
