"""The variants of semi-offline RL, one switch each."""

from dataclasses import replace

import pytest
import torch

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Row
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.methods.shared.schedule import scheduled_rate
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer, Scores

K = 6
RANDOMNESS = Randomness(seed=0, step=3)
KINDS = ["bart", "t5", "llama"]
LAYOUTS = [("bart", True), ("bart", False), ("t5_tied", True), ("llama", True), ("llama", False)]


def other_token(ids):
    """Another ordinary token for every id (the ordinary ones stand at 5 and above)."""
    return (ids - 5 + 17) % 150 + 5


def uneven(completions, **kwargs):
    """A reward that differs from sample to sample."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


class Watched:
    """One step with everything that went by: rows and sources shown to the policy, the logits, the samples."""

    def __init__(self, policy, batch, args, monkeypatch, method=None, randomness=RANDOMNESS):
        self.calls, self.samples = [], None
        score, forward = Scorer(policy, RewardSet(uneven)), policy.forward

        def watch(source, rows, *more):
            self.calls.append((source, rows, forward(source, rows, *more)))
            return self.calls[-1][2]

        def scorer(samples, batch):
            self.samples = samples
            return score(samples, batch)

        before = policy.meter.counts.copy()
        with monkeypatch.context() as patch:
            patch.setattr(policy, "forward", watch)
            self.output = (method or load_method(args)).step(policy, batch, scorer, randomness)
        self.cost = policy.meter.counts - before

    @property
    def rl_rows(self):
        return [row for _, rows, _ in self.calls for row in rows if row.purpose == "rl"]

    @property
    def masked_logits(self):
        _, rows, logits = self.calls[-1]
        return torch.cat([z for row, z in zip(rows, logits, strict=True) if row.purpose == "rl"]).detach()


@pytest.fixture
def step(tiny_policy, tiny_batch, settings, monkeypatch):
    """step(kind, share_prompt=True, **settings) -> policy, batch, what was watched."""

    def run(kind="bart", share_prompt=True, **changes):
        policy = tiny_policy(kind, share_prompt=share_prompt)
        batch = tiny_batch(policy)
        args = settings(**({"num_samples": K, "mask_rate": 0.5, "mle_mask_rate": 0.0} | changes))
        return policy, batch, Watched(policy, batch, args, monkeypatch)

    return run


VARIANTS = [
    {},
    {"observation": "full"},
    {"observation": "no_mask"},
    {"observation": "no_mask", "mask_rate": 1.0},
    {"observation": "noisy"},
    {"observation": "all"},
    {"observation": "pre"},
    {"mask_pattern": "suffix"},
    {"mask_pattern": "span"},
    {"mask_rate_end": 0.9, "max_steps": 10},
    {"eos_after": 3},
    {"mask_pattern": "mixed", "loss_scale": "sequence"},
    {"eos_after": 3, "draw_end": True},
    {"estimator": "counterfactual"},
    {"estimator": "counterfactual", "eos_after": 3, "draw_end": True, "loss_scale": "sequence"},
    {"estimator": "counterfactual", "temperature": 1.5, "top_k": 20, "top_p": 0.9},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda c: "-".join(map(str, c.values())) or "default")
@pytest.mark.parametrize("kind", KINDS)
def test_every_variant_makes_a_step(step, kind, changes):
    """Finite losses, a gradient from the RL term alone, K complete samples a row, and K rows of the log."""
    policy, batch, watched = step(kind, **changes)
    mle, rl = watched.output.terms
    assert torch.isfinite(mle.total)
    assert torch.isfinite(rl.total)
    policy.zero_grad()
    rl.total.backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert all(torch.isfinite(g).all() for g in gradients)
    assert sum(g.abs().sum() for g in gradients) > 0
    assert watched.samples.ids.shape[:2] == (len(batch), K)
    ends = watched.samples.draws == policy.tokens.eos_id
    assert (policy.allowed[watched.samples.draws] | (ends if "eos_after" in changes else False)).all()
    assert not (watched.samples.ids == policy.tokens.mask_id).any()
    assert len(watched.output.completions()) == K * len(batch)


@pytest.mark.parametrize("changes", [{"observation": "full"}, {"observation": "no_mask"}])
def test_passes_without_gradient_leave_no_trace(tiny_policy, tiny_batch, settings, monkeypatch, changes):
    """They switch dropout off, and on again, and take nothing from torch's generator."""
    policy = tiny_policy("bart", config={"dropout": 0.1}).train()
    args = settings(num_samples=K, max_completion_length=12, **changes)
    state, seen = torch.get_rng_state(), []

    def predict(source, rows):
        assert all(module.training for module in policy.modules())
        seen.append(torch.get_rng_state())
        return policy(source, rows)

    monkeypatch.setattr(policy, "predict", predict)  # the pass with gradient comes last
    load_method(args).step(policy, tiny_batch(policy), Scorer(policy, RewardSet(uneven)), RANDOMNESS)
    assert len(seen) == 1
    assert torch.equal(seen[0], state)


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda c: "-".join(map(str, c.values())) or "default")
def test_every_variant_raises_the_reward(tiny_policy, tiny_batch, settings, changes):
    """The RL term alone, on one batch: the share of tokens with an even id, in the samples, goes up."""
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    method = load_method(settings(**({"num_samples": 16, "mask_rate": 0.5, "log_completions": False} | changes)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    rewards = []

    def score(samples, batch):
        rewards.append((samples.draws % 2 == 0).float().mean().item())
        even = (samples.ids % 2 == 0) & samples.keep_mask[:, None]
        return Scores(even.sum(2) / samples.keep_mask.sum(1)[:, None], {}, list)

    for step in range(12):
        with policy.through(policy):  # as in the trainer
            output = method.step(policy, batch, score, Randomness(0, step))
        optimizer.zero_grad()
        output.terms[1].total.backward()
        optimizer.step()
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


@pytest.mark.parametrize("mask_rate", [0.0, 1.0])
@pytest.mark.parametrize("observation", ["masked", "full", "no_mask", "noisy", "all", "pre"])
def test_the_edges_of_the_mask_rate(step, observation, mask_rate):
    """p_m = 0 leaves the static target and a loss of zero; p_m = 1 decides every ordinary token."""
    _, batch, watched = step(observation=observation, mask_rate=mask_rate)
    assert watched.output.metrics["mask_rate"] == mask_rate
    assert len(watched.samples.draws) == (batch.static.ordinary.sum() if mask_rate else 0)
    if mask_rate == 0:
        assert torch.equal(watched.samples.ids, batch.static.ids[:, None].expand_as(watched.samples.ids))
        assert watched.output.terms[1].total.item() == 0
    else:
        assert torch.isfinite(watched.output.terms[1].total)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, 1),
        ({"observation": "no_mask"}, 2),
        ({"observation": "noisy"}, 1),
        ({"observation": "all"}, 1),
        ({"observation": "pre"}, 1),
        ({"mask_pattern": "span"}, 1),
    ],
)
def test_what_a_variant_costs(step, changes, passes):
    """FP, counted by the meter: one, two for scheduled sampling."""
    _, batch, watched = step(**changes)
    assert watched.cost["rl_rows"] == passes * len(batch)
    assert watched.cost["mle_rows"] == len(batch)
    assert watched.cost["grad_rows"] == 0


