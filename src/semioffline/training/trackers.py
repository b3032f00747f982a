"""Send sampled completions as tables to the trackers of `report_to`, as in TRL."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback

from semioffline.printing import markdown_cell

NAME = "completions"
MOST_TEXT = 20
"""Maximum number of rows of a table in TensorBoard, which shows text."""
Columns = dict[str, list[Any]]


class CompletionTables(TrainerCallback):
    """A callback that sends completions/step-N.parquet to TensorBoard, Weights & Biases, MLflow and Trackio, if they
    are used."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.sent = -1

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        step, path = state.global_step, Path(str(args.output_dir)) / NAME / f"step-{state.global_step}.parquet"
        used = set(args.report_to or ())
        if not used or not state.is_world_process_zero or "loss" not in (logs or {}) or not path.exists():
            return
        if self.sent == step:
            return
        self.sent, columns = step, read_columns(path)
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
                callback.tb_writer.add_text(NAME, as_markdown(columns), step)
        if "wandb" in used:
            wandb = importlib.import_module("wandb")
            rows = [list(row) for row in zip(*columns.values(), strict=True)]
            wandb.log({NAME: wandb.Table(columns=list(columns), data=rows)})
        if "mlflow" in used:
            importlib.import_module("mlflow").log_table(columns, f"{NAME}/step-{step}.json")
        if "trackio" in used:
            trackio, pandas = importlib.import_module("trackio"), importlib.import_module("pandas")
            trackio.log({NAME: trackio.Table(dataframe=pandas.DataFrame(columns))})


def read_columns(path: Path) -> Columns:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pydict()


def as_markdown(columns: Columns) -> str:
    """Return the first rows as a Markdown table. Outputs of the model are escaped."""
    names = list(columns)
    rows = list(zip(*(columns[name][:MOST_TEXT] for name in names), strict=True))
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else markdown_cell(cell) for cell in row] for row in rows]
    lines = [list(map(markdown_cell, names)), ["---"] * len(names), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
