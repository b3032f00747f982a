"""The log of sampled completions."""

from torch import Tensor

from semioffline.algorithm.tensors import Batch, CompletionRow


def completion_rows(
    batch: Batch,
    texts: list[list[str]],
    rewards: Tensor,
    advantages: Tensor,
    masked_targets: list[str] | None = None,
) -> list[CompletionRow]:
    """One row for each of K samples of B inputs: prompt, masked target, sample, reward, advantage.

    Args:
        texts: B lists of K samples.
        rewards: (B, K). advantages: (B, K).
        masked_targets: what the policy saw of each static target; empty for methods that mask nothing.
    """
    all_rewards, all_advantages = rewards.tolist(), advantages.tolist()
    return [
        {
            "example": example,
            "prompt": batch.columns["prompt"][b],
            "masked_target": "" if masked_targets is None else masked_targets[b],
            "sample": text,
            "reward": all_rewards[b][k],
            "advantage": all_advantages[b][k],
        }
        for b, example in enumerate(batch.index.tolist())
        for k, text in enumerate(texts[b])
    ]