# ---- what is shown ----


@pytest.mark.parametrize("mask_rate", [0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_without_masks_the_mask_token_is_never_shown(step, kind, mask_rate):
    """-Mask: pass one sees the static target, pass two that target with the model's own predictions in it."""
    policy, batch, watched = step(kind, observation="no_mask", mask_rate=mask_rate)
    first, second = watched.rl_rows
    assert torch.equal(first.ids, batch.static.ids)
    assert not (second.ids == policy.tokens.mask_id).any()
    assert torch.equal(second.ids[~second.wanted], batch.static.ids[~second.wanted])
    assert policy.allowed[second.ids[second.wanted]].all()
    assert (second.ids != first.ids).any()
    assert torch.equal(first.wanted, second.wanted)


def test_predictions_follow_the_distribution_of_the_first_pass(step):
    """At a temperature near 0 the prediction shown at t is the likeliest token after the static tokens before t."""
    policy, _, watched = step(observation="no_mask", temperature=1e-4)
    logits = watched.calls[0][2][0].masked_fill(~policy.allowed, -torch.inf)
    shown = watched.rl_rows[1]
    assert torch.equal(shown.ids[shown.wanted], logits.argmax(1))


def test_a_noisy_mask_shows_part_of_the_tokens_that_are_replaced(step):
    policy, batch, watched = step(observation="noisy", noise_rate=0.5, mask_rate=1.0)
    [row] = watched.rl_rows
    masked = row.ids[row.wanted] == policy.tokens.mask_id
    assert 0.2 < masked.float().mean() < 0.8
    assert torch.equal(row.ids[row.wanted][~masked], batch.static.ids[row.wanted][~masked])
    assert len(watched.samples.draws) == row.wanted.sum() == batch.static.ordinary.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_all_appends_the_static_target_to_the_source_of_the_masked_row_only(step, kind):
    policy, batch, watched = step(kind, observation="all")
    (plain, [target], _), (source, [masked], _) = watched.calls
    assert (target.purpose, masked.purpose) == ("mle", "rl")
    assert plain is batch.source
    for b in range(len(batch)):
        whole = source.ids[b][source.keep_mask[b]].tolist()
        own = batch.source.ids[b][batch.source.keep_mask[b]].tolist()
        static = batch.static.ids[b][batch.static.keep_mask[b]].tolist()
        separator = [] if own[-1] == policy.tokens.eos_id else [policy.tokens.eos_id]
        assert whole == own + separator + static


def test_all_says_so_when_the_target_does_not_fit_behind_the_source(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart", config={"max_position_embeddings": 28})
    args = settings(num_samples=K, observation="all")
    with pytest.raises(UserError, match=r"28 positions.*max_prompt_length"):
        load_method(args).step(policy, tiny_batch(policy), Scorer(policy, RewardSet(uneven)), RANDOMNESS)


@pytest.mark.parametrize("observation", ["masked", "pre"])
@pytest.mark.parametrize(("kind", "share_prompt"), LAYOUTS)
def test_pre_sees_the_hidden_tokens_before_it_and_masked_sees_none(
    tiny_policy, tiny_batch, settings, monkeypatch, kind, share_prompt, observation
):
    """Changing the token at a hidden position s: +PRE moves the logits at the hidden positions after s, and only
    those; the paper's observation moves nothing. The target's row stays as it is in both."""
    policy = tiny_policy(kind, share_prompt=share_prompt)
    batch = tiny_batch(policy)
    args = settings(num_samples=2, mask_rate=0.5, observation=observation)
    first = Watched(policy, batch, args, monkeypatch)
    hidden = first.rl_rows[0].wanted
    row = int(hidden.sum(1).argmax())
    place = hidden[row].nonzero()[0, 0]
    ids = batch.static.ids.clone()
    ids[row, place] = other_token(ids[row, place])
    second = Watched(policy, replace(batch, static=replace(batch.static, ids=ids)), args, monkeypatch)
    assert torch.equal(first.calls[-1][2][0], second.calls[-1][2][0])
    rows, positions = hidden.nonzero(as_tuple=True)
    after = (rows == row) & (positions > place)
    moved = (first.masked_logits - second.masked_logits).abs().amax(1)
    assert after.any()
    assert (moved[~after] == 0).all()
    assert ((moved[after] > 1e-4) if observation == "pre" else (moved[after] == 0)).all()


@pytest.mark.parametrize(("kind", "share_prompt"), [*LAYOUTS, ("bart_scaled", True)])
def test_pre_adds_the_tokens_embedding_to_that_of_the_mask(
    tiny_policy, tiny_batch, settings, monkeypatch, kind, share_prompt
):
    """Embedding([M]) becomes Embedding([M]) + Embedding(y_t): the same logits as from a table whose row [M] is that
    sum, which one hidden token for all (here: one word in place of every hidden one) makes possible."""
    config = {"scale_embedding": kind == "bart_scaled"} if kind.startswith("bart") else {}
    policy = tiny_policy(kind.removesuffix("_scaled"), share_prompt=share_prompt, config=config)
    batch = tiny_batch(policy)
    ids = torch.where(batch.static.ordinary, 50, batch.static.ids)
    batch = replace(batch, static=replace(batch.static, ids=ids))
    found = Watched(policy, batch, settings(num_samples=2, mask_rate=0.5, observation="pre"), monkeypatch)
    table = policy.base.get_decoder().get_input_embeddings().weight
    head = policy.base.get_output_embeddings().weight
    with torch.no_grad():
        table[policy.tokens.mask_id] += table[50]
    expected = Watched(policy, batch, settings(num_samples=2, mask_rate=0.5), monkeypatch)
    same = slice(None) if head is not table else [v for v in range(len(head)) if v != policy.tokens.mask_id]
    torch.testing.assert_close(found.masked_logits[:, same], expected.masked_logits[:, same], rtol=1e-4, atol=1e-4)


# ---- masks ----


def test_the_mask_rate_follows_its_schedule():
    assert [scheduled_rate(0.2, 0.8, step, 4) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert scheduled_rate(0.2, None, 100, 0) == 0.2


def test_without_max_steps_the_schedule_counts_the_steps_of_all_epochs(settings, tiny_policy, tiny_batch):
    args = settings(
        mask_rate=0.0,
        mask_rate_end=1.0,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    method, policy = load_method(args), tiny_policy("bart")
    batch = tiny_batch(policy)
    with pytest.raises(UserError, match="max_steps"):
        method.observe(policy, batch, batch.static, Randomness(0, 0))
    method.prepare(policy, range(21))  # 6 batches, 3 steps an epoch
    assert method.total_steps == 9
    assert torch.equal(method.observe(policy, batch, batch.static, Randomness(0, 8)).hidden, batch.static.ordinary)


@pytest.mark.parametrize("pattern", ["mixed", "suffix", "span"])
def test_a_row_is_treated_alike_in_every_batch(tiny_policy, tiny_batch, settings, monkeypatch, pattern):
    """Masks and draws are keyed by the example: alone (without padding) it gets the samples that it gets in a batch."""
    policy = tiny_policy("bart", dtype=torch.float64)
    args = settings(num_samples=K, mask_rate=0.5, mask_pattern=pattern, observation="no_mask")
    together = Watched(policy, tiny_batch(policy, 4), args, monkeypatch).samples
    alone = Watched(policy, tiny_batch(policy, 1), args, monkeypatch).samples
    length = int(alone.keep_mask.sum())
    assert torch.equal(alone.ids[0, :, :length], together.ids[0, :, :length])


# ---- settings ----


def test_all_problems_of_the_variants_are_told_at_once(settings):
    wrong = {"observation": "sideways", "num_samples": 1, "noise_rate": 2.0}
    wrong |= {"mask_span": 0.5, "mask_rate_end": -0.1}
    with pytest.raises(UserError) as caught:
        settings(**wrong)
    message = str(caught.value)
    for part in ("observation='sideways'", "num_samples=1", "noise_rate=2.0", "mask_span=0.5", "mask_rate_end=-0.1"):
        assert part in message
    with pytest.raises(UserError, match="draw_end needs eos_after"):
        settings(draw_end=True)
    with pytest.raises(UserError, match="random, suffix, span"):
        settings(mask_pattern="stripes")
    with pytest.raises(UserError, match="baseline of its own"):
        settings(estimator="counterfactual", scale_rewards=True)


# ---- samples that end early ----


@pytest.mark.parametrize("kind", KINDS)
def test_samples_end_where_the_end_token_was_drawn(tiny_policy, tiny_batch, settings, monkeypatch, kind):
    """A policy that wants to stop everywhere stops at the first hidden position that `eos_after` allows, and the reward
    function reads what stands before it."""
    policy = tiny_policy(kind)
    batch, end, seen = tiny_batch(policy), policy.tokens.eos_id, []
    forward = policy.forward

    def stop(source, rows, *more):
        logits = forward(source, rows, *more)
        for z in logits:
            z.data[:, end] = 50.0
        return logits

    def reward(completions, completion_ids, **kwargs):
        seen.extend(zip(completions, completion_ids, strict=True))
        return uneven(completions)

    reward.deterministic = False  # to see every sample
    monkeypatch.setattr(policy, "forward", stop)
    args = settings(num_samples=K, mask_rate=0.5, eos_after=3)
    load_method(args).step(policy, batch, Scorer(policy, RewardSet(reward)), RANDOMNESS)
    observation = load_method(args).observe(policy, batch, batch.static, RANDOMNESS)
    shortened = 0
    for n, (text, ids) in enumerate(seen):
        static = batch.static.ids[n // K][batch.static.keep_mask[n // K]].tolist()
        ordinary = batch.static.ordinary[n // K]
        late = [t for t in observation.hidden[n // K].nonzero()[:, 0].tolist() if ordinary[:t].sum() >= 3]
        length = late[0] + 1 if late else len(static)
        shortened += length < len(static)
        assert len(ids) == length
        assert ids[-1] == end
        assert end not in ids[:-1]
        assert text == policy.tokens.decode([ids])[0]
    assert shortened


def test_the_end_token_is_not_drawn_before_eos_after(step):
    policy, batch, watched = step("bart", eos_after=4, temperature=50.0, mask_rate=0.9, num_samples=64)
    ordinary = batch.static.ordinary
    before = (ordinary.cumsum(1) - ordinary.long())[watched.samples.hidden]
    ends = (watched.samples.draws == policy.tokens.eos_id).any(1)
    assert not ends[before < 4].any()
    assert ends[before >= 4].any()


@pytest.mark.parametrize("pattern", ["random", "span", "suffix", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_static_target_is_drawn_too(step, kind, pattern):
    """Where so many tokens precede it. What is drawn there in its place comes behind the text."""
    policy, batch, watched = step(kind, eos_after=6, draw_end=True, temperature=50.0, mask_pattern=pattern)
    static, end = batch.static, policy.tokens.eos_id
    last = static.keep_mask.sum(1) - 1
    there = watched.samples.hidden[torch.arange(len(batch)), last]
    assert torch.equal(there, static.ordinary.sum(1) >= 6)
    assert there.any()
    lists = [row for n, row in enumerate(watched.samples.token_lists()) if there[n // K]]
    assert any(row[-1] != end for row in lists)
    assert watched.output.metrics["mask_rate"] == pytest.approx(
        (watched.samples.hidden & static.ordinary).sum() / static.ordinary.sum()
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_reward_for_length_moves_the_end(tiny_policy, tiny_batch, settings, monkeypatch, sign):
    """log p(EOS) at the end of the static targets falls where longer texts are better, and rises where they are
    worse. Nothing else is hidden here."""
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    row = Row(batch.static.ids, batch.static.keep_mask, batch.static.ids == policy.tokens.eos_id)
    row.wanted[:, 0] = False  # BART's targets begin with one
    forward, end = policy.forward, policy.tokens.eos_id
    wish = 5.0 * (torch.arange(policy.base.get_output_embeddings().out_features) == end)  # it ends every other time
    monkeypatch.setattr(policy, "forward", lambda *given: [z + wish for z in forward(*given)])

    def at_the_end() -> float:
        with torch.no_grad():
            return policy(batch.source, [row])[0].log_softmax(1)[:, end].mean().item()

    def length(completions, completion_ids, **kwargs):
        return [sign * float(len(policy.tokens.decode([ids])[0])) for ids in completion_ids]

    args = settings(num_samples=32, mask_rate=0.0, eos_after=2, draw_end=True, mle_mask_rate=0.0)
    method, optimizer, before = load_method(args), torch.optim.Adam(policy.parameters(), lr=3e-3), at_the_end()
    for n in range(10):
        output = method.step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, n))
        optimizer.zero_grad()
        output.terms[1].total.backward()
        optimizer.step()
    assert sign * (at_the_end() - before) < -0.5


def test_a_reward_for_short_texts_makes_samples_shorter(tiny_policy, tiny_batch, settings):
    """Without eos_after their length cannot change."""
    policy = tiny_policy("bart")
    batch, lengths = tiny_batch(policy), []

    def short(completions, completion_ids, **kwargs):
        lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return [-float(len(ids)) for ids in completion_ids]

    args = settings(num_samples=16, mask_rate=0.8, eos_after=2, mle_mask_rate=0.0)
    method, optimizer = load_method(args), torch.optim.Adam(policy.parameters(), lr=3e-3)
    for n in range(25):
        output = method.step(policy, batch, Scorer(policy, RewardSet(short)), Randomness(0, n))
        optimizer.zero_grad()
        output.terms[1].total.backward()
        optimizer.step()
    assert sum(lengths[-3:]) < 0.8 * sum(lengths[:3])
