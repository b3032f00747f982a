"""Compile the layers of encoder and decoder, and run them as CUDA graphs.

With small batches, a step of a large model takes as long as the host needs to launch its kernels. A graph is captured
once for each shape of the inputs and then replayed, forward and backward. Everything around it (the head at the wanted
positions, draws, losses, the optimizer) runs as usual.
"""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from semioffline.cuda.functions import count_recording, put
from semioffline.cuda.replaced import replaced
from semioffline.errors import UserError

logger = logging.getLogger(__name__)
MOST = 12
"""Maximum number of shapes captured for each module and turn. A graph keeps the memory of its outputs and gradients."""
TURNS = 2
"""Maximum number of passes of one step that may wait for their backward, each with its own memory. `one+another` has
two."""


def is_plain(value: Any) -> bool:
    """Return whether a captured graph may treat this value as a constant."""
    return value is None or isinstance(value, (bool, int, float, str))


def uncached_casts(device: str) -> torch.autocast:
    """Return the present autocast context without its cache of weights: a weight that is cast during capture has no
    value yet."""
    half = torch.is_autocast_enabled(device)
    return torch.autocast(device, torch.get_autocast_dtype(device), enabled=half, cache_enabled=False)


def refuse_adapter(model: Any) -> None:
    if hasattr(model, "get_base_model"):  # of peft
        raise UserError(
            "cuda_graphs does not support this adapter, which copies token indices to the GPU on every call: set "
            "cuda_graphs to false"
        )


class _Body(nn.Module):
    """The forward pass of a module as a function of tensors only, as capturing requires."""

    def __init__(self, module: nn.Module, run: Callable[..., Any], names: list[str], rest: dict[str, Any]):
        super().__init__()
        self.module = module
        self.training = module.training
        self._run, self._names, self._rest = run, names, rest
        self.kind: Any = None

    def forward(self, *tensors: Tensor) -> Tensor:
        output = self._run(**dict(zip(self._names, tensors, strict=True)), **self._rest)
        self.kind = type(output)
        return output.last_hidden_state


class Recording(NamedTuple):
    """The captured passes of a module for one input shape. A replay reads and writes these tensors."""

    forward: Callable[[], Any]
    backward: Callable[[], Any]
    inputs: list[Tensor]
    output: Tensor
    gradient: Tensor
    """Gradient of the output."""
    input_gradients: list[Tensor | None]
    weights: list[tuple[nn.Parameter, Tensor]]
    """Parameters and their gradients."""
    anchor: Tensor | None
    """A tensor that requires gradient, so that the output of the module does too; None if nothing in the module is
    trained."""

    def __call__(self, *tensors: Tensor) -> Tensor:
        return _Replay.apply(self, self.anchor, *tensors)


