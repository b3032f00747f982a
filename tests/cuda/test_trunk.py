"""The trunk as recorded graphs. A recorder for the CPU stands for CUDA's: as there, the activations of a module exist
once in each pool of memory, for all shapes, and backward is that of the last forward."""

import gc
import logging
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from semioffline.algorithm import deferred
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row
from semioffline.cuda import trunk as graphs
from semioffline.cuda.functions import Replayed, record_call
from semioffline.cuda.trunk import (
    GraphedForward,
    Recording,
    Trunk,
    recorded,
)
from semioffline.cuda.update import MOST_UPDATES, ReplayedUpdate, Updates, replay_updates
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

KINDS = ["bart", "t5", "llama", "gpt2"]


def record(body: Any, tensors: list[torch.Tensor], pool: Any) -> Recording:
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    parameters = [p for p in body.parameters() if p.requires_grad]
    wanted = [*(t for t in inputs if t.requires_grad), *parameters]
    last: dict[str, torch.Tensor] = body.module.__dict__.setdefault(f"last activations {pool}", {})

    def run() -> torch.Tensor:
        with torch.enable_grad():
            last["output"] = body(*inputs)
        return last["output"]

    def differentiate(gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return torch.autograd.grad(last["output"], wanted, gradient, allow_unused=True) if wanted else ()

    output = run().detach().clone()  # it and the gradients are in one place
    gradient = torch.empty_like(output)
    found = differentiate(gradient)

    def backward() -> None:
        for place, value in zip(found, differentiate(gradient), strict=True):
            if place is not None:
                place.copy_(value)

    def forward() -> None:
        for place in found:
            if place is not None:  # a graph's gradients lie in memory that its forward uses
                place.fill_(torch.nan)
        output.copy_(run().detach())

    return recorded(forward, backward, inputs, output, gradient, parameters, found)


@pytest.fixture
def graphed(tiny_policy, monkeypatch):
    """graphed(kind) -> a policy in training mode whose stacks are recorded, and the recorders."""

    def build(kind: str) -> tuple[Any, list[GraphedForward]]:
        monkeypatch.setattr(graphs, "record", record)
        monkeypatch.setattr(GraphedForward.__init__, "__defaults__", (None, dict, bool, record))
        policy = tiny_policy(kind).train()
        policy.use_cuda_graphs()
        return policy, [stack.forward for stack in policy.trunk.stacks]

    return build


def gradients(policy: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    policy.zero_grad()
    loss.backward()
    return [p.grad for p in policy.parameters() if p.grad is not None]


def step(policy: Any, batch: Any, args: Any, number: int) -> torch.Tensor:
    output = load_method(args).step(policy, batch, Scorer(policy, RewardSet("click_rate")), Randomness(0, number))
    return torch.stack([term.weight * term.total for term in output.terms]).sum()


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_steps_are_plain_steps(graphed, tiny_policy, tiny_batch, settings, kind):
    """Several steps of one shape: masks and positions of rows that share a sequence are inputs, not recorded values."""
    policy, stacks = graphed(kind)
    plain, args = tiny_policy(kind).train(), settings(num_samples=4)
    batch = tiny_batch(policy)
    for number in range(3):
        assert_same(
            gradients(policy, step(policy, batch, args, number)), gradients(plain, step(plain, batch, args, number))
        )
    assert [len(stack.graphs) for stack in stacks] == [1] * len(stacks)


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_replayed_by_cuda_are_plain_steps(tiny_policy, tiny_batch, settings, kind, half):
    """With CUDA's own recorder: three steps of one shape, then gradients that are set anew each time."""
    policy, plain = (tiny_policy(kind).to("cuda").train() for _ in range(2))
    policy.use_cuda_graphs()
    plain.trunk.mask_always()
    batch, args = tiny_batch(policy), settings(num_samples=4)
    for number in range(3):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            found, expected = (step(model, batch, args, number) for model in (policy, plain))
        found, expected = gradients(policy, found), gradients(plain, expected)
        if half:  # casts that plain autocast makes once, and sums in half precision, are made at each use
            found, expected = (torch.cat([g.flatten() for g in some]) for some in (found, expected))
            assert (found - expected).norm() < 0.03 * expected.norm()
        else:
            assert_same(found, expected)
    assert [len(stack.forward.graphs) for stack in policy.trunk.stacks] == [1] * len(policy.trunk.stacks)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_of_several_shapes_share_memory(tiny_policy, tiny_batch, settings, kind):
    """Batches of different sizes in turn, several times: each gets the gradients of plain steps, as the first time."""
    policy, plain = (tiny_policy(kind).to("cuda").train() for _ in range(2))
    policy.use_cuda_graphs()
    plain.trunk.mask_always()
    batches, args = [tiny_batch(policy, size) for size in (2, 4, 3)], settings(num_samples=4)
    for number in range(9):
        batch = batches[number % 3]
        found, expected = (gradients(model, step(model, batch, args, number)) for model in (policy, plain))
        assert_same(found, expected)
    assert {len(stack.forward.graphs) for stack in policy.trunk.stacks} == {3}


def two_passes(policy: Any, plain: Any, batch: Any, same: bool) -> None:
    """Gradients of one pass, then of two before one backward, of a policy that replays and one that does not."""
    target = batch.target
    row = Row(target.ids, target.keep_mask, target.keep_mask)
    if same:
        other = Row(target.ids.flip(0), target.keep_mask.flip(0), target.keep_mask.flip(0))
    else:
        other = Row(target.ids[:, :-2], target.keep_mask[:, :-2], target.keep_mask[:, :-2])

    def one(model: Any, which: Row) -> torch.Tensor:
        return model.predict(batch.source, [which])[0].square().sum()

    def loss(model: Any, weights: tuple[float, ...]) -> torch.Tensor:
        """The weights differ, so that each pass must be met by its own backward."""
        rows = [row, other, row][: len(weights)]
        logits = [model.predict(batch.source, [row])[0] for row in rows]
        return torch.stack([weight * z.square().sum() for weight, z in zip(weights, logits, strict=True)]).sum()

    for which in (row, other):  # both shapes are recorded
        assert_same(gradients(policy, one(policy, which)), gradients(plain, one(plain, which)))
    for weights in [(1.0, 3.0), (1.0, 2.0), (0.5, 3.0), (1.0, 2.0, 3.0), (2.0, 1.0)]:
        assert_same(gradients(policy, loss(policy, weights)), gradients(plain, loss(plain, weights)))
    replayed: dict[Any, list[int]] = {stack: [] for stack in policy.trunk.stacks}

    def watch(graph: Any, note: Any) -> Any:
        def forward() -> None:
            note()
            graph.replay.forward()

        return graph._replace(replay=graph.replay._replace(forward=forward))

    for stack, turns in replayed.items():
        own = stack.forward.graphs
        own.update({key: watch(graph, partial(turns.append, key.turn)) for key, graph in own.items()})
        assert [key.turn for key in own].count(1) == 1
    loss(policy, (1.0, 2.0))
    assert all(turns == [0, 1] for turns in replayed.values())
    policy.trunk.forget_step()


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_two_passes_before_one_backward(graphed, tiny_policy, tiny_batch, kind, same):
    """The second pass must not overwrite the activations of the first, whatever its shape: it is replayed in other
    memory, from the step after the first such step on. A third runs plain."""
    policy, _ = graphed(kind)
    two_passes(policy, tiny_policy(kind).train(), tiny_batch(policy), same)


@pytest.mark.gpu
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_two_passes_recorded_by_cuda(tiny_policy, tiny_batch, kind, same):
    policy, plain = (tiny_policy(kind).to("cuda").train() for _ in range(2))
    policy.use_cuda_graphs()
    plain.trunk.mask_always()
    two_passes(policy, plain, tiny_batch(policy), same)


def test_what_was_to_be_recorded_later_waits_for_the_same_circumstances(graphed, tiny_policy, tiny_batch):
    """A parameter that is frozen in between: the waiting pass is not recorded for a set that it was not meant for."""
    policy, [stack] = graphed("llama")
    plain = tiny_policy("llama").train()
    batch = tiny_batch(policy)
    row = Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)

    def loss(model: Any, passes: int) -> torch.Tensor:
        return torch.stack([model.predict(batch.source, [row])[0].square().sum() for _ in range(passes)]).sum()

    frozen = [model.base.model.layers[0].mlp.up_proj.weight for model in (policy, plain)]
    gradients(policy, loss(policy, 2))
    for weight in frozen:
        weight.requires_grad_(False)
    for passes in (1, 2, 2):
        assert_same(gradients(policy, loss(policy, passes)), gradients(plain, loss(plain, passes)))
    assert all(weight.grad is None for weight in frozen)
    for weight in frozen:
        weight.requires_grad_(True)
    for passes in (2, 2):
        assert_same(gradients(policy, loss(policy, passes)), gradients(plain, loss(plain, passes)))
    assert sorted(key.turn for key in stack.graphs) == [0, 0, 1, 1]


def test_a_policy_that_leaves_graphs_is_as_it_was(graphed, tiny_policy, tiny_batch, settings):
    policy, stacks = graphed("bart")
    plain, batch, args = tiny_policy("bart").train(), tiny_batch(policy), settings(num_samples=4)
    gradients(policy, step(policy, batch, args, 0))
    policy.leave_cuda_graphs()
    assert not any("forward" in vars(stack) for stack in policy.trunk.stacks)
    for found, expected in zip(*(gradients(m, step(m, batch, args, 1)) for m in (policy, plain)), strict=True):
        assert torch.equal(found, expected)
    assert [len(stack.graphs) for stack in stacks] == [1, 1]
    policy.use_cuda_graphs()
    assert not any(stack.graphs for stack in policy.trunk.graphed)


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_that_are_added_are_not_recorded(graphed, tiny_policy, tiny_batch, settings, kind):
    """observation=pre: what is added changes from step to step and is no input of the decoder."""
    policy, stacks = graphed(kind)
    plain, args = tiny_policy(kind).train(), settings(num_samples=4, observation="pre")
    batch = tiny_batch(policy)
    for number in range(2):
        assert_same(
            gradients(policy, step(policy, batch, args, number)), gradients(plain, step(plain, batch, args, number))
        )
    assert not stacks[0].graphs


def test_without_gradient_and_in_generation_nothing_is_recorded(graphed, tiny_batch, settings):
    from semioffline.policy.decoding import Decoding

    policy, stacks = graphed("bart")
    batch = tiny_batch(policy)
    with torch.no_grad():
        policy.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)])
    policy.generate(batch.source, Decoding(max_new_tokens=4))
    policy.eval()
    policy.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)])
    assert not any(stack.graphs for stack in stacks)


