"""The policy never sees what it is asked for."""

from dataclasses import replace

import pytest
import torch

from semioffline.algorithm.masking import hide, mask_uniforms
from semioffline.algorithm.randomness import Randomness
from semioffline.methods.semi_offline import Method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

KINDS = ["bart", "t5", "t5_tied", "llama", "gpt2"]
RANDOMNESS = Randomness(seed=0, step=3)


def other_token(ids):
    """Another ordinary token for every id (the ordinary ones stand at 5 and above)."""
    return (ids - 5 + 17) % 150 + 5


def changed(batch, where):
    """The same batch with other tokens at `where`, in the static target and in the ground truth, which are one text."""
    ids = torch.where(where, other_token(batch.static.ids), batch.static.ids)
    return replace(batch, static=replace(batch.static, ids=ids), target=replace(batch.target, ids=ids.clone()))


def hidden_in(policy, batch, args):
    """Where the method's step will hide tokens."""
    uniforms = mask_uniforms(batch.static, batch.index, RANDOMNESS, "mask")
    return hide(batch.static, args.mask_rate, policy.tokens.mask_id, uniforms).hidden


def masked_logits(policy, batch, args, monkeypatch):
    """The logits that one step of the method draws from: what `predict` gives for the second row."""
    seen = []

    def predict(source, rows):
        seen.append(policy(source, rows))
        return seen[-1]

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(policy, "predict", predict)
        Method(args).step(policy, batch, Scorer(policy, RewardSet("length")), RANDOMNESS)
    [[target, masked]] = seen
    return target, masked


@pytest.fixture
def case(request, tiny_policy, tiny_batch, settings):
    kind, share_prompt = request.param
    policy = tiny_policy(kind, share_prompt=share_prompt)
    assert policy.share_prompt == share_prompt
    args = settings(num_samples=2, mask_rate=0.5, mle_mask_rate=0.0)
    return policy, tiny_batch(policy), args


CASES = [(kind, share) for kind in KINDS for share in (True, False)]
every_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c[0]}-{'shared' if c[1] else 'plain'}", indirect=True
)


@every_case
def test_hidden_tokens_change_no_logit_of_the_masked_row(case, monkeypatch):
    """p(. | o_t) with o_t = (x, y^M_<t): a function of the source and of the tokens shown, and of nothing else.

    All hidden tokens of the static target are changed. The ground truth, which runs beside it in the same forward pass
    (where rows share the prompt, in the same sequence), changes with it. Every logit at every hidden position stays the
    same, bit for bit; so K draws from it are draws of a policy that decided without knowing the answer.
    """
    policy, batch, args = case
    hidden = hidden_in(policy, batch, args)
    assert hidden.any(1).all()
    target, masked = masked_logits(policy, batch, args, monkeypatch)
    other_target, other_masked = masked_logits(policy, changed(batch, hidden), args, monkeypatch)
    assert len(masked) == hidden.sum()
    assert torch.equal(masked, other_masked)
    assert not torch.allclose(target, other_target, atol=1e-3)  # the ground truth's row does see them


@every_case
def test_a_shown_token_changes_the_logits_after_it_and_none_before(case, monkeypatch):
    """The control: o_t holds every shown token before t. Changing the one at s moves p(. | o_t) for t > s only."""
    policy, batch, args = case
    hidden = hidden_in(policy, batch, args)
    shown = batch.static.ordinary & ~hidden
    row, place = next(
        (b, s)
        for b, s in shown.nonzero().tolist()
        if hidden[b, :s].any() and hidden[b, s + 1 :].any()  # something is predicted before it and after it
    )
    where = torch.zeros_like(hidden)
    where[row, place] = True
    _, masked = masked_logits(policy, batch, args, monkeypatch)
    _, other = masked_logits(policy, changed(batch, where), args, monkeypatch)
    rows, positions = hidden.nonzero(as_tuple=True)
    after = (rows == row) & (positions > place)
    assert torch.equal(masked[~after], other[~after])
    moved = (masked - other).abs().amax(1)
    assert (moved[after] > 1e-4).all()


@every_case
def test_the_source_changes_the_logits(case, monkeypatch):
    """o_t holds the source: another prompt gives other distributions (and no other row's prompt does)."""
    policy, batch, args = case
    hidden = hidden_in(policy, batch, args)
    ids = batch.source.ids.clone()
    ids[0, 2] = other_token(ids[0, 2])
    _, masked = masked_logits(policy, batch, args, monkeypatch)
    _, other = masked_logits(policy, replace(batch, source=replace(batch.source, ids=ids)), args, monkeypatch)
    first = hidden.nonzero()[:, 0] == 0
    assert ((masked - other).abs().amax(1)[first] > 1e-4).all()
    assert torch.equal(masked[~first], other[~first])
