"""The callbacks of a run in their order: first the log, then those that show it."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import EarlyStoppingCallback, TrainerCallback

from semioffline.config import MethodConfig
from semioffline.data.order import Epochs
from semioffline.training.checkpoints import Progress, SafeCheckpoints, SaveByTime
from semioffline.training.console import Advice, Console
from semioffline.training.run_log import RunLog
from semioffline.training.trackers import CompletionTables


def find_console(given: Sequence[TrainerCallback] | None) -> Console:
    """The console that the user has created, or a new one."""
    return next((found for found in given or () if isinstance(found, Console)), Console())


def arrange(
    trainer: SafeCheckpoints,
    args: MethodConfig,
    given: Sequence[TrainerCallback] | None,
    log: RunLog,
    epochs: Epochs,
    console: Console,
) -> list[TrainerCallback]:
    """given: the user's callbacks, which come before ours."""
    patience = args.early_stopping_patience
    stopping: list[TrainerCallback] = [] if patience is None else [EarlyStoppingCallback(patience)]
    theirs = [found for found in given or () if found is not console]
    shown: list[TrainerCallback] = [Advice()] if args.verbose else [console, Advice()]
    ours: list[TrainerCallback] = [Progress(trainer), SaveByTime(), log, epochs, CompletionTables(trainer)]
    return [*theirs, *stopping, *ours, *shown]
