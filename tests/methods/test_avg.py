"""AVG: on-policy samples, their probabilities, the loss, the cost."""

from dataclasses import replace

import pytest
import torch

from semioffline.algorithm import sampling
from semioffline.algorithm.losses import reward_to_go, text_scores, token_log_p
from semioffline.algorithm.randomness import Randomness
from semioffline.errors import UserError
from semioffline.methods.shared.on_policy import rows_of, sample_texts, sampled_log_p, sampled_row
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer


def vowels(completions, **kwargs):
    """Some number that differs from text to text."""
    return [float(sum(text.count(v) for v in "aeiou") % 7) for text in completions]


def discovers(completions, **kwargs):
    return [float("discover" in text.split()) for text in completions]


def run(policy, batch, args, reward=vowels):
    method = load_method(args)
    method.prepare(policy, [])
    return method.step(policy, batch, Scorer(policy, RewardSet(reward)), Randomness(0, 3))


def test_text_scores_by_hand():
    """Texts of 2, 0 and 1 positions: (1 + 2) / 2**2, nothing, 5 / 1."""
    scores = text_scores(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 2]), 3, alpha=2.0)
    assert scores.tolist() == [0.75, 0.0, 5.0]


def test_token_log_p_leaves_out_what_is_minus_infinity():
    log_p = token_log_p(torch.tensor([[0.0, 0.0, -torch.inf]]), torch.tensor([1]))
    assert log_p.item() == pytest.approx(torch.tensor(0.5).log().item())


def test_reward_to_go_stops_at_its_horizon():
    q = reward_to_go(torch.tensor([[1.0, 2.0, 4.0]]), horizon=1, discount=0.5, after_end=10.0)
    assert q.tolist() == [[pytest.approx(2 / 1.5), pytest.approx(4 / 1.5), pytest.approx(9 / 1.5)]]


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_an_example_has_the_same_samples_in_every_batch(tiny_policy, tiny_batch, settings, kind):
    """Beside others, and with a limit that cuts them: the numbers they are drawn with are its own."""
    policy, randomness = tiny_policy(kind), Randomness(0, 3)
    args = settings("avg", max_completion_length=9)
    texts = sample_texts(policy, tiny_batch(policy, 4), args, randomness, 3)
    assert sample_texts(policy, tiny_batch(policy, 2), args, randomness, 3) == texts[:6]
    short = sample_texts(policy, tiny_batch(policy, 4), settings("avg", max_completion_length=5), randomness, 3)
    assert short == [text[:5] for text in texts]
    assert len(set(map(tuple, texts))) == 12
    assert sample_texts(policy, tiny_batch(policy, 4), args, Randomness(0, 4), 3) != texts


