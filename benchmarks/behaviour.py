"""Check that a change leaves every number as it was: record two commits, then compare them bit for bit.

    git worktree add /tmp/before COMMIT
    OMP_NUM_THREADS=1 PYTHONPATH=/tmp/before/src python benchmarks/behaviour.py record /tmp/values-before
    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/behaviour.py record /tmp/values-after
    python benchmarks/behaviour.py compare /tmp/values-before /tmp/values-after

`record` runs the demo (seeds 0 to 2) and three steps of every method, and of the variants of semi_offline, on tiny
BART, T5 and Llama models, through the command line. `compare` reads the logs, predictions, results and weights of both.
Times, memory, versions and commits are left out; `RENAMED` maps old keys to new ones.
"""

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEEDS = (0, 1, 2)
KINDS = ("bart", "t5", "llama")
CANDIDATES = "--train_file {candidates}/candidates.jsonl"
DRAWS = "--num_samples 4"
RUNS: dict[str, str] = {
    "ft": "ft",
    "mft": "mft",
    "gold": "gold",
    "gold-p": "gold --gold_reward p --gold_horizon 3 --gold_discount 0.9",
    "brio": f"brio {CANDIDATES}",
    "self_critic": "self_critic --rl_weight 1",
    "actor_critic": "actor_critic --rl_weight 1 --temperature 0.8",
    "actor_critic-reward": "actor_critic --rl_weight 1 --critic_role reward --critic_learning_rate 0.01",
    "grpo": f"grpo {DRAWS} --rl_weight 1 --num_iterations 2",
    "ppo": "ppo --rl_weight 1 --num_iterations 2 --critic_warmup_steps 1",
    "ilql": f"ilql {CANDIDATES}",
    "kl": f"semi_offline {DRAWS} --rl_weight 1 --kl_weight 1",
    "avg": f"avg {DRAWS} --rl_weight 1 --top_p 0.9",
    "avg-loo": f"avg {DRAWS} --baseline leave_one_out --loss_scale sequence",
    "brio+semi_offline": f"brio+semi_offline {CANDIDATES} {DRAWS} --rl_weight 1",
    "gold+semi_offline": f"gold+semi_offline {DRAWS} --rl_weight 1",
    "semi_offline": f"semi_offline {DRAWS} --rl_weight 1",
    "worst": f"semi_offline {CANDIDATES} --static_target worst {DRAWS}",
    "random": f"semi_offline {CANDIDATES} --static_target random {DRAWS}",
    "ratio": f"semi_offline {DRAWS} --rl_ratio 1",
    "drawing": f"semi_offline {DRAWS} --temperature 0.7 --top_k 20 --top_p 0.9 --scale_rewards True",
    "sequence": f"semi_offline {DRAWS} --loss_scale sequence --baseline leave_one_out --label_smoothing_factor 0.1",
    "word": f"semi_offline {DRAWS} --mask_unit word --mask_rate 0.3 --mask_rate_end 0.6",
    "suffix": f"semi_offline {DRAWS} --mask_pattern suffix --eos_after 3 --draw_end True",
    "span": f"semi_offline {DRAWS} --mask_pattern span",
    "mixed": f"semi_offline {DRAWS} --mask_pattern mixed",
    "full": f"semi_offline {DRAWS} --observation full",
    "no_mask": f"semi_offline {DRAWS} --observation no_mask",
    "noisy": f"semi_offline {DRAWS} --observation noisy",
    "all": f"semi_offline {DRAWS} --observation all",
    "pre": f"semi_offline {DRAWS} --observation pre",
    "nat": f"semi_offline {DRAWS} --mask_rate 1",
}
RENAMED_RUNS: dict[str, str] = {
    name: RUNS[name].replace("semi_offline", "ablations") for name in ("full", "no_mask", "noisy", "all", "pre")
}
"""name above -> the command line that says the same to the newer version"""
RENAMED: dict[str, str] = {}
"""key in the older logs -> key in the newer ones"""
LEFT_OUT = ("time/", "runtime", "seconds", "_per_second", "peak_mb", "preparation", "versions", "commit", "command")


# ---- record ----


