"""Generation whose steps are recorded. A recorder for the CPU stands for CUDA's: as there, recording runs nothing, and
what a replay gives lies always in one place."""

from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch

from semioffline import generation
from semioffline.decoding import Decoding
from semioffline.errors import UserError
from semioffline.replayed_steps import ReplayedSteps, replayed_steps

KINDS = ["bart", "t5", "llama", "gpt2"]
DECODINGS = {
    "greedy": Decoding(max_new_tokens=12, min_new_tokens=8),
    "sampling": Decoding(max_new_tokens=12, min_new_tokens=8, do_sample=True, top_p=0.9, num_return_sequences=3),
}


class Recorder:
    def __init__(self) -> None:
        self.replays: list[int] = []
        """For each recording."""

    def __call__(self, function: Any) -> Any:
        number, made = len(self.replays), []
        self.replays.append(0)

        def replay() -> Any:
            self.replays[number] += 1
            output = function()
            if made:
                made[0].last_hidden_state.copy_(output.last_hidden_state)
            made[:] = made or [output]
            return made[0]

        return replay


def generate(policy: Any, batch: Any, decoding: Decoding) -> list[list[int]]:
    torch.manual_seed(3)
    return policy.generate(batch.source, decoding)


def recorded_by(monkeypatch: Any, recorder: Any) -> None:
    monkeypatch.setattr(generation, "replayed_steps", partial(replayed_steps, record=recorder))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_texts_are_plain_texts(tiny_policy, tiny_batch, monkeypatch, kind, decoding, half):
    """Prompts of several lengths; the second batch is smaller and has a recording of its own."""
    policy, recorder = tiny_policy(kind), Recorder()
    batches = [tiny_batch(policy, 4), tiny_batch(policy, 2)]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        expected = [generate(policy, batch, decoding) for batch in batches]
        recorded_by(monkeypatch, recorder)
        policy.replays_decoding = True
        found = [generate(policy, batch, decoding) for batch in batches]
    assert_alike(found, expected, half)
    assert len(recorder.replays) == 2
    assert min(recorder.replays) >= 5
    assert "forward" not in vars(policy.base.get_decoder())


def assert_alike(found: list[list[list[int]]], expected: list[list[list[int]]], half: bool) -> None:
    """In half precision sums differ in the last bits, and with them a token now and then."""
    pairs = zip(chain(*found), chain(*expected), strict=True)
    same = [a == b for one, other in pairs for a, b in zip(one, other, strict=False)]
    assert sum(same) >= (0.5 if half else 1) * len(same)


def test_what_cannot_be_recorded_is_an_error(tiny_policy, tiny_batch, monkeypatch):
    policy = tiny_policy("llama")
    policy.replays_decoding = True

    def fail(function: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    recorded_by(monkeypatch, fail)
    with pytest.raises(
        UserError, match=r"cuda_graphs: a decoding step .* cannot be recorded .*operation not permitted"
    ):
        generate(policy, tiny_batch(policy, 3), DECODINGS["greedy"])
    policy.replays_decoding = False
    assert generate(policy, tiny_batch(policy, 3), DECODINGS["greedy"])


def test_a_cpu_has_no_graphs(tiny_policy):
    with pytest.raises(UserError, match="cuda_graphs needs a CUDA device, not cpu"):
        tiny_policy("bart").replay_decoding()


def test_beams_are_not_replayed(tiny_policy, tiny_batch, monkeypatch):
    policy, decoding = tiny_policy("bart"), Decoding(max_new_tokens=12, num_beams=3)
    batch, recorder = tiny_batch(policy, 3), Recorder()
    expected = generate(policy, batch, decoding)
    recorded_by(monkeypatch, recorder)
    policy.replays_decoding = True
    assert generate(policy, batch, decoding) == expected
    assert recorder.replays == []


def test_a_forward_of_its_own_comes_back(tiny_policy):
    """A decoder whose forward was replaced before (graphs of training) has that one again, also after an error."""
    decoder = tiny_policy("llama").base.get_decoder()
    own = decoder.forward = partial(type(decoder).forward, decoder)
    with suppress(KeyError), replayed_steps(decoder, Recorder()):
        assert isinstance(decoder.forward, ReplayedSteps)
        raise KeyError
    assert decoder.forward is own


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_replayed_by_cuda_are_plain_texts(tiny_policy, tiny_batch, kind, decoding, half):
    policy = tiny_policy(kind).to("cuda")
    batches = [tiny_batch(policy, 4), tiny_batch(policy, 2)]
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        expected = [generate(policy, batch, decoding) for batch in batches]
        policy.replays_decoding = True
        found = [generate(policy, batch, decoding) for batch in batches]
    assert_alike(found, expected, half)