@pytest.mark.parametrize("scale", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_the_loss_is_what_a_loop_over_samples_gives(tiny_policy, tiny_batch, settings, kind, scale):
    """L_RL = sum_k -(R_k - b) / |y_k|**alpha * sum_t log p(y_t | x, y_<t), each text through the bare model alone."""
    policy = tiny_policy(kind)
    batch = tiny_batch(policy, 3)
    args = settings("avg", num_samples=3, length_alpha=0.7, temperature=1.3, loss_scale=scale, max_completion_length=9)
    output = run(policy, batch, args)
    texts = sample_texts(policy, batch, args, Randomness(0, 3), 3)
    rewards = torch.tensor(vowels(policy.tokens.decode(texts))).view(3, 3)
    expected = 0.0
    for n, ids in enumerate(texts):
        source = batch.source.ids[n // 3][batch.source.keep_mask[n // 3]]
        with torch.no_grad():
            if policy.is_encoder_decoder:
                shown = torch.tensor([[policy.config.decoder_start_token_id, *ids[:-1]]])
                logits = policy.model(input_ids=source[None], decoder_input_ids=shown).logits[0]
            else:
                logits = policy.model(input_ids=torch.cat([source, torch.tensor(ids)])[None]).logits[0]
                logits = logits[len(source) - 1 : -1]
        z = logits / 1.3
        z[:, policy.tokens.mask_id] = -torch.inf
        log_p = z.log_softmax(1)[range(len(ids)), ids].sum()
        advantage = rewards[n // 3, n % 3] - rewards[n // 3].mean()
        expected -= advantage * log_p / len(ids) ** 0.7
    found = {term.name: term for term in output.terms}
    assert set(found) == {"mle", "rl"}
    assert found["rl"].total.item() == pytest.approx(expected.item() / (3 if scale == "sequence" else 1), rel=1e-4)
    assert found["rl"].total.requires_grad
    assert len(output.completions()) == 9


def test_restricted_draws_are_normalised_over_what_could_be_drawn(tiny_policy, tiny_batch, settings):
    """top_k=1 draws greedily: every probability is 1."""
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    args = settings("avg", top_k=1, max_completion_length=8)
    texts = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    row = sampled_row(policy, batch, texts, args.max_completion_length)
    [logits] = policy.predict(batch.source, [row])
    log_p = sampled_log_p(policy, logits, row, args)
    assert torch.allclose(log_p, torch.zeros_like(log_p), atol=1e-6)
    assert len(log_p) == len(rows_of(row)) == int(row.keep_mask.sum())


@pytest.mark.parametrize("own", [{}, {"repetition_penalty": 1.3}, {"suppress_tokens": list(range(10, 60))}])
def test_log_p_is_that_of_the_distribution_drawn_from(tiny_policy, tiny_batch, settings, monkeypatch, own):
    """Also where the model's own settings of generation would penalise or suppress tokens."""
    policy = tiny_policy("llama")
    for name, value in own.items():
        setattr(policy.base.generation_config, name, value)
    batch, args, seen = tiny_batch(policy), settings("avg", max_completion_length=12), []

    def draw(probabilities, uniforms):
        ids = real(probabilities, uniforms)
        seen.append(probabilities.gather(1, ids).log().squeeze(1))
        return ids

    real = sampling.invert
    monkeypatch.setattr(sampling, "invert", draw)
    texts = sample_texts(policy, batch, args, Randomness(0, 0), 1)
    row = sampled_row(policy, batch, texts, args.max_completion_length)
    [logits] = policy.predict(batch.source, [row])
    drawn = torch.stack(seen, dim=1)
    expected = torch.cat([drawn[b, : len(text)] for b, text in enumerate(texts)])
    torch.testing.assert_close(sampled_log_p(policy, logits, row, args), expected, rtol=1e-4, atol=1e-4)


def test_forced_tokens_are_nobodys_choice(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    policy.base.generation_config.forced_bos_token_id = 0
    policy.base.generation_config.forced_eos_token_id = 2
    batch = tiny_batch(policy)
    args = settings("avg", max_completion_length=4)
    row = sampled_row(policy, batch, [[0, 7, 8, 2], [0, 7, 2], [0, 9, 9, 2], [0, 2]], args.max_completion_length)
    assert row.wanted.tolist() == [
        [False, True, True, False],
        [False, True, True, False],
        [False, True, True, False],
        [False, True, False, False],
    ]


def test_samples_are_keyed_by_seed_step_and_batch(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    args = settings("avg", max_completion_length=8)
    state = torch.get_rng_state()
    first = sample_texts(policy, batch, args, Randomness(0, 0), 3)
    assert torch.equal(state, torch.get_rng_state()), "the global random state must stay as it was"
    torch.rand(5)
    assert sample_texts(policy, batch, args, Randomness(0, 0), 3) == first
    assert sample_texts(policy, batch, args, Randomness(0, 1), 3) != first
    assert sample_texts(policy, batch, args, Randomness(1, 0), 3) != first
    other = replace(batch, index=batch.index + 1)
    assert sample_texts(policy, other, args, Randomness(0, 0), 3) != first


@pytest.mark.parametrize(
    ("name", "passes", "grad"), [("avg", 3 * 6, 3), ("self_critic", 2 * 6, 1), ("actor_critic", 6, 1)]
)
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_forward_passes_are_samples_times_length(tiny_policy, tiny_batch, settings, kind, name, passes, grad):
    """Six tokens each, since EOS is suppressed. FP: avg K * T, actor_critic T, self_critic 2 T with the greedy one."""
    policy = tiny_policy(kind)
    policy.base.generation_config.suppress_tokens = [2]
    batch = tiny_batch(policy)
    own = {"num_samples": 3} if name == "avg" else {}
    run(policy, batch, settings(name, max_completion_length=6, **own))
    policy.meter.add_inputs(len(batch))
    cost = policy.meter.per_input()
    assert cost["forward_passes"] == passes
    assert cost["grad_rows"] == grad
    assert cost["mle_rows"] == 1


def test_samples_without_reward_count_nothing(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    for name in ("avg", "self_critic", "actor_critic"):
        args = settings(name, max_completion_length=6, **({"num_samples": 2} if name == "avg" else {}))
        output = run(policy, batch, args, lambda completions, **kwargs: [None] * len(completions))
        others = [term.total.item() for term in output.terms if term.name != "mle"]
        assert others == [0.0] * len(others)


def test_it_finds_the_reward(learnt, ads_examples, settings, short_training, sampled_reward):
    args = settings("avg", num_samples=4, max_completion_length=24, rl_weight=5.0)
    before = sampled_reward(learnt, ads_examples, args, discovers)
    short_training(learnt, load_method(args), ads_examples, steps=15, lr=1e-3, reward=discovers)
    assert sampled_reward(learnt, ads_examples, args, discovers) > before + 0.2


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("avg", "length_alpha", -1),
        ("brio", "ranking_margin", -0.1),
        ("gold", "gold_floor", 2.0),
        ("gold", "gold_reward", "q"),
        ("actor_critic", "critic_weight", -1),
        ("actor_critic", "critic_role", "judge"),
        ("grpo", "epsilon", 0.0),
        ("ppo", "num_iterations", 0),
        ("ilql", "expectile", 1.5),
        ("semi_offline", "kl_weight", -0.1),
    ],
)
def test_wrong_settings_are_told(settings, method, name, value):
    with pytest.raises(UserError, match=name):
        settings(method, **{name: value})
