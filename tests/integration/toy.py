"""Tiny models, small data and short runs for the tests that train. Everything is built here: no network, no GPU."""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from datasets import Dataset
from tokenizers.processors import TemplateProcessing
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from semioffline import MethodConfig, SemiOfflineTrainer
from semioffline.config import setting_names
from semioffline.methods.shared.registry import config_class
from semioffline.tasks import ads

KINDS = ("bart", "llama")
WITH_T5 = (*KINDS, "t5")  # not in KINDS: tests that are slow run every one of those


def build_tokenizer(kind: str = "bart") -> Any:
    """The word-level tokenizer of the ads task; a decoder-only prompt does not end with EOS, T5's has no BOS."""
    tokenizer = ads.build_tokenizer()
    if kind == "llama":
        start = [("<s>", tokenizer.bos_token_id)]
        template = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=start)
        tokenizer.backend_tokenizer.post_processor = template
    if kind == "t5":
        end = [("</s>", tokenizer.eos_token_id)]
        template = TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=end)
        tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def build_model(kind: str = "bart", seed: int = 0, dropout: float = 0.0) -> Any:
    """A few thousand random weights."""
    size = len(ads.build_tokenizer())
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "llama":
            shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
            config = LlamaConfig(vocab_size=size, max_position_embeddings=96, initializer_range=0.3, **shape, **ids)
            return LlamaForCausalLM(config)
        if kind == "t5":
            shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": dropout}
            return T5ForConditionalGeneration(T5Config(vocab_size=size, decoder_start_token_id=1, **shape, **ids))
        shape = {"d_model": 16, "max_position_embeddings": 64, "init_std": 0.3, "dropout": dropout}
        for side in ("encoder", "decoder"):
            shape |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
        return BartForConditionalGeneration(BartConfig(vocab_size=size, decoder_start_token_id=2, **shape, **ids))


def save_model(folder: Path, kind: str = "bart", **kwargs: Any) -> Path:
    """The model as a folder that `--model` takes."""
    build_model(kind, **kwargs).save_pretrained(folder)
    build_tokenizer(kind).save_pretrained(folder)
    return folder


def build_rows(number: int = 24, seed: int = 0) -> Dataset:
    return ads.build({"train": number}, seed)["train"]


def build_uneven_rows(number: int = 21, seed: int = 0) -> Dataset:
    """Prompts of 3 to 19 words and completions of 1 to 18: nearly every micro-batch is padded to another length."""
    rows = build_rows(number, seed).to_list()
    for n, row in enumerate(rows):
        row["prompt"] = " ".join(row["prompt"].split()[: 3 + (n * 7) % 17])
        row["completion"] = " ".join(row["completion"].split()[: 1 + (n * 5) % 18])
    return Dataset.from_list(rows)


def read_by(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that a method reads."""
    names = setting_names(config_class(method))
    return {name: value for name, value in settings.items() if name in names}


def build_config(folder: str | Path, method: str = "semi_offline", **settings: Any) -> MethodConfig:
    """Of a method; with an `observation`, of the ablations. Defaults that the method does not read are left out."""
    method = "ablations" if "observation" in settings else method
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "num_samples": 4,
        "rl_weight": 1.0,
        "max_prompt_length": 24,
        "max_completion_length": 28,
        "logging_steps": 1,
        "save_strategy": "no",
        "save_total_limit": None,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "eval_metrics": [],
        "write_result": False,
    }
    return config_class(method)(**(read_by(method, defaults) | settings))


def build_trainer(
    folder: str | Path,
    kind: str = "bart",
    rows: Dataset | None = None,
    dev: Dataset | None = None,
    reward: Any = "click_rate",
    model: Any = None,
    method_object: Any = None,
    peft_config: Any = None,
    callbacks: Any = None,
    **settings: Any,
) -> SemiOfflineTrainer:
    return SemiOfflineTrainer(
        build_model(kind) if model is None else model,
        reward,
        build_config(folder, **settings),
        build_rows() if rows is None else rows,
        dev,
        processing_class=build_tokenizer(kind),
        method=method_object,
        peft_config=peft_config,
        callbacks=callbacks,
    )


def train(folder: str | Path, resume: bool | None = None, **settings: Any) -> SemiOfflineTrainer:
    trainer = build_trainer(folder, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: SemiOfflineTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.policy.model.state_dict().items()}


def read_log(folder: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def run_command(argv: list[str], output: str) -> None:
    """The command line, in a process of its own: what it prints goes to a file."""
    from semioffline.cli import main

    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(output, "w", buffering=1)  # noqa: SIM115
    raise SystemExit(main(argv))


def start_process(target: Callable[..., None], *args: Any) -> Any:
    """A process that a test may kill. It is forked from a server that has imported the library once."""
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    ours = ("training.trainer", "data.candidates", "tasks.ads", "cli.run", "cli.compare", "cli.evaluate", "report.page")
    theirs = [f"transformers.models.{kind}.modeling_{kind}" for kind in WITH_T5] + ["matplotlib.backends.backend_agg"]
    context.set_forkserver_preload([*(f"semioffline.{name}" for name in ours), *theirs])
    process = context.Process(target=_after_imports, args=(target, *args))
    process.start()
    return process


def _after_imports(target: Callable[..., None], *args: Any) -> None:
    """What the server has imported is no garbage: looking through it takes longer than a step of a tiny model."""
    gc.freeze()
    target(*args)