class _Replay(torch.autograd.Function):
    """Replays a graph as an autograd function. Parameters do not go through autograd, which would take as long as the
    pass of a small model: their gradients are set here."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, anchor: Tensor | None, *tensors: Tensor) -> Tensor:
        put(recording.inputs, tensors)
        recording.forward()
        ctx.recording = recording
        return recording.output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        recording: Recording = ctx.recording
        recording.gradient.copy_(gradient)
        recording.backward()
        for parameter, own in recording.weights:
            if parameter.grad is not None:
                own.add_(parameter.grad)
            parameter.grad = own
        return None, None, *(None if own is None else own.detach() for own in recording.input_gradients)


class _Key(NamedTuple):
    """The properties of inputs for which one graph can be replayed."""

    turn: int
    shapes: tuple[Any, ...]
    rest: tuple[Any, ...]
    around: tuple[Any, ...]
    """The autocast state, and which parameters are trained."""


class _Graph(NamedTuple):
    """The graph of one input shape."""

    body: _Body
    replay: Recording


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]


def record(body: _Body, tensors: list[Tensor], pool: Any) -> Recording:
    """Capture forward and backward for inputs of these shapes. pool: the memory pool that all graphs of a module and
    turn share."""
    gc.collect()  # what an earlier step left of its autograd graph would be met in the recorded one
    inputs = _copies(tensors)
    parameters = [parameter for parameter in body.parameters() if parameter.requires_grad]
    if any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters):
        raise UserError(
            "cuda_graphs does not support gradient hooks (of a layer-wise optimizer, for example): set cuda_graphs "
            "to false"
        )
    wanted = [*(tensor for tensor in inputs if tensor.requires_grad), *parameters]
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    count_recording()

    def differentiate(output: Tensor, gradient: Tensor) -> Any:
        return torch.autograd.grad(output, wanted, gradient, allow_unused=True) if wanted else ()

    with uncached_casts(tensors[0].device.type):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):  # the first runs load kernels, which recording must not
            for _ in range(3):
                output = body(*inputs)
                differentiate(output, torch.empty_like(output))
                del output
        torch.cuda.synchronize()
        with torch.cuda.graph(forward, pool=pool, capture_error_mode="thread_local"):
            output = body(*inputs)
        gradient = torch.empty_like(output)
        found: Any = ()
        if wanted:
            with torch.cuda.graph(backward, pool=pool, capture_error_mode="thread_local"):
                found = differentiate(output, gradient)
    return recorded(forward.replay, backward.replay, inputs, output, gradient, parameters, found)


def recorded(
    forward: Callable[[], Any],
    backward: Callable[[], Any],
    inputs: list[Tensor],
    output: Tensor,
    gradient: Tensor,
    parameters: list[nn.Parameter],
    found: Sequence[Tensor | None],
) -> Recording:
    """Make a Recording. found: the gradients, first of the inputs that have one, then of the parameters."""
    each = iter(found)
    of_inputs = [next(each) if tensor.requires_grad else None for tensor in inputs]
    weights = [(parameter, own) for parameter, own in zip(parameters, each, strict=True) if own is not None]
    anchor = torch.zeros((), device=output.device, requires_grad=True) if found else None
    return Recording(forward, backward, inputs, output.detach(), gradient, of_inputs, weights, anchor)


class GraphedForward:
    """Replaces the `forward` of a module by replayed CUDA graphs.

    The plain forward runs where no graph can be used: without gradient, with arguments that are neither tensors nor
    plain values, while `blocked`, while TURNS graphs wait for their backward, and after MOST shapes.

    The graphs of all shapes share their memory, because one step needs one of them, from its forward to its backward. A
    second pass before that backward uses the memory of another turn. Its graph is captured in the next step: a capture
    in the middle of a step would include the autograd state of that step.
    """

    def __init__(
        self,
        module: nn.Module,
        run: Callable[..., Any] | None = None,
        extra: Callable[[], dict[str, Tensor]] = dict,
        blocked: Callable[[], bool] = bool,
        record: Callable[[_Body, list[Tensor], Any], Recording] = record,
    ):
        """run: the function to call instead of the module's own forward. extra: returns further tensors to pass to
        it."""
        self.module = module
        self.extra, self.blocked = extra, blocked
        self.plain = run or module.forward
        self._names = list(inspect.signature(module.forward).parameters)
        self._parameters = list(module.parameters())
        self.graphs: dict[_Key, _Graph] = {}
        self.weights: dict[nn.Parameter, None] = {}
        """Parameters that get their gradients from graphs."""
        self._record = record
        self._warned = False
        self._pools: list[Any] = [
            torch.cuda.graph_pool_handle() if torch.cuda.is_available() else turn for turn in range(TURNS)
        ]
        self._later: dict[_Key, tuple[_Body, list[Tensor]]] = {}
        """Inputs whose graph is captured later."""
        self.busy: set[int] = set()
        """Turns between forward and backward: their activations must not be overwritten."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(zip(self._names, args, strict=False)) | kwargs | self.extra()
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
        rest = {name: value for name, value in kwargs.items() if not isinstance(value, Tensor)}
        if (
            not all(map(is_plain, rest.values()))
            or self.blocked()
            or not self.module.training
            or not torch.is_grad_enabled()
        ):
            return self.plain(**kwargs)
        key = self._find(tensors, rest)
        if key is None:
            return self.plain(**kwargs)
        graph = self.graphs[key]
        for parameter in self.weights:
            if parameter.grad is not None:  # of a step before, which this one adds to; its place is used again
                parameter.grad = parameter.grad.clone()
        hidden = graph.replay(*tensors.values())
        if hidden.requires_grad:
            self.busy.add(key.turn)
            hidden.register_hook(partial(self._release, key.turn))
        else:  # nothing says when it is not needed any more
            hidden = hidden.clone()
        return graph.body.kind(last_hidden_state=hidden)

    def forget_step(self) -> None:
        self.busy.clear()

    def _release(self, turn: int, gradient: Tensor) -> None:
        self.busy.discard(turn)

    def _find(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> _Key | None:
        """Return the key of the graph for these inputs, which is captured here if necessary; None if there is none."""
        turn = next((turn for turn in range(TURNS) if turn not in self.busy), None)
        if turn is None:
            return None
        shapes = tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors.items())
        trained = tuple(parameter.requires_grad for parameter in self._parameters)
        key = _Key(turn, shapes, tuple(rest.items()), (torch.is_autocast_enabled(self._device), trained))
        if not self.busy:
            for other in [other for other in self._later if other.around == key.around]:
                self._add(other, *self._later.pop(other))
        if key not in self.graphs and key not in self._later:
            if sum(known.turn == turn for known in [*self.graphs, *self._later]) >= MOST:
                if not self._warned:
                    logger.warning(
                        "cuda_graphs: batches have more than %d shapes, and further shapes run without a graph: "
                        "raise pad_to_multiple_of",
                        MOST,
                    )
                self._warned = True
                return None
            body = _Body(self.module, self.plain, list(tensors), rest)
            if self.busy:
                self._later[key] = body, _copies(tensors.values())
            else:
                self._add(key, body, list(tensors.values()))
        return key if key in self.graphs else None

    def _add(self, key: _Key, body: _Body, tensors: list[Tensor]) -> None:
        self.graphs[key] = graph = _Graph(body, self._record(body, tensors, self._pools[key.turn]))
        self.weights |= dict.fromkeys(parameter for parameter, _ in graph.replay.weights)

    @property
    def _device(self) -> str:
        return self._parameters[0].device.type