def test_an_adapter_is_refused(tiny_policy):
    """Its trained tokens are sent to the device at each use, which cannot be recorded."""
    from peft import LoraConfig

    policy = tiny_policy("llama", peft_config=LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(UserError, match="cuda_graphs does not support this adapter"):
        policy.use_cuda_graphs()


def test_after_many_shapes_the_rest_runs_without_graphs(graphed, tiny_policy, tiny_batch, monkeypatch, caplog):
    monkeypatch.setattr(graphs, "MOST", 2)
    policy, stacks = graphed("llama")
    plain = tiny_policy("llama").train()
    batch = tiny_batch(policy)
    with caplog.at_level(logging.WARNING):
        for length in (3, 5, 7, 9):
            row = Row(*(t[:, :length] for t in (batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)))
            found, expected = (gradients(m, m.predict(batch.source, [row])[0].square().sum()) for m in (policy, plain))
            assert_same(found, expected)
    assert len(stacks[0].graphs) == 2
    assert caplog.text.count("pad_to_multiple_of") == 1


@pytest.mark.parametrize("kind", [*KINDS, "mistral"])
@pytest.mark.parametrize("share_prompt", [True, False])
@torch.no_grad()
def test_padding_to_a_multiple_leaves_few_shapes_and_the_same_logits(tiny_policy, tiny_batch, kind, share_prompt):
    policy = tiny_policy(kind, share_prompt=share_prompt)
    batch = tiny_batch(policy)
    shapes = set()
    for stack in policy.trunk.stacks:
        stack.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.add((*args, kwargs.get("input_ids"))[0].shape[1]), with_kwargs=True
        )
    keep = batch.target.keep_mask
    rows = [
        Row(batch.target.ids, keep, keep),
        Row(batch.target.ids.clamp(min=9), keep, keep & (batch.target.words > 2)),
    ]
    plain = policy.predict(batch.source, rows)
    shapes.clear()
    policy.trunk.pad_to_multiple_of(16)
    for found, expected in zip(policy.predict(batch.source, rows), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert shapes
    assert all(length % 16 == 0 for length in shapes)


def record_function(function: Any, inputs: list[torch.Tensor]) -> Any:
    """As CUDA's: what comes out is written into the same place every time."""
    output = function(*inputs)

    def replay() -> torch.Tensor:
        output.copy_(function(*inputs))
        return output

    return replay


def test_a_replayed_function_gives_values_of_its_own(monkeypatch):
    monkeypatch.setattr("semioffline.cuda.functions.MOST_FUNCTIONS", 2)
    calls = []

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(a.shape)
        return a * 2 + b

    replayed = Replayed(function, record_function)
    one, two = torch.arange(3.0), torch.ones(3)
    first = replayed(one, two)
    second = replayed(one + 5, two)
    assert torch.equal(first, one * 2 + 1)
    assert torch.equal(second, (one + 5) * 2 + 1)
    for size in (4, 5, 6):  # two shapes are known by then: the others run as they are
        assert torch.equal(replayed(torch.ones(size), torch.ones(size)), torch.full((size,), 3.0))
    assert len(replayed._known) == 2
    assert len(calls) == 3 + 2 + 2


def test_a_step_that_was_broken_off_does_not_stop_the_next_from_being_replayed(graphed, tiny_batch):
    policy, stacks = graphed("bart")
    batch = tiny_batch(policy)
    row = Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)
    policy.predict(batch.source, [row])
    assert all(stack.busy for stack in stacks)
    policy.trunk.forget_step()
    assert not any(stack.busy for stack in stacks)
    assert list(policy.parameters(recurse=False)) == []
    assert len(list(policy.parameters())) == len(list(policy.model.parameters()))


