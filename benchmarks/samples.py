"""What the samples of one forward pass are like, before any training: how often one is better than what is most likely,
by static target and mask rate, and what they look like.

    semioffline candidates --model mft/model --task samsum --data_dir SAMSUM --limit 400 --output_dir candidates
    python benchmarks/samples.py --model mft/model --task samsum --rows candidates/candidates.jsonl --reward rouge

--model is a model after M-FT; --rows has its candidates, with the columns of --task or those of this library. A sample
wins over the most likely fill if its reward is higher than with the most likely token at each of the same masks, and
over the output if it is higher than that of the text that the model writes greedily. Means over samples, then over
inputs, with a 95 % bootstrap interval over inputs. "pushed" are the tokens that the RL gradient raises most: the sum of
the advantages, in standard deviations, of the samples in which one was drawn, for each input and sample.
"""

import argparse
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from semioffline import SemiOfflineConfig, SemiOfflineTrainer
from semioffline.algorithm.losses import advantages
from semioffline.algorithm.randomness import Randomness
from semioffline.cli.run_folder import shown_command
from semioffline.evaluation.statistics import bootstrap_interval, paired_p_value
from semioffline.experiments.provenance import commit
from semioffline.rewards.registry import load_reward
from semioffline.tasks.registry import Source, load_task
from semioffline.training.run_folder import versions

STATIC_TARGETS = ("worst", "random", "best", "ground_truth")
MASK_RATES = (0.2, 0.4, 0.8, 1.0)
EXAMPLES, PUSHED = 3, 5


class Kept:
    """A scorer that keeps what it gave last."""

    def __init__(self, scorer: Any):
        self.scorer, self.scores, self.samples = scorer, None, None

    def __call__(self, samples: Any, batch: Any) -> Any:
        self.samples, self.scores = samples, self.scorer(samples, batch)
        return self.scores

    def pushes(self, size: int) -> np.ndarray:
        """(size,) the sum of the advantages of the samples in which each token was drawn, divided by their number."""
        values, draws = advantages(self.scores.rewards.cpu().double(), scale=True).values, self.samples.draws.cpu()
        of_draws = values[self.samples.hidden.cpu().nonzero()[:, 0]] / draws.shape[1]
        return np.bincount(draws.flatten(), of_draws.flatten(), minlength=size)


def build(args: argparse.Namespace, rows: Any, static_target: str, folder: str) -> SemiOfflineTrainer:
    cuda = torch.cuda.is_available()
    config = SemiOfflineConfig(
        output_dir=folder,
        static_target=static_target,
        num_samples=args.num_samples,
        max_prompt_length=args.max_prompt_length,
        max_completion_length=args.max_completion_length,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        disable_dropout=True,
        reward_workers=0,
        bf16=cuda,
        use_cpu=not cuda,
        report_to="none",
        disable_tqdm=True,
        eval_metrics=[],
    )
    return SemiOfflineTrainer(args.model, args.reward, config, rows)


@torch.no_grad()
def draw(
    trainer: SemiOfflineTrainer, mask_rate: float, many: int, seed: int, top_k: int = 0
) -> tuple[np.ndarray, list[list[str]], list[str], np.ndarray]:
    """(N, K) rewards, the samples, the static targets with their masks, and (V,) what the gradient pushes up."""
    trainer.args.mask_rate, trainer.args.num_samples, trainer.args.top_k = mask_rate, many, top_k
    trainer.policy.eval()
    keep = Kept(trainer.scorer)
    rewards, texts, shown, size = [], [], [], trainer.args.train_batch_size
    pushes = np.zeros(len(trainer.policy.allowed))
    for start in range(0, len(trainer.train_dataset), size):
        examples = [trainer.train_dataset[n] for n in range(start, min(start + size, len(trainer.train_dataset)))]
        batch = trainer.data_collator(examples)  # type: ignore[arg-type]
        with trainer.accelerator.autocast():
            output = trainer.method.step(trainer.policy, batch, keep, Randomness(seed, 0))  # type: ignore[arg-type]
        rewards.append(keep.scores.rewards.cpu().numpy())
        pushes += keep.pushes(len(pushes))
        texts += keep.scores.texts
        shown += [row["masked_target"] for row in output.completions()[::many]]
    return np.concatenate(rewards), texts, shown, pushes / len(texts)


def score(values: np.ndarray, first: np.ndarray) -> dict[str, Any]:
    """As in a comparison; p: against the first static target."""
    low, high = bootstrap_interval(values.tolist())
    p = None if values is first else paired_p_value(values.tolist(), first.tolist())
    return {"mean": float(values.mean()), "low": low, "high": high, "p": p}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--model", "--rows", "--reward"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--task", default="files")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--num_samples", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--max_prompt_length", type=int)
    parser.add_argument("--max_completion_length", type=int)
    parser.add_argument("--mask_rates", type=float, nargs="+", default=list(MASK_RATES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="samples.json")
    args = parser.parse_args()
    source = Source(files={"train": args.rows}, limit=args.limit, model=args.model)
    rows = load_task(args.task).load(source, "train")
    _, repetition = load_reward("repetition")
    found: list[dict[str, Any]] = []
    values: dict[tuple[str, str, float], np.ndarray] = {}
    greedy: np.ndarray | None = None
    with tempfile.TemporaryDirectory() as folder:
        trainers = {target: build(args, rows, target, folder) for target in STATIC_TARGETS}
        for rate, target in product(args.mask_rates, STATIC_TARGETS):
            trainer = trainers[target]
            if greedy is None:
                name = next(iter(trainer.reward_set.functions))
                greedy = np.array(trainer.evaluate_outputs(trainer.train_dataset).values[name])
            fill = draw(trainer, rate, 2, args.seed, top_k=1)[0][:, :1]
            rewards, texts, shown, pushes = draw(trainer, rate, args.num_samples, args.seed)
            said = [text for own in texts for text in own]
            wins = {"fill": (rewards > fill).mean(1), "output": (rewards > greedy[:, None]).mean(1)}
            values |= {(what, target, rate): own for what, own in wins.items()}
            found.append(
                {
                    "static_target": target,
                    "mask_rate": rate,
                    "wins": {what: score(own, values[what, STATIC_TARGETS[0], rate]) for what, own in wins.items()},
                    "reward": float(rewards.mean()),
                    "fill_reward": float(fill.mean()),
                    "best_reward": float(rewards.max(1).mean()),
                    "repetition": float(np.mean(repetition(completions=said))),
                    "pushed": [
                        (str(trainer.policy.tokens.tokenizer.convert_ids_to_tokens(n)), float(pushes[n]))
                        for n in np.argsort(-pushes)[:PUSHED].tolist()
                    ],
                    "examples": [
                        {"target": shown[n], "sample": texts[n][0], "reward": float(rewards[n, 0])}
                        for n in range(min(EXAMPLES, len(rows)))
                    ],
                }
            )
            print(f"{target:<13} p_m {rate:.1f}", *(f"{w} {own.mean():.4f}" for w, own in wins.items()), flush=True)
            result = {"kind": "samples", "rows": found, "greedy": float(greedy.mean()), "inputs": len(rows)}
            command = shown_command("", sys.argv[1:]).replace("semioffline ", "python benchmarks/samples.py", 1)
            result["about"] = {"command": command, "commit": commit(), "versions": versions(system=False)}
            Path(args.output).write_text(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