def record(folder: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    _write_data(folder / "data")
    for kind in KINDS:
        _build_model(kind).save_pretrained(folder / "models" / kind)
        _build_tokenizer(kind).save_pretrained(folder / "models" / kind)
        _record_kind(folder, kind)
    for seed in SEEDS:
        _run(folder / f"demo-{seed}", f"demo --seed {seed} --device cpu")
    compare = "compare --methods mft gold brio semi_offline --start_steps 4 --budget_steps 3 --num_candidates 3 "
    _run(folder / "compare", compare + "--limit 64 --evaluations 2 --num_samples 4 --device cpu --disable_tqdm True")


def _record_kind(folder: Path, kind: str) -> None:
    shared = f"--model {folder}/models/{kind} --data_dir {folder}/data --device cpu --max_prompt_length 24 "
    shared += "--max_completion_length 28 --reward click_rate "
    candidates = folder / f"{kind}-candidates"
    _run(candidates, f"candidates {shared} --num_candidates 3 --strategy sampling --batch_size 8")
    _run(folder / f"{kind}-diverse", f"candidates {shared} --num_candidates 4 --strategy diverse_beam --batch_size 8")
    training = "--max_steps 3 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --learning_rate 0.05 "
    training += "--logging_steps 1 --eval_strategy steps --eval_steps 3 --eval_metrics rouge1 --save_strategy no "
    training += "--report_to none --disable_tqdm True"
    for name, words in RUNS.items():
        words = RENAMED_RUNS.get(name, words) if _is_newer() else words
        own = (
            shared
            if words.split()[0] not in ("ft", "mft", "gold", "brio")
            else shared.replace("--reward click_rate ", "")
        )
        _run(folder / f"{kind}-{name}", f"train {words.format(candidates=candidates)} {own} {training}")
    shared = shared.replace("--reward", "--metrics")
    _run(folder / f"{kind}-evaluate", f"evaluate {shared} --num_beams 3 --split test --batch_size 4")


def _is_newer() -> bool:
    import importlib.util

    return importlib.util.find_spec("semioffline.algorithm") is not None


def _run(folder: Path, command: str) -> None:
    from semioffline.cli import main

    if (folder / "done").exists():
        return
    code = main([*command.split(), "--output_dir", str(folder)])
    if code:
        raise SystemExit(f"exit code {code}: semioffline {command}")
    (folder / "done").touch()


def _write_data(folder: Path) -> None:
    """Prompts and completions of many lengths, so that batches are padded."""
    from semioffline.tasks import ads

    folder.mkdir(exist_ok=True)
    rows = ads.build({"train": 40}, 0)["train"].to_list()
    for n, row in enumerate(rows):
        row["prompt"] = " ".join(row["prompt"].split()[: 3 + (n * 7) % 17])
        row["completion"] = " ".join(row["completion"].split()[: 4 + (n * 5) % 15])
    splits = {"train": rows[:24], "validation": rows[24:32], "test": rows[32:]}
    for split, part in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def _build_tokenizer(kind: str) -> Any:
    from tokenizers.processors import TemplateProcessing

    from semioffline.tasks import ads

    tokenizer = ads.build_tokenizer()
    special = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    template = {"bart": "<s> $A </s>", "t5": "$A </s>", "llama": "<s> $A"}[kind]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


def _build_model(kind: str) -> Any:
    import torch
    import transformers

    from semioffline.tasks import ads

    torch.manual_seed(0)
    ids: dict[str, Any] = {
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": len(ads.build_tokenizer()),
    }
    if kind == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config: Any = transformers.LlamaConfig(max_position_embeddings=96, initializer_range=0.3, **sizes, **ids)
        return transformers.LlamaForCausalLM(config)
    if kind == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = transformers.T5Config(decoder_start_token_id=1, dropout_rate=0.1, **sizes, **ids)
        return transformers.T5ForConditionalGeneration(config)
    sizes = {"d_model": 16, "max_position_embeddings": 96}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
    config = transformers.BartConfig(decoder_start_token_id=2, init_std=0.3, dropout=0.1, **sizes, **ids)
    return transformers.BartForConditionalGeneration(config)


# ---- compare ----


def compare(before: Path, after: Path) -> int:
    """Print what differs; 0 when nothing does."""
    counts = {"compared": 0, "differ": 0, "only before": 0, "only after": 0}
    for run in sorted(path.parent for path in before.glob("*/done")):
        old, new = dict(_values(run)), dict(_values(after / run.name))
        old = {_renamed(key): value for key, value in old.items()}
        if run.name.partition("-")[2] in RENAMED_RUNS:  # the method's name is another one, too
            old.pop("result.json method", None)
            new.pop("result.json method", None)
        both = old.keys() & new.keys()
        wrong = sorted(key for key in both if old[key] != new[key])
        counts["compared"] += len(both)
        counts["differ"] += len(wrong)
        counts["only before"] += len(old) - len(both)
        counts["only after"] += len(new) - len(both)
        for key in wrong[:5]:
            print(f"{run.name}: {key}: {old[key]} before, {new[key]} after")
        if len(wrong) > 5:
            print(f"{run.name}: and {len(wrong) - 5} more")
    runs = len(list(before.glob("*/done")))
    print(f"{runs} runs, values: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if sum(counts.values()) > counts["compared"] or not counts["compared"] else 0


def _renamed(key: str) -> str:
    place, _, last = key.rpartition(" ")
    return f"{place} {RENAMED.get(last, last)}"


def _values(run: Path) -> Iterator[tuple[str, Any]]:
    """Of all files that a run leaves: what was logged, predicted and learnt."""
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.name in ("metrics.jsonl", "predictions.jsonl", "candidates.jsonl"):
            lines: Counter[str] = Counter()
            for line in path.read_text().splitlines():
                row = json.loads(line)
                step = f"step {row['step']}," if "step" in row else "line"
                yield from _flat(row, f"{name}:{step} {lines[step]}")
                lines[step] += 1
        elif path.name in ("result.json", "comparison.json", "gold.json"):
            yield from _flat(json.loads(path.read_text()), name)
        elif path.suffix == ".safetensors":
            yield f"{name} sha256", hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".parquet":
            import pyarrow.parquet

            for n, row in enumerate(pyarrow.parquet.read_table(path).to_pylist()):
                yield from _flat(row, f"{name}:{n}")


def _flat(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not any(word in key for word in LEFT_OUT):
                yield from _flat(inner, f"{place} {key}")
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from _flat(inner, f"{place} {n}")
    else:
        yield place, repr(value)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]).resolve())
    else:
        raise SystemExit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
