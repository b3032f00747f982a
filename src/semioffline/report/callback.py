"""Write the report of a run that is trained in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from semioffline.data.examples import Examples
from semioffline.evaluation.results import write_predictions
from semioffline.printing import say
from semioffline.report.page import write_report
from semioffline.report.run_folders import PREDICTIONS
from semioffline.training.initial_outputs import write_initial_outputs

if TYPE_CHECKING:
    from semioffline.training.trainer import SemiOfflineTrainer


class ReportCallback(TrainerCallback):
    """A callback that writes report.html to the run folder when training ends, as `semioffline train` does:
    `trainer.add_callback(ReportCallback(trainer))`."""

    def __init__(self, trainer: SemiOfflineTrainer) -> None:
        """Decode the first validation inputs with the initial checkpoint. Create the callback before `train`."""
        self.trainer = trainer
        write_initial_outputs(trainer, Path(str(trainer.args.output_dir)))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        folder, examples = Path(str(args.output_dir)), self.trainer.eval_dataset
        evaluation = self.trainer.evaluate_outputs(examples) if isinstance(examples, Examples) else None
        if not state.is_world_process_zero:
            return
        if evaluation is not None and isinstance(examples, Examples):
            write_predictions(folder / PREDICTIONS, evaluation, examples)
        say(f"Report: {write_report([folder])}")
