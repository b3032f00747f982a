"""Run by two processes at once (torchrun): one step of a policy under fully_shard. Its losses, gradients and texts are
saved.

python -m torch.distributed.run --nproc-per-node 2 shard_worker.py OUTPUT_FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from toy import KINDS, build_config, build_model, build_tokenizer, build_uneven_rows

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples
from semioffline.methods.shared.registry import load_method
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

METHODS = ("mft", "semi_offline")
SIZE = 8


def build_policy(kind: str) -> Policy:
    return Policy(build_model(kind), build_tokenizer(kind)).train()


def shard(policy: Policy) -> None:
    """Layer by layer, then what is left with the policy itself, through which every use of a parameter goes."""
    for stack in policy.trunk.stacks:
        for layer in stack.layers:
            fully_shard(layer)
    fully_shard(policy)
    register_fsdp_forward_method(policy, "generate")  # as Trainer does


def write(policy: Policy) -> list[list[int]]:
    """The same inputs in each process, for weights are gathered at every token."""
    examples = Examples(build_uneven_rows(SIZE), policy, 24, 28, progress=False)
    return policy.generate(Collator(policy.tokens.pad_id)(examples.examples[:4]).source, Decoding(max_new_tokens=8))


def step(policy: Policy, method: str, rank: int, world: int, folder: Path) -> tuple[float, dict[str, Any]]:
    """This process's share of one step: the loss over the counts of the whole, and all gradients."""
    examples = Examples(build_uneven_rows(SIZE), policy, 24, 28, progress=False)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(rank, SIZE, world)])
    counts = {"token": sum(len(example.target.ids) for example in examples.examples), "row": SIZE}
    args = build_config(folder, method=method)
    output = load_method(args).step(
        policy, batch, Scorer(policy, RewardSet("click_rate"), overlap=True), Randomness(0, 3)
    )
    loss = torch.stack([term.weight * term.total / counts[term.per] for term in output.terms]).sum()
    (loss * world).backward()  # gradients are averaged over processes
    values = [term.weight * (term.value() if term.value else term.total) / counts[term.per] for term in output.terms]
    grads = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    grads = {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in grads.items()}
    return torch.stack(values).sum().item(), grads


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for kind in KINDS:
        for method in METHODS:
            policy = build_policy(kind)
            shard(policy)
            assert all(isinstance(p, DTensor) for p in policy.parameters())
            loss, grads = step(policy, method, rank, world, folder)
            texts = write(policy)
            losses: list[Any] = [None] * world
            dist.all_gather_object(losses, loss)
            if rank == 0:
                torch.save({"loss": sum(losses), "grads": grads, "texts": texts}, folder / f"{kind}-{method}.pt")
    dist.barrier()  # none may be gone while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
