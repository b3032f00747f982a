"""Write the README.md of a saved model: its base model, data, reward and settings, and its validation scores."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from semioffline.data.examples import Examples
from semioffline.policy.loading import is_peft
from semioffline.printing import figure, markdown_cell, markdown_code
from semioffline.storage.files import write_atomically
from semioffline.training.console import evaluation_figures

if TYPE_CHECKING:
    from semioffline.training.trainer import SemiOfflineTrainer

CARD = "README.md"
_SETTINGS = ("rl_weight", "rl_ratio", "num_samples", "mask_rate", "static_target", "learning_rate", "seed")
_PACKAGES = ("semioffline", "transformers", "torch", "datasets", "peft")
_USE = """```python
from transformers import {classes}

tokenizer = AutoTokenizer.from_pretrained(folder)
model = {auto}.from_pretrained(folder)
inputs = {inputs}
output = model.generate(**inputs, max_new_tokens={length})[0{new}]
print(tokenizer.decode(output, skip_special_tokens=True))
```"""
_TEXT = 'tokenizer("your input", return_tensors="pt")'
_CHAT = """tokenizer.apply_chat_template(
    [{"role": "user", "content": "your input"}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
)"""


def write_card(folder: Path, trainer: SemiOfflineTrainer) -> None:
    write_atomically(folder / CARD, model_card(trainer))


def model_card(trainer: SemiOfflineTrainer) -> str:
    """Return the model card in Markdown, with the metadata that the Hub reads."""
    args, policy = trainer.args, trainer.policy
    base, adapted = str(policy.base.config._name_or_path), is_peft(policy.model)
    is_local = not base or Path(base).exists() or base.startswith((".", "/"))
    about: dict[str, object] = {"library_name": "peft" if adapted else "transformers"}
    about |= {} if is_local else {"base_model": base}
    about["tags"] = ["semioffline", "text-generation", args.method or "custom"]
    rewards = zip(trainer.reward_set.functions, trainer.reward_set.weights, strict=True)
    inputs = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    facts = {
        "method": args.method or type(trainer.method).__name__,
        "initial checkpoint": _name_of(Path(base)) or type(policy.base).__name__,
        "reward": " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in rewards) or "none",
        "training rows": f"{len(trainer.train_dataset):,}" if trainer.train_dataset is not None else "none",
        "steps": f"{trainer.state.global_step:,} of {inputs} inputs",
        "adapter": "LoRA" if adapted else "none: all weights were trained",
        **{name: str(getattr(args, name)) for name in _SETTINGS if getattr(args, name, None) is not None},
        "longest prompt and output": "{} and {} tokens".format(*trainer.limits),
    }
    parts = [
        f"---\n{yaml.safe_dump(about, sort_keys=False)}---\n\n# {markdown_cell(Path(str(args.output_dir)).name)}\n",
        f"Trained with semioffline, for text generation.\n\n{_table(facts)}",
        _results(trainer),
        f"## How to use it\n\n{_use(trainer, adapted)}\n",
        f"## Versions\n\n{', '.join(_versions())}\n",
    ]
    return "\n".join(part for part in parts if part)


def _name_of(model: Path) -> str:
    """Return the name of a model without the path of this machine; `mft/model` for the model of a run folder."""
    return f"{model.parent.name}/{model.name}" if model.name == "model" and model.parent.name else model.name


def _table(facts: dict[str, str]) -> str:
    lines = [f"| {markdown_cell(name)} | {markdown_cell(value)} |" for name, value in facts.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines, ""])


def _results(trainer: SemiOfflineTrainer) -> str:
    """Return the results of the last evaluation, or of the evaluation that chose the best checkpoint."""
    evals = [line for line in trainer.state.log_history if any(name.startswith("eval_") for name in line)]
    chosen = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
    same = [line for line in evals if line.get("step") == chosen] or evals
    if not same or not isinstance(trainer.eval_dataset, Examples):
        return ""
    found = evaluation_figures(same[-1], list(trainer.reward_set.functions))
    number = f"{len(trainer.eval_dataset):,} validation inputs, at step {same[-1].get('step', 0)}"
    rows = {name: figure(value) for name, value in found.items()}
    decoding = markdown_code(f"beams: {trainer.args.num_beams}")
    return f"## Results\n\nOn {number} ({decoding}):\n\n{_table(rows)}"


def _use(trainer: SemiOfflineTrainer, adapted: bool) -> str:
    """Return example code that uses the model: the prompt in the form of the training data, and for a decoder-only
    model the text without the prompt."""
    rows, is_encoder_decoder = trainer.train_dataset, trainer.policy.is_encoder_decoder
    is_chat = isinstance(rows, Examples) and "messages" in rows.examples[0].columns
    auto = f"Auto{'Peft' * adapted}ModelFor{'Seq2SeqLM' if is_encoder_decoder else 'CausalLM'}"
    told = _USE.format(
        classes="AutoTokenizer" if adapted else f"{auto}, AutoTokenizer",
        auto=auto,
        inputs=_CHAT if is_chat else _TEXT,
        length=trainer.limits[1],
        new="" if is_encoder_decoder else ', inputs["input_ids"].shape[1] :',
    )
    return told.replace("from transformers", f"from peft import {auto}\nfrom transformers", 1) if adapted else told


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # an extra that is not installed, or a source tree
            continue
    return found
