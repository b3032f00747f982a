"""Parameters with their own learning rates."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer


def set_own_rates(optimizer: Optimizer, rates: list[tuple[list[nn.Parameter], float]]) -> None:
    """Move parameters to optimizer groups with their own learning rates. Call it before the schedule is made, which
    scales every group."""
    for parameters, rate in rates:
        moved = set(parameters)
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter not in moved]
        optimizer.add_param_group({"params": parameters, "lr": rate, "weight_decay": 0.0})