class Trunk:
    """The decoder and encoder of a policy, run plainly, with compiled layers, or as CUDA graphs.

    The policy reads here which form of inputs compiled code and graphs need, and reports here what a graph cannot see.
    """

    def __init__(self, stacks: list[Any]):
        self.stacks = stacks
        """The decoder, and the encoder if there is one."""
        self.pad_multiple = 1
        """Sources and rows are padded to a multiple of this, so that compiled code and graphs see few shapes."""
        self.always_masked = False
        """Whether the model always gets a mask, even if it could do without: it must not decide while a graph is
        captured."""
        self.layers_are_compiled = False
        self.positions: Tensor | None = None
        """Positions of the decoder's tokens, if several rows are in one sequence."""
        self._blocked = False
        self._replaced = ExitStack()

    @property
    def device(self) -> torch.device:
        return next(self.stacks[0].parameters()).device

    def pad_to_multiple_of(self, multiple: int) -> None:
        self.pad_multiple = multiple

    def mask_always(self) -> None:
        self.always_masked = True

    def compile_layers(self, **options: Any) -> None:
        """Compile each layer by itself with torch.compile. The layers are alike, so one or two compilations serve all.

        The code around them (the layout of rows, the wanted positions) changes with every batch.
        """
        self.layers_are_compiled = True
        for stack in self.stacks:
            for blocks in [module for module in stack.modules() if isinstance(module, nn.ModuleList)]:
                for block in blocks:
                    block.compile(**options)

    def use_cuda_graphs(self) -> None:
        """Replay the passes of the decoder and the encoder, until `leave_cuda_graphs`."""
        self.mask_always()
        for stack in self.stacks:
            dropped = getattr(stack, "layerdrop", 0.0)
            if dropped > 0:
                raise UserError(
                    f"cuda_graphs replays every layer, but layerdrop={dropped} leaves some out: set it to 0"
                )
            if not isinstance(stack.forward, GraphedForward):
                graphed = GraphedForward(stack, self._with_positions(stack.forward), self._inputs, self._is_blocked)
                self._replaced.enter_context(replaced(stack, "forward", graphed))

    def leave_cuda_graphs(self) -> None:
        """Restore the forward of the decoder and the encoder, and free the graphs and their memory."""
        self._replaced.close()
        self.always_masked = False

    @property
    def graphed(self) -> list[GraphedForward]:
        """For each stack that has graphs, what runs instead of its forward."""
        return [stack.forward for stack in self.stacks if isinstance(stack.forward, GraphedForward)]

    def forget_step(self) -> None:
        """Forget passes that wait for their backward, because their step was interrupted."""
        for graphed in self.graphed:
            graphed.forget_step()

    @contextmanager
    def at(self, positions: Tensor | None) -> Iterator[None]:
        """Inside the block, the decoder's tokens have these positions; None: 0, 1, 2, ..."""
        before, self.positions = self.positions, positions
        try:
            yield
        finally:
            self.positions = before

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Inside the block, no graph is used, because the pass reads values that are not arguments of the decoder or
        the encoder."""
        self._blocked = True
        try:
            yield
        finally:
            self._blocked = False

    def _with_positions(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Add the positions to the arguments, because a graph must know every tensor that it reads."""

        def run(*args: Any, positions: Tensor | None = None, **kwargs: Any) -> Any:
            with self.at(positions):
                return forward(*args, **kwargs)

        return run

    def _inputs(self) -> dict[str, Tensor]:
        return {} if self.positions is None else {"positions": self.positions}

    def _is_blocked(self) -> bool:
        return self._blocked
