"""What the examples share: a tiny model that knows the synthetic task, a run, and a look at the result.

With your own model and data these are a few lines: `SemiOfflineTrainer("facebook/bart-base", ...)` and a
`datasets.Dataset` with the columns prompt and completion.
"""

import argparse
from typing import Any

from semioffline import MFTConfig, Policy, SemiOfflineConfig, SemiOfflineTrainer
from semioffline.tasks import ads

parser = argparse.ArgumentParser()
parser.add_argument("--start_steps", type=int, default=200, help="fine-tuning with masks, before RL")
parser.add_argument("--steps", type=int, default=100, help="steps of RL")
parser.add_argument("--output_dir", default="runs/example")


def run(reward: Any, watch: tuple[str, ...] = ("click_rate", "facts_right"), **settings: Any) -> dict[str, float]:
    """Fine-tune, train for the reward, and print both on records that were in neither."""
    options = parser.parse_args()
    rows = ads.build()
    policy = Policy(ads.build_model(), ads.build_tokenizer())
    shared = {**ads.TASK.settings, "output_dir": options.output_dir, "per_device_train_batch_size": 32}
    shared |= {
        "per_device_eval_batch_size": 200,
        "eval_metrics": list(watch),
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
    }
    args = MFTConfig(max_steps=options.start_steps, learning_rate=2e-3, **shared)
    start = SemiOfflineTrainer(policy, reward, args, rows["train"], rows["validation"])
    start.train()  # fine-tuning: the reward is only measured
    before = start.evaluate()

    rl = {"max_steps": options.steps, "learning_rate": 1e-3, "num_samples": 16, "rl_weight": 0.5, "logging_steps": 20}
    args = SemiOfflineConfig(**(shared | rl | settings))
    trainer = SemiOfflineTrainer(policy, reward, args, rows["train"], rows["validation"])
    trainer.train()
    after = trainer.evaluate()
    for name in [name for name in after if name not in ("eval_runtime", "epoch")]:
        print(f"{name.removeprefix('eval_'):>20}  {before[name]:8.3f} -> {after[name]:8.3f}")
    return after
