"""The trunk as recorded graphs. A recorder for the CPU stands for CUDA's: as there, the activations of a module exist
once, for all shapes, and backward is that of the last forward."""

import logging
from typing import Any

import pytest
import torch

from semioffline import graphs
from semioffline.graphs import GraphedForward, Replayed, forget_step, use_cuda_graphs
from semioffline.methods.semi_offline import Method
from semioffline.randomness import Randomness
from semioffline.scoring import RewardSet, Scorer
from semioffline.types import Row

KINDS = ["bart", "t5", "llama", "gpt2"]


def record(body: Any, tensors: list[torch.Tensor], pool: Any) -> Any:
    static = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    parameters = tuple(body.parameters())
    surface = [t for t in (*static, *parameters) if t.requires_grad]
    written: list[torch.Tensor] = []  # the output is in one place
    last: dict[str, torch.Tensor] = body.module.__dict__.setdefault("last activations", {})

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
            for place, value in zip(static, inputs, strict=False):
                place.data.copy_(value)
            with torch.enable_grad():
                last["output"] = body(*static)
            if not written:
                written.append(torch.empty_like(last["output"], requires_grad=False))
            return written[0].copy_(last["output"].detach()).detach()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            found = iter(torch.autograd.grad(last["output"], surface, gradient, allow_unused=True))
            return tuple(next(found) if t.requires_grad else None for t in (*static, *parameters))

    return lambda *inputs: Replay.apply(*inputs, *parameters)


@pytest.fixture
def graphed(tiny_policy, monkeypatch):
    """graphed(kind) -> a policy in training mode whose stacks are recorded, and the recorders."""

    def build(kind: str) -> tuple[Any, list[GraphedForward]]:
        monkeypatch.setattr(graphs, "record", record)
        monkeypatch.setattr(GraphedForward.__init__, "__defaults__", (None, dict, bool, record))
        policy = tiny_policy(kind).train()
        use_cuda_graphs(policy)
        return policy, [stack.forward for stack in policy.stacks()]

    return build


def gradients(policy: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    policy.zero_grad()
    loss.backward()
    return [p.grad for p in policy.parameters() if p.grad is not None]


def step(policy: Any, batch: Any, args: Any, number: int) -> torch.Tensor:
    output = Method(args).step(policy, batch, Scorer(policy, RewardSet("click_rate")), Randomness(0, number))
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
    use_cuda_graphs(policy)
    plain.always_masked = True
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
    assert [len(stack.forward.graphs) for stack in policy.stacks()] == [1] * len(policy.stacks())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_of_several_shapes_share_memory(tiny_policy, tiny_batch, settings, kind):
    """Batches of different sizes in turn, several times: each gets the gradients of plain steps, as the first time."""
    policy, plain = (tiny_policy(kind).to("cuda").train() for _ in range(2))
    use_cuda_graphs(policy)
    plain.always_masked = True
    batches, args = [tiny_batch(policy, size) for size in (2, 4, 3)], settings(num_samples=4)
    for number in range(9):
        batch = batches[number % 3]
        found, expected = (gradients(model, step(model, batch, args, number)) for model in (policy, plain))
        assert_same(found, expected)
    assert {len(stack.forward.graphs) for stack in policy.stacks()} == {3}


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_two_passes_before_one_backward(graphed, tiny_policy, tiny_batch, kind, same):
    """The second pass must not overwrite the activations of the first, whatever its shape."""
    policy, _ = graphed(kind)
    plain = tiny_policy(kind).train()
    batch = tiny_batch(policy)
    target = batch.target
    row = Row(target.ids, target.keep_mask, target.keep_mask)
    if same:
        other = Row(target.ids.flip(0), target.keep_mask.flip(0), target.keep_mask.flip(0))
    else:
        other = Row(target.ids[:, :-2], target.keep_mask[:, :-2], target.keep_mask[:, :-2])

    def loss(model: Any) -> torch.Tensor:
        [first], [second] = model.predict(batch.source, [row]), model.predict(batch.source, [other])
        return first.square().sum() + 3 * second.square().sum()

    def one(model: Any, which: Row) -> torch.Tensor:
        return model.predict(batch.source, [which])[0].square().sum()

    for which in (row, other):  # both shapes are recorded
        assert_same(gradients(policy, one(policy, which)), gradients(plain, one(plain, which)))
    for _ in range(2):
        assert_same(gradients(policy, loss(policy)), gradients(plain, loss(plain)))


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
    from semioffline.decoding import Decoding

    policy, stacks = graphed("bart")
    batch = tiny_batch(policy)
    with torch.no_grad():
        policy.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)])
    policy.generate(batch.source, Decoding(max_new_tokens=4))
    policy.eval()
    policy.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)])
    assert not any(stack.graphs for stack in stacks)


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
    for stack in policy.stacks():
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
    policy.pad_multiple = 16
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
    monkeypatch.setattr(graphs, "MOST_FUNCTIONS", 2)
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
    forget_step(policy)
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
