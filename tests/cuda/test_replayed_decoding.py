"""Generation whose steps are recorded. A recorder for the CPU stands for CUDA's: as there, recording changes nothing,
the host's code runs once, and a replay repeats the operations on tensors, in the same places."""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.utils import import_utils

from semioffline.algorithm.tensors import Text
from semioffline.cuda.decoding import ReplayedSteps, can_replay, replayed_steps
from semioffline.errors import UserError
from semioffline.policy.attention import as_attention_mask
from semioffline.policy.decoding import Decoding
from semioffline.policy.generation import Generator

KINDS = ["bart", "t5", "llama", "gpt2", "qwen2", "mistral", "gemma2", "opt", "bloom"]
ON_CUDA = ["bart", "t5", "llama", "gpt2", "qwen2", "gemma2"]
GREEDY = Decoding(max_new_tokens=12, min_new_tokens=8)
DECODINGS = {
    "greedy": GREEDY,
    "sampling": Decoding(max_new_tokens=12, min_new_tokens=8, do_sample=True, top_p=0.9, num_return_sequences=3),
}


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(what: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(what) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Notes the operations of a call, and what was in the tensors that they wrote to."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, list[torch.Tensor]]] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.made: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "_local_scalar_dense" in str(func):
            raise RuntimeError("operation not permitted when stream is capturing\nand more of it")
        given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        for tensor in tensors_in([given.get(name) for name in written]):
            if storage(tensor) not in self.made and storage(tensor) not in self.before:
                whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                self.before[storage(tensor)] = (whole, whole.clone())
        output = func(*args, **kwargs)
        known = {storage(tensor) for tensor in tensors_in((args, kwargs))}
        new = [tensor for tensor in tensors_in(output) if storage(tensor) not in known]
        self.made |= {storage(tensor) for tensor in new}
        if written or new:
            self.operations.append((func, args, kwargs, [] if written else tensors_in(output)))
        return output


class Recorder:
    def __init__(self) -> None:
        self.replays: list[int] = []
        """For each recording."""

    def __call__(self, function: Any) -> Any:
        number, tape = len(self.replays), Tape()
        self.replays.append(0)
        with pytest.MonkeyPatch.context() as patch, tape:
            patch.setattr(import_utils, "is_cuda_stream_capturing", lambda: True)
            output = function()
        for place, value in tape.before.values():
            place.copy_(value)

        def replay() -> Any:
            self.replays[number] += 1
            for func, args, kwargs, places in tape.operations:
                values = tensors_in(func(*args, **kwargs))
                for place, value in zip(places, values if places else [], strict=True):
                    if place.data_ptr() != value.data_ptr():
                        place.copy_(value)
            return output

        return replay


def generate(policy: Any, source: Text, decoding: Decoding) -> list[list[int]]:
    torch.manual_seed(3)
    return policy.generate(source, decoding)


def sources(policy: Any, tiny_batch: Any) -> list[Text]:
    """Of several lengths; fewer, which has a recording of its own; and one, which has no padding."""
    batches = [tiny_batch(policy, size).source for size in (4, 2, 1)]
    assert not batches[0].keep_mask.all()
    assert batches[2].keep_mask.all()
    return batches


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_texts_are_plain_texts(tiny_policy, tiny_batch, kind, decoding, half):
    policy, recorder = tiny_policy(kind), Recorder()
    assert can_replay(policy.base)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        expected = [generate(policy, source, decoding) for source in sources(policy, tiny_batch)]
        policy.generator.replay_decoding(record=recorder)
        found = [generate(policy, source, decoding) for source in sources(policy, tiny_batch)]
    assert_alike(found, expected, half)
    assert len(recorder.replays) == 3
    assert min(recorder.replays) >= 5
    assert "forward" not in vars(policy.base.get_decoder())


def assert_alike(found: list[list[list[int]]], expected: list[list[list[int]]], half: bool) -> None:
    """In half precision sums differ in the last bits, and with them a token now and then, and all that follow it."""
    if not half:
        assert found == expected
        return
    for some, others in zip(found, expected, strict=True):
        assert len(some) == len(others)
        assert sum(a[:3] == b[:3] for a, b in zip(some, others, strict=True)) >= 0.6 * len(some)
        assert min(map(len, some)) >= 8


@pytest.mark.parametrize("many", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_few_tokens(tiny_policy, tiny_batch, kind, many):
    """Fewer than are needed for a recording, or as many."""
    policy, decoding, recorder = tiny_policy(kind), Decoding(max_new_tokens=many), Recorder()
    source = tiny_batch(policy, 3).source
    expected = generate(policy, source, decoding)
    policy.generator.replay_decoding(record=recorder)
    assert generate(policy, source, decoding) == expected


@pytest.mark.parametrize("window", [6, 14, 4096])
@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_layers_that_look_at_the_last_tokens_only(tiny_policy, tiny_batch, kind, window):
    """The window is smaller than the prompt, is reached while decoding, or never."""
    policy = tiny_policy(kind, config={"sliding_window": window})
    source = tiny_batch(policy, 4).source
    expected = generate(policy, source, GREEDY)
    policy.generator.replay_decoding(record=Recorder())
    assert generate(policy, source, GREEDY) == expected


def test_more_decoder_layers_than_encoder_layers(tiny_policy, tiny_batch):
    policy = tiny_policy("bart", config={"encoder_layers": 1, "decoder_layers": 3})
    source = tiny_batch(policy, 4).source
    expected = generate(policy, source, GREEDY)
    policy.generator.replay_decoding(record=Recorder())
    policy.base.generation_config.cache_implementation = "static"  # which is ours then
    assert generate(policy, source, GREEDY) == expected


def test_weights_may_change_between_two_batches(tiny_policy, tiny_batch):
    policy, plain = tiny_policy("llama"), tiny_policy("llama")
    policy.generator.replay_decoding(record=Recorder())
    source = tiny_batch(policy, 3).source
    texts = []
    for number in range(3):
        for model in (policy, plain):
            torch.manual_seed(number)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        texts.append(generate(policy, source, GREEDY))
        assert texts[-1] == generate(plain, source, GREEDY)
    assert texts[0] != texts[1]


def asks_the_device(module: Any, args: Any) -> None:
    args[0].sum().item()


def test_what_cannot_be_recorded_is_an_error(tiny_policy, tiny_batch):
    """A line, not all that CUDA says; running out of memory is something else."""
    policy = tiny_policy("llama")
    decoder, source = policy.base.get_decoder(), tiny_batch(policy, 3).source
    handle = decoder.layers[0].register_forward_pre_hook(asks_the_device)
    policy.generator.replay_decoding(record=Recorder())
    with pytest.raises(
        UserError, match=r"decoding step .* cannot be captured \(operation not .* capturing\): set cuda_graphs to false"
    ):
        generate(policy, source, GREEDY)
    handle.remove()

    def fail(function: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    policy.generator.replay_decoding(record=fail)
    with pytest.raises(torch.OutOfMemoryError):
        generate(policy, source, GREEDY)
    torch.manual_seed(3)
    assert Generator(policy.model, policy.tokens, policy.trunk).generate(source, GREEDY)  # which replays nothing


def test_arguments_that_a_recording_would_not_see_are_refused(tiny_policy):
    policy = tiny_policy("llama")
    decoder = policy.base.get_decoder()
    refused = pytest.raises(UserError, match="attention_mask=object cannot be captured")
    with replayed_steps(decoder, partial(as_attention_mask, policy.base), Recorder()), refused:
        decoder(input_ids=torch.ones(1, 1, dtype=torch.long), attention_mask=object())


def test_models_whose_steps_are_not_alike_are_not_replayed(tiny_policy, monkeypatch, caplog):
    policy = tiny_policy("llama")
    with pytest.raises(UserError, match="cuda_graphs needs a CUDA device, not cpu"):
        policy.generator.replay_decoding()
    monkeypatch.setattr(Generator, "device", torch.device("cuda"))
    policy.generator.replay_decoding()
    assert policy.generator.replays_decoding
    policy.base.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UserError, match="cannot replay the decoding of LlamaForCausalLM"):
        policy.generator.replay_decoding()
    policy.generator.replay_decoding(must=False)
    assert not policy.generator.replays_decoding
    assert "cannot replay the decoding" in caplog.text


def test_beams_are_not_replayed(tiny_policy, tiny_batch):
    policy, decoding = tiny_policy("bart"), Decoding(max_new_tokens=12, num_beams=3)
    source, recorder = tiny_batch(policy, 3).source, Recorder()
    expected = generate(policy, source, decoding)
    policy.generator.replay_decoding(record=recorder)
    assert generate(policy, source, decoding) == expected
    assert recorder.replays == []


def test_a_forward_of_its_own_comes_back(tiny_policy):
    """A decoder whose forward was replaced before (graphs of training) has that one again, also after an error."""
    policy = tiny_policy("llama")
    decoder = policy.base.get_decoder()
    own = decoder.forward = partial(type(decoder).forward, decoder)
    with suppress(KeyError), replayed_steps(decoder, partial(as_attention_mask, policy.base), Recorder()):
        assert isinstance(decoder.forward, ReplayedSteps)
        raise KeyError
    assert decoder.forward is own


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
@pytest.mark.parametrize("kind", ON_CUDA)
def test_texts_replayed_by_cuda_are_plain_texts(tiny_policy, tiny_batch, monkeypatch, kind, decoding, half):
    policy, calls = tiny_policy(kind).to("cuda"), []
    own = ReplayedSteps._recorded
    monkeypatch.setattr(ReplayedSteps, "_recorded", lambda *given: calls.append(own(*given)) or calls[-1])
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        expected = [generate(policy, source, decoding) for source in sources(policy, tiny_batch)]
        policy.generator.replay_decoding()
        found = [generate(policy, source, decoding) for source in sources(policy, tiny_batch)]
    assert_alike(found, expected, half)
    assert len(calls) == 3