def test_what_needs_no_gradient_is_not_overwritten_by_the_next_replay(graphed, tiny_batch):
    """A frozen encoder: its graph is never busy."""
    policy, _ = graphed("bart")
    encoder = policy.base.get_encoder().requires_grad_(False)
    batch = tiny_batch(policy)
    one = encoder(input_ids=batch.source.ids, attention_mask=None).last_hidden_state
    before = one.clone()
    encoder(input_ids=batch.source.ids.flip(1), attention_mask=None)
    assert torch.equal(one, before)


def test_gradients_of_two_steps_add_up(graphed, tiny_policy, tiny_batch, settings):
    """Where nobody sets them to None in between."""
    policy, _ = graphed("bart")
    plain, batch, args = tiny_policy("bart").train(), tiny_batch(policy), settings(num_samples=4)
    for model in (policy, plain):
        for number in range(2):
            step(model, batch, args, number).backward()
    assert_same(*([p.grad for p in model.parameters() if p.grad is not None] for model in (policy, plain)))


def test_what_is_frozen_later_gets_no_gradient(graphed, tiny_batch, settings):
    policy, stacks = graphed("llama")
    batch, args = tiny_batch(policy), settings(num_samples=4)
    first = policy.base.get_decoder().layers[0].mlp.up_proj.weight
    assert gradients(policy, step(policy, batch, args, 0))
    first.requires_grad_(False)
    gradients(policy, step(policy, batch, args, 1))
    assert first.grad is None
    first.requires_grad_(True)
    gradients(policy, step(policy, batch, args, 2))
    assert first.grad is not None
    assert len(stacks[0].graphs) == 2


