"""Semi-offline RL beside TRL's GRPOTrainer and RLOOTrainer: one model, one reward, as many prompts a step, in one run.

    python benchmarks/trl_grpo.py --model mft/model --task samsum --data_dir data/samsum --seconds 90 --output peer.json

--model is a decoder-only model after M-FT (`semioffline train mft`), from which each trainer starts. Each trains for
--seconds of its own steps. Now and then the reward of greedy outputs for validation prompts is measured, by the same
code for all and outside the clock. TRL (pip install trl) generates with transformers here, since vLLM is a program of
its own. The result has, for each trainer, seconds a step, samples a step, the reward against seconds, and the seconds
until the highest reward that all of them reach.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from semioffline.experiments.provenance import commit
from semioffline.rewards.rouge import Rouge
from semioffline.tasks.registry import Source, load_task
from semioffline.training.run_folder import versions

REWARD = Rouge()


def rouge(completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
    """What every trainer is given as reward: mean of ROUGE-1, 2 and L."""
    return REWARD(completions=completions, references=references)


def load_rows(args: argparse.Namespace, split: str, limit: int) -> list[dict[str, Any]]:
    """Rows whose prompts are short enough to be read whole: no trainer cuts any, so all read the same."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows = load_task(args.task).load(Source(data_dir=args.data_dir, model=args.model), split)
    kept = []
    for row in rows:
        if len(tokenizer(row["prompt"])["input_ids"]) <= args.max_prompt_length:
            references = row.get("references") or [row["completion"]]
            kept.append({"prompt": row["prompt"], "completion": row["completion"], "references": list(references)})
        if len(kept) == limit:
            break
    return kept


class Clock(TrainerCallback):
    """Seconds of training steps; stops training when they are spent; measures the reward at even distances."""

    def __init__(self, args: argparse.Namespace, measure: Any):
        self.args, self.measure = args, measure
        self.steps: list[float] = []
        self.curve: list[dict[str, float]] = []
        self.started = 0.0

    @property
    def spent(self) -> float:
        return sum(self.steps)

    def on_train_begin(self, args, state, control, **kwargs):
        self._look()

    def on_step_begin(self, args, state, control, **kwargs):
        _synchronize()
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        _synchronize()
        self.steps.append(time.perf_counter() - self.started)
        due = len(self.curve) * self.args.seconds / self.args.evaluations
        if self.spent >= due:
            self._look()
        if self.spent >= self.args.seconds:
            control.should_training_stop = True
        return control

    def _look(self) -> None:
        point = {"step": len(self.steps), "seconds": self.spent, "reward": self.measure()}
        self.curve.append(point)
        print(f"    {point['seconds']:7.1f} s  step {point['step']:>5}  reward {point['reward']:.4f}", flush=True)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@torch.no_grad()
