"""What the meter books, against counts made by hand."""

import pytest
import torch
from torch import nn

from semioffline.algorithm.tensors import Row
from semioffline.policy.decoding import Decoding
from semioffline.policy.meter import Meter


class Part(nn.Module):
    def forward(self, input_ids=None, inputs_embeds=None):
        return input_ids


@pytest.fixture
def parts():
    decoder, encoder = Part(), Part()
    return decoder, encoder, Meter(decoder, encoder)


def test_announced_rows_are_booked_by_purpose_however_they_are_packed(parts):
    decoder, _, meter = parts
    with meter.announce(["mle", "rl", "rl"], batch_size=4):
        decoder(input_ids=torch.zeros(4, 30))  # three rows of each example in one sequence
    assert meter.counts == {"calls": 1, "tokens": 120, "mle_rows": 4, "rl_rows": 8}


def test_calls_that_nobody_announced_count_as_rl_rows(parts):
    decoder, _, meter = parts
    decoder(torch.zeros(3, 7))
    decoder(inputs_embeds=torch.zeros(3, 1, 16))
    assert meter.counts == {"calls": 2, "tokens": 24, "rl_rows": 6}


def test_an_announcement_ends_with_its_block_even_on_an_error(parts):
    decoder, _, meter = parts
    with pytest.raises(RuntimeError, match="out of memory"), meter.announce(["mle"], batch_size=4):
        raise RuntimeError("out of memory")
    decoder(torch.zeros(2, 5))
    assert meter.counts["rl_rows"] == 2
    assert meter.counts["mle_rows"] == 0


def test_encoder_rows_are_booked_apart(parts):
    _, encoder, meter = parts
    encoder(input_ids=torch.zeros(4, 9))
    assert meter.counts == {"encoder_rows": 4, "tokens": 36}


def test_nothing_is_booked_while_paused_also_when_pauses_are_nested(parts):
    decoder, encoder, meter = parts
    with meter.paused():
        with meter.paused():
            decoder(torch.zeros(2, 5))
        decoder(torch.zeros(2, 5))
        encoder(torch.zeros(2, 5))
    assert not meter.counts
    decoder(torch.zeros(2, 5))
    assert meter.counts["calls"] == 1


def test_per_input_divides_by_the_inputs_seen(parts):
    decoder, encoder, meter = parts
    for _ in range(3):
        encoder(input_ids=torch.zeros(4, 9))
        with meter.announce(["mle", "rl"], batch_size=4):
            decoder(input_ids=torch.zeros(8, 10))
        meter.add_inputs(4)
    rows = {"forward_passes": 1, "mle_rows": 1, "grad_rows": 0, "encoder_rows": 1}
    assert meter.per_input() == {**rows, "calls": 0.25, "tokens": 9 + 20}


def test_methods_without_an_rl_row_count_their_mle_row(parts):
    decoder, _, meter = parts
    with meter.announce(["mle"], batch_size=4):
        decoder(torch.zeros(4, 10))
    meter.add_inputs(4)
    assert meter.per_input()["forward_passes"] == 1


def test_a_meter_that_saw_nothing_can_be_read(parts):
    assert set(parts[2].per_input().values()) == {0}


@pytest.mark.parametrize("kind", ["bart", "t5", "llama", "gpt2"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_generated_token_is_one_forward_pass_for_every_row_and_beam(tiny_policy, tiny_batch, kind, beams):
    policy = tiny_policy(kind)
    batch = tiny_batch(policy, 3)
    policy.generate(batch.source, Decoding(num_beams=beams, min_new_tokens=5, max_new_tokens=5))
    assert policy.meter.counts["calls"] == 5
    assert policy.meter.counts["rl_rows"] == 5 * 3 * beams
    assert policy.meter.counts["mle_rows"] == 0
    assert policy.meter.counts["encoder_rows"] == (3 if policy.is_encoder_decoder else 0)


@pytest.mark.parametrize("share_prompt", [True, False])
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_policy_books_its_rows_and_the_tokens_that_it_really_runs(tiny_policy, tiny_batch, kind, share_prompt):
    policy = tiny_policy(kind, share_prompt=share_prompt)
    batch = tiny_batch(policy, 4)
    keep = batch.target.keep_mask
    rows = [Row(batch.target.ids, keep, keep, purpose) for purpose in ("mle", "rl")]
    policy.predict(batch.source, rows)
    prompts, targets = batch.source.keep_mask.sum(1), keep.sum(1)
    if kind == "bart":
        tokens = batch.source.ids.numel() + 2 * batch.target.ids.numel()
    elif share_prompt:
        tokens = 4 * int((prompts + 2 * (targets - 1)).max())
    else:
        tokens = 2 * 4 * int((prompts + targets - 1).max())
    expected = {"calls": 1, "mle_rows": 4, "rl_rows": 4, "tokens": tokens}
    assert policy.meter.counts == expected | ({"encoder_rows": 4} if kind == "bart" else {})


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_recomputation_for_the_gradient_is_not_a_forward_pass_that_samples(tiny_policy, tiny_batch, kind):
    counts = []
    for checkpointing in (False, True):
        policy = tiny_policy(kind).train()
        if checkpointing:
            policy.gradient_checkpointing_enable()
        batch = tiny_batch(policy)
        [logits] = policy.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, batch.target.keep_mask)])
        logits.sum().backward()
        counts.append(policy.meter.counts)
    assert counts[0] == counts[1]