def test_hooks_on_parameters_are_refused():
    layer = torch.nn.Linear(2, 2)
    layer.weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(UserError, match="does not support gradient hooks"):
        graphs.record(layer, [torch.zeros(1, 2)], None)


def test_a_step_leaves_nothing_behind(tiny_policy, tiny_batch, settings, monkeypatch):
    """Its autograd graph goes when the last name for it goes, not when garbage is collected: a graph that is recorded
    next must not meet it."""
    alive: Any = weakref.WeakSet()  # what the nodes of RL terms hold on to
    made = deferred._Sum.__init__

    def make(self: Any, *args: Any) -> None:
        made(self, *args)
        alive.add(self)

    monkeypatch.setattr(deferred._Sum, "__init__", make)
    policy = tiny_policy("bart").train()
    gc.disable()
    try:
        loss = step(policy, tiny_batch(policy), settings(num_samples=4), 0)
        assert len(alive) == 1
        loss.backward()
        del loss
        assert len(alive) == 0
    finally:
        gc.enable()


# ---- clipping and the optimizer ----


def updated(policy: Any, batches: list[Any], args: Any, steps: int, **options: Any) -> tuple[Any, Any]:
    """Train some steps, a warm-up included, and say the norms of the gradients."""
    # eps: a gradient that is zero but for rounding must not become a step
    fused = torch.optim.AdamW(policy.parameters(), lr=0.01, weight_decay=0.1, eps=1e-3, fused=True)
    schedule = LambdaLR(fused, lambda number: (number + 1) / steps)  # wraps the step
    updates = Updates(policy.trunk, fused, **options) if options else None
    norms = []
    for number in range(steps):
        policy.zero_grad()
        step(policy, batches[number % len(batches)], args, number).backward()
        clip = updates.clip if updates else torch.nn.utils.clip_grad_norm_
        norms.append(clip(policy.parameters(), 0.5).item())
        (updates or fused).step()
        schedule.step()
    assert {type(group["lr"]) for group in fused.param_groups} == {float}
    return norms, updates


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_replayed_updates_are_plain_updates(graphed, tiny_policy, tiny_batch, settings, kind):
    """Two shapes in turn: gradients lie at two sets of addresses, so clipping and the step are recorded twice."""
    policy, stacks = graphed(kind)
    plain, args, recordings = tiny_policy(kind).train(), settings(num_samples=4), []

    def record_update(function: Any) -> Any:
        recordings.append(function)
        return function

    batches = [tiny_batch(policy, size) for size in (2, 3)]
    found, updates = updated(policy, batches, args, 8, record=record_update)
    expected, _ = updated(plain, batches, args, 8)
    assert found == pytest.approx(expected, rel=1e-3)
    assert_same(list(policy.parameters()), list(plain.parameters()))
    assert len(recordings) == 4
    tied = policy.base.get_output_embeddings().weight is policy.base.get_input_embeddings().weight
    assert len(updates._places) == (0 if tied else 1)
    assert all(stack.weights for stack in stacks)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_updates_replayed_by_cuda_are_plain_updates(tiny_policy, tiny_batch, settings, kind):
    policy, plain = (tiny_policy(kind).to("cuda").train() for _ in range(2))
    policy.use_cuda_graphs()
    plain.trunk.mask_always()
    batches, args = [tiny_batch(policy, size) for size in (2, 3)], settings(num_samples=4)
    found, updates = updated(policy, batches, args, 8, record=record_call)
    expected, _ = updated(plain, batches, args, 8)
    assert found == pytest.approx(expected, rel=1e-2)
    assert_same(list(policy.parameters()), list(plain.parameters()))
    assert sum(replay is not None for replay in updates._step._known.values()) == 2


