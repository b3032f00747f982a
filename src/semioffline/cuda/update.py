"""Run gradient clipping and the optimizer as CUDA graphs. Next to a captured trunk (`trunk`) they are most of the
host's work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from semioffline.cuda.functions import record_call
from semioffline.cuda.trunk import MOST, Trunk

MOST_UPDATES = 2 * MOST
"""Maximum number of sets of addresses for which clipping, or the optimizer, is captured."""


class ReplayedUpdate:
    """Captures a function that reads or changes gradients in place, as one graph for each set of addresses of the
    gradients. There are few sets, because captured passes of one shape always put their gradients at the same
    addresses."""

    def __init__(
        self,
        function: Callable[[], Any],
        parameters: Sequence[nn.Parameter],
        record: Callable[[Callable[[], Any]], Callable[[], Any]] = record_call,
    ):
        self.function, self.parameters = function, parameters
        self._record = record
        self._known: dict[Any, Callable[[], Any] | None] = {}

    def forget(self) -> None:
        """Forget all graphs, because they read tensors that no longer exist."""
        self._known.clear()

    def __call__(self, *settings: Any) -> Any:
        """Run the function, replayed if possible. settings: further values that a captured graph depends on."""
        key = (*settings, *(0 if p.grad is None else p.grad.data_ptr() for p in self.parameters))
        if key not in self._known:
            if len(self._known) >= MOST_UPDATES:  # something that was seen once makes room
                for old in [old for old, replay in self._known.items() if replay is None][:1]:
                    del self._known[old]
            if len(self._known) < MOST_UPDATES:
                self._known[key] = None  # recorded the next time: this one loads kernels, and makes AdamW's moments
            return self.function()
        replay = self._known[key]
        if replay is None:
            replay = self._known[key] = self._record(self.function)
        return replay()


class Updates:
    """Gradient clipping and the step of a fused AdamW, replayed as graphs."""

    def __init__(self, trunk: Trunk, optimizer: torch.optim.Optimizer, **options: Any):
        self.trunk, self.optimizer, self._options = trunk, optimizer, options
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.rates = [torch.zeros((), device=trunk.device) for _ in optimizer.param_groups]
        self._loose, self._recorded = self.parameters, 0
        self._places: dict[nn.Parameter, Tensor] = {}
        self._clips: dict[tuple[float, float], ReplayedUpdate] = {}
        self._plain = optimizer.step
        self._step = ReplayedUpdate(self._run_step, self.parameters, **options)
        optimizer.register_load_state_dict_post_hook(lambda optimizer: self._step.forget())  # it has other moments now

    def clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clip gradients as torch.nn.utils.clip_grad_norm_ does."""
        self._settle()
        if (max_norm, norm_type) not in self._clips:
            clip = partial(nn.utils.clip_grad_norm_, self.parameters, max_norm, norm_type)
            self._clips[max_norm, norm_type] = ReplayedUpdate(clip, self.parameters, **self._options)
        return self._clips[max_norm, norm_type]().clone()

    def step(self) -> None:
        groups = self.optimizer.param_groups
        hooks = self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks
        if hooks or not all(group["fused"] for group in groups):  # a checkpoint may bring groups of another kind
            self._plain()
            return
        self._settle()
        for rate, group in zip(self.rates, groups, strict=True):
            rate.fill_(group["lr"])
        self._step(*((group["weight_decay"], group["eps"], *group["betas"]) for group in groups))

    def _run_step(self) -> None:
        """Run the optimizer with learning rates that a captured step can read. The optimizer keeps its own rates, which
        are saved in checkpoints."""
        groups = self.optimizer.param_groups
        kept = [(group["lr"], group["capturable"]) for group in groups]
        try:
            for rate, group in zip(self.rates, groups, strict=True):
                group["lr"], group["capturable"] = rate, True
            self._plain()
        finally:
            for (rate, capturable), group in zip(kept, groups, strict=True):
                group["lr"], group["capturable"] = rate, capturable

    def _settle(self) -> None:
        """Move gradients that no captured pass has made, such as those of an untied head, to fixed addresses."""
        recorded = [graphed.weights for graphed in self.trunk.graphed]
        if sum(map(len, recorded)) != self._recorded:
            self._recorded = sum(map(len, recorded))
            self._loose = [p for p in self.parameters if not any(p in weights for weights in recorded)]
        for p in self._loose:
            if p.grad is not None and p.grad is not self._places.get(p):
                if p not in self._places:
                    self._places[p] = torch.empty_like(p.grad)
                p.grad = self._places[p].copy_(p.grad)


def replay_updates(trunk: Trunk, optimizer: Any, accelerator: Any) -> None:
    """Replay gradient clipping and a fused AdamW as graphs. Other optimizers run as usual."""
    if type(optimizer) is not torch.optim.AdamW or not optimizer.defaults.get("fused"):
        return
    updates = Updates(trunk, optimizer)

    def step(optimizer: Any, closure: Any = None) -> Any:
        return updates.step()

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    accelerator.clip_grad_norm_ = updates.clip