def greedy_reward(model: Any, tokenizer: Any, rows: list[dict[str, Any]], args: argparse.Namespace) -> float:
    training, side = model.training, tokenizer.padding_side
    model.eval()
    tokenizer.padding_side = "left"
    texts: list[str] = []
    for start in range(0, len(rows), 64):
        prompts = [row["prompt"] for row in rows[start : start + 64]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):  # the same for all
            out = model.generate(
                **inputs,
                max_new_tokens=args.max_completion_length,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        texts += tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    tokenizer.padding_side = side
    model.train(training)
    return statistics.fmean(rouge([text.strip() for text in texts], [row["references"] for row in rows]))


def common(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {
        "output_dir": folder,
        "max_steps": args.most_steps,
        "learning_rate": args.learning_rate,
        "lr_scheduler_type": "constant",
        "bf16": cuda,
        "use_cpu": not cuda,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": args.seed,
        "max_completion_length": args.max_completion_length,
    }


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def train_ours(args: argparse.Namespace, rows: Any, folder: str) -> tuple[Any, Any, Any]:
    from semioffline import SemiOfflineConfig, SemiOfflineTrainer

    model, tokenizer = load(args)
    settings = SemiOfflineConfig(
        **common(args, folder),
        num_samples=args.samples,
        rl_ratio=args.rl_ratio,
        per_device_train_batch_size=args.prompts,
        max_prompt_length=args.max_prompt_length,
        log_completions=False,
        eval_metrics=[],
        cuda_graphs=args.cuda_graphs,
        pad_to_multiple_of=args.pad_to_multiple_of,
    )
    return SemiOfflineTrainer(model, "rouge", settings, rows, processing_class=tokenizer), model, tokenizer


def train_trl(name: str, args: argparse.Namespace, rows: Any, folder: str) -> tuple[Any, Any, Any]:
    import trl

    model, tokenizer = load(args)
    config, trainer = {"grpo": (trl.GRPOConfig, trl.GRPOTrainer), "rloo": (trl.RLOOConfig, trl.RLOOTrainer)}[name]
    settings = config(
        **common(args, folder),
        per_device_train_batch_size=args.prompts * args.generations,
        num_generations=args.generations,
        beta=0.0,
        temperature=1.0,
    )
    dataset = rows.remove_columns(["completion"])
    return trainer(model, rouge, settings, dataset, processing_class=tokenizer), model, tokenizer


def run(name: str, args: argparse.Namespace, rows: list[dict[str, Any]], dev: list[dict[str, Any]]) -> dict[str, Any]:
    from datasets import Dataset

    print(f"{name}", flush=True)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        make = train_ours if name == "semi_offline" else lambda *given: train_trl(name, *given)
        trainer, model, tokenizer = make(args, Dataset.from_list(rows), folder)
        paused = trainer.policy.meter.paused if name == "semi_offline" else nullcontext

        def measure() -> float:
            with paused():
                return greedy_reward(model, tokenizer, dev, args)

        clock = Clock(args, measure)
        trainer.add_callback(clock)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        log = [line for line in trainer.state.log_history if "loss" in line]
    result = {
        "trainer": name,
        "samples_per_step": args.prompts * (args.samples if name == "semi_offline" else args.generations),
        "steps": len(clock.steps),
        "seconds": clock.spent,
        "seconds_per_step": statistics.median(clock.steps[1:] or clock.steps),
        "curve": clock.curve,
        "last_log": {key: value for key, value in log[-1].items() if isinstance(value, (int, float))} if log else {},
    }
    print(f"    {result['seconds_per_step'] * 1000:.0f} ms a step, {result['steps']} steps", flush=True)
    del trainer
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return result


def time_to(curve: list[dict[str, float]], reward: float) -> float | None:
    """Seconds at which the reward was first reached, in a straight line between two looks."""
    for before, after in zip(curve, curve[1:], strict=False):
        if before["reward"] >= reward:
            return before["seconds"]
        if after["reward"] >= reward:
            share = (reward - before["reward"]) / (after["reward"] - before["reward"])
            return before["seconds"] + share * (after["seconds"] - before["seconds"])
    return curve[-1]["seconds"] if curve[-1]["reward"] >= reward else None


def summarise(results: list[dict[str, Any]], wanted: float | None) -> dict[str, Any]:
    """Ratios to ours, and the seconds to `wanted`, or else to the highest reward that every trainer reached."""
    wanted = min(max(p["reward"] for p in r["curve"]) for r in results) if wanted is None else wanted
    ours = next((r for r in results if r["trainer"] == "semi_offline"), None)
    for result in results:
        result["seconds_to_reward"] = time_to(result["curve"], wanted)
        if ours is not None:
            result["step_ratio"] = result["seconds_per_step"] / ours["seconds_per_step"]
    return {"reward": wanted, "trainers": results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", default="samsum")
    parser.add_argument("--data_dir")
    parser.add_argument("--trainers", nargs="+", default=["semi_offline", "grpo", "rloo"])
    parser.add_argument("--seconds", type=float, default=90, help="of training steps, for each trainer")
    parser.add_argument("--most-steps", type=int, default=100_000)
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=16, help="in one step")
    parser.add_argument("--generations", type=int, default=8, help="samples of one prompt, TRL")
    parser.add_argument("--samples", type=int, default=64, help="samples of one prompt, ours")
    parser.add_argument("--rl-ratio", type=float, default=1.0, help="ours: of the RL gradient to the MLE gradient")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--max-prompt-length", type=int, default=384)
    parser.add_argument("--max-completion-length", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--dev", type=int, default=256)
    parser.add_argument("--reward", type=float, help="the reward whose time is asked for")
    parser.add_argument("--cuda-graphs", action="store_true", help="ours with CUDA graphs")
    parser.add_argument("--pad-to-multiple-of", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("peer.json"))
    args = parser.parse_args()
    rows, dev = load_rows(args, "train", args.rows), load_rows(args, "validation", args.dev)
    settings = {key: value for key, value in vars(args).items() if key not in ("output", "model", "data_dir")}
    about = {"command": "python benchmarks/trl_grpo.py", "commit": commit(), "versions": versions(system=False)}
    results: list[dict[str, Any]] = []
    for name in args.trainers:
        results.append(run(name, args, rows, dev))
        summary = {"kind": "peer", "about": about, "settings": settings} | summarise(results, args.reward)
        args.output.write_text(json.dumps(summary, indent=1))
    for r in results:
        reached = "never" if r["seconds_to_reward"] is None else f"{r['seconds_to_reward']:.1f} s"
        ratio = f"{r['step_ratio']:6.1f} x ours" if "step_ratio" in r else ""
        line = f"{r['trainer']:<14} {1000 * r['seconds_per_step']:8.1f} ms a step {ratio}"
        print(f"{line}  reward {summary['reward']:.4f} after {reached}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