def test_gradients_at_ever_new_places_are_not_recorded():
    weight, calls = torch.nn.Parameter(torch.zeros(3)), []
    update = ReplayedUpdate(lambda: calls.append(None), [weight], record=lambda function: pytest.fail("recorded"))
    kept = []
    for _ in range(2 * MOST_UPDATES):
        weight.grad = torch.ones(3)
        kept.append(weight.grad)
        update()
    assert len(calls) == 2 * MOST_UPDATES
    assert len(update._known) == MOST_UPDATES


def test_other_optimizers_step_as_they_do(graphed):
    policy, _ = graphed("bart")
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    before, accelerator = optimizer.step, SimpleNamespace()
    replay_updates(policy.trunk, optimizer, accelerator)
    assert optimizer.step == before
    assert not vars(accelerator)


def test_what_is_seen_once_makes_room_for_what_comes_again():
    weight, kept, recordings = torch.nn.Parameter(torch.zeros(3)), [], []
    update = ReplayedUpdate(lambda: None, [weight], record=lambda f: recordings.append(f) or f)
    for _ in range(MOST_UPDATES + 3):
        weight.grad = torch.ones(3)
        kept.append(weight.grad)
        update()
    for _ in range(3):
        update()
    assert len(recordings) == 1


@pytest.fixture
def replaying():
    """A linear layer, its fused AdamW, its updates, and the recordings that were made."""
    layer, recordings = torch.nn.Linear(2, 2), []
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)

    def record(function: Any) -> Any:
        recordings.append(function)
        return function

    return layer, optimizer, Updates(Trunk([layer]), optimizer, record=record), recordings


def run_updates(layer: Any, updates: Any, number: int) -> None:
    for _ in range(number):
        layer.weight.grad, layer.bias.grad = torch.ones(2, 2), torch.ones(2)
        updates.clip(None, 1.0)
        updates.step()


def test_moments_that_were_loaded_are_recorded_anew(replaying):
    layer, optimizer, updates, recordings = replaying
    run_updates(layer, updates, 3)
    assert len(recordings) == 2  # clipping and the step
    optimizer.load_state_dict(optimizer.state_dict())
    run_updates(layer, updates, 3)
    assert len(recordings) == 3
    optimizer.param_groups[0]["weight_decay"] = 0.5
    run_updates(layer, updates, 3)
    assert len(recordings) == 4


@pytest.mark.parametrize("change", ["unfused", "hook"])
def test_steps_that_cannot_be_replayed_are_plain(replaying, change):
    layer, optimizer, updates, recordings = replaying
    if change == "unfused":  # as a checkpoint of another optimizer brings it
        optimizer.param_groups[0]["fused"] = None
    else:
        optimizer.register_step_post_hook(lambda *args: None)
    before = layer.weight.detach().clone()
    run_updates(layer, updates, 3)
    assert len(recordings) == 1  # clipping
    assert not torch.equal(layer.weight, before)


@pytest.mark.gpu
def test_functions_are_recorded_again_when_all_earlier_ones_are_gone():
    """As with a second trainer in one process."""
    for number in range(3):
        function = Replayed(lambda tensor, added=number: tensor + added)
        assert function(torch.ones(2, device="cuda")).tolist() == [1 + number] * 2
        del function
        gc.collect()
