"""Store the outputs of the initial checkpoint, to compare the trained model with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from semioffline.data.examples import Examples
from semioffline.evaluation.results import write_predictions
from semioffline.storage.files import make_folder
from semioffline.training.mask_token import check_mask_token

if TYPE_CHECKING:
    from semioffline.training.trainer import SemiOfflineTrainer

BEFORE = "before.jsonl"
"""The file of these outputs, in the form of predictions.jsonl."""
MOST_BEFORE = 200
"""Maximum number of inputs that are decoded with the initial checkpoint."""


def measure_start(trainer: SemiOfflineTrainer) -> dict[str, float]:
    """Return measurements for the first line of the log: whether the model knows its mask token, if the method needs
    it. With CUDA graphs nothing is measured, because these passes have other shapes."""
    if not trainer.method.masks_target or not _has_weights(trainer) or trainer.args.cuda_graphs:
        return {}
    found = check_mask_token(trainer.policy, trainer.train_dataset)
    return {"mask_token/plain": found.plain, "mask_token/masked": found.masked, "mask_token/wrong": found.wrong}


def write_initial_outputs(trainer: SemiOfflineTrainer, folder: Path) -> None:
    """Write before.jsonl: outputs and metrics for the first validation inputs. Call it before `train`. A resumed run
    keeps the file of its start."""
    examples = trainer.eval_dataset
    if not isinstance(examples, Examples) or not _has_weights(trainer) or (folder / BEFORE).exists():
        return
    examples = examples.first(MOST_BEFORE)
    evaluation = trainer.evaluate_outputs(examples)
    if trainer.accelerator.is_main_process:
        make_folder(folder)
        write_predictions(folder / BEFORE, evaluation, examples)


def _has_weights(trainer: SemiOfflineTrainer) -> bool:
    """Return whether the model can run before training begins: FSDP and DeepSpeed place its weights then."""
    return not trainer.is_fsdp_enabled and not trainer.is_deepspeed_enabled
