"""ERPO, RAML and SPG: weights by enumeration, the loss by a loop, the special cases, the cost."""

import itertools
import math

import pytest
import torch
from tests.reference import assert_same_gradient, log_p_alone, token_log_p_alone

from semioffline.algorithm.losses import target_weights
from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.methods.shared.on_policy import sample_texts
from semioffline.methods.shared.registry import load_method
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

OWN = {
    "erpo": {"erpo_alpha": 0.7, "erpo_beta": 0.2, "edit_share": 0.5, "temperature": 1.3, "max_completion_length": 9},
    "raml": {"raml_temperature": 0.6},
    "spg": {"spg_temperature": 0.4, "max_completion_length": 9},
}


def vowels(completions, **kwargs):
    """Some number that differs from text to text."""
    return [float(sum(text.count(v) for v in "aeiou") % 7) / 3 for text in completions]


def step(policy, batch, args, reward=vowels, at=3):
    return load_method(args).step(policy, batch, Scorer(policy, RewardSet(reward)), Randomness(0, at))


def test_weights_by_hand():
    """Two texts: exp((0.5 * log p + R) / 0.75) / proposal; the third has no reward, the second row none at all."""
    log_p = torch.tensor([[-1.0, -2.0, -1.0]] * 2, requires_grad=True)
    rewards = torch.tensor([[0.3, 0.9, math.nan], [math.nan] * 3])
    proposal = torch.tensor([[-1.5, -0.5, -1.0]] * 2)
    weights = target_weights(log_p, rewards, proposal, alpha=0.5, beta=0.25)
    one = math.exp((0.5 * -1 + 0.3) / 0.75) / math.exp(-1.5)
    two = math.exp((0.5 * -2 + 0.9) / 0.75) / math.exp(-0.5)
    assert weights[0].tolist() == pytest.approx([one / (one + two), two / (one + two), 0.0])
    assert weights[1].tolist() == [0.0, 0.0, 0.0]
    assert not weights.requires_grad


@pytest.mark.parametrize("name", ["raml", "erpo"])
def test_the_weighted_edits_are_distributed_as_the_target(tiny_policy, tiny_data, settings, name):
    """All texts of three words over a tiny vocabulary, with the reward of each: the weights, added up over many steps,
    are the target distribution q ∝ exp((alpha log p + R) / (alpha + beta)) over these texts."""
    policy = tiny_policy("llama")
    words = ["oslo", "paris", "lima"]
    ids = {policy.tokens.tokenizer.convert_tokens_to_ids(word): word for word in words}
    policy.allowed.fill_(False)
    policy.allowed[list(ids)] = True
    row = tiny_data.to_list()[0] | {"completion": "paris oslo oslo"}
    examples = Examples(type(tiny_data).from_list([row]), policy, 40, 40, progress=False)
    batch = Collator(policy.tokens.pad_id)([examples[0]])
    eos = policy.tokens.eos_id
    length = 3
    assert batch.target.ids[0, -1] == eos
    values = {text: 0.9 * (n % 5) / 4 for n, text in enumerate(itertools.product(ids, repeat=length))}
    scores = {" ".join(ids[token] for token in text): value for text, value in values.items()}

    def reward(completions, **kwargs):
        return [scores[text] for text in completions]

    alpha, beta, own = 0.0, 0.7, {"raml_temperature": 0.7}
    if name == "erpo":
        alpha, beta, own = 0.3, 0.4, {"erpo_alpha": 0.3, "erpo_beta": 0.4, "edit_share": 1.0}
    target = {}
    with torch.no_grad():
        for text, value in values.items():
            z = log_p_alone(policy, batch, 0, [*text, eos])
            z = z.masked_fill(torch.arange(z.shape[1]) == policy.tokens.mask_id, -torch.inf).log_softmax(1)
            log_p = z[range(length + 1), [*text, eos]].sum().item()
            target[text] = math.exp((alpha * log_p + value) / (alpha + beta))
    total = sum(target.values())
    args, found = settings(name, num_samples=4000, edit_rate=0.5, log_completions=True, **own), {}
    with torch.no_grad():
        for line in step(policy, batch, args, reward).completions():
            found[line["sample"]] = found.get(line["sample"], 0.0) + line["advantage"]
    assert len(found) == 27
    for text, value in target.items():
        shown = " ".join(ids[token] for token in text)
        assert found[shown] == pytest.approx(value / total, rel=0.35, abs=0.004)


@pytest.mark.parametrize("name", list(OWN))
@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_loss_and_gradient_are_those_of_a_loop_over_texts(tiny_policy, tiny_data, settings, kind, name):
    policy = tiny_policy(kind)
    examples = Examples(tiny_data, policy, 40, 9, progress=False)
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(3)])
    k, args = 4, settings(name, num_samples=4, **OWN[name])
    alpha, beta = {"erpo": (0.7, 0.2), "raml": (0.0, 0.6), "spg": (0.4, 0.0)}[name]
    edits = {"erpo": 2, "raml": 4, "spg": 0}[name]
    texts = load_method(args).propose(policy, batch, Randomness(0, 3))
    rewards = vowels(policy.tokens.decode(texts))
    rest, expected = int(policy.allowed.sum()) - 1, torch.zeros(())
    for b in range(3):
        target = batch.target.ids[b][batch.target.keep_mask[b]].tolist()
        free = batch.target.ordinary[b].tolist()
        log_p, weights = [], []
        for n in range(k):
            ids = texts[b * k + n]
            if name == "raml":
                own = token_log_p_alone(policy, batch, b, ids).sum()
            else:
                z = log_p_alone(policy, batch, b, ids) / (1.3 if name == "erpo" else 1.0)
                z = z.masked_fill(torch.arange(z.shape[1]) == policy.tokens.mask_id, -torch.inf).log_softmax(1)
                own = z[range(len(ids)), ids].sum()
            differing = [t for t, (a, o) in enumerate(zip(ids, target)) if a != o]
            edit = 0.0
            if len(ids) == len(target) and all(free[t] and policy.allowed[ids[t]] for t in differing):
                edit = (0.1 / rest) ** len(differing) * 0.9 ** (sum(free) - len(differing))
            proposal = edits / k * edit + (1 - edits / k) * math.exp(own.item())
            weights.append(math.exp((alpha * own.item() + rewards[b * k + n]) / (alpha + beta)) / proposal)
            log_p.append(own)
        expected = expected - sum(w / sum(weights) * own for w, own in zip(weights, log_p))
    [term] = step(policy, batch, args).terms
    assert (term.name, term.per) == (name, "token")
    assert_same_gradient(policy, term.total, expected, tolerance=1e-3)


def test_the_special_cases_are_special_cases(tiny_policy, tiny_batch, settings):
    """raml is erpo with alpha = 0 and edits only; spg is erpo with beta = 0 and samples only."""
    policy = tiny_policy("llama")
    batch = tiny_batch(policy)
    common = {"num_samples": 4, "log_completions": True}
    pairs = [
        (settings("raml", raml_temperature=0.3, **common), {"erpo_alpha": 0.0, "erpo_beta": 0.3, "edit_share": 1.0}),
        (settings("spg", spg_temperature=0.3, **common), {"erpo_alpha": 0.3, "erpo_beta": 0.0, "edit_share": 0.0}),
    ]
    for special, own in pairs:
        with torch.no_grad():
            one, two = step(policy, batch, special), step(policy, batch, settings("erpo", **own, **common))
        assert [row["sample"] for row in one.completions()] == [row["sample"] for row in two.completions()]
        first, second = ([row["advantage"] for row in output.completions()] for output in (one, two))
        assert first == pytest.approx(second, rel=1e-4, abs=1e-6)
        assert max(first) > 0.3


def test_without_temperature_raml_is_the_likelihood_of_the_ground_truth(tiny_policy, tiny_batch, settings):
    """A reward for it alone, and a small tau: ft's loss."""
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)

    def exact(completions, references, **kwargs):
        return [float(text in own) for text, own in zip(completions, references, strict=True)]

    args = settings("raml", raml_temperature=1e-3, num_samples=64, edit_rate=0.02)
    [ours], [theirs] = step(policy, batch, args, exact).terms, step(policy, batch, settings("ft")).terms
    assert_same_gradient(policy, ours.total, theirs.total)


@pytest.mark.parametrize("name", list(OWN))
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_row_has_the_same_loss_in_every_batch(tiny_policy, tiny_data, settings, kind, name):
    policy, args = tiny_policy(kind), settings(name, num_samples=4, **OWN[name])
    examples, collate = Examples(tiny_data, policy, 40, 9, progress=False), Collator(policy.tokens.pad_id)
    together = step(policy, collate([examples[n] for n in range(4)]), args).terms[0].total.item()
    alone = [step(policy, collate([examples[n]]), args).terms[0].total.item() for n in range(4)]
    assert together == pytest.approx(sum(alone), rel=1e-4)


@pytest.mark.parametrize(("name", "passes", "grad"), [("raml", 4, 0), ("spg", 4 * 6, 4), ("erpo", 2 + 2 * 6, 2)])
@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_edits_cost_a_pass_and_samples_their_length(tiny_policy, tiny_batch, settings, kind, name, passes, grad):
    """K = 4 and six tokens each, since EOS is suppressed."""
    policy = tiny_policy(kind)
    policy.base.generation_config.suppress_tokens = [2]
    batch = tiny_batch(policy)
    own = {} if name == "raml" else {"max_completion_length": 6}
    step(policy, batch, settings(name, num_samples=4, **own))
    policy.meter.add_inputs(len(batch))
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["grad_rows"], cost["mle_rows"]) == (passes, grad, 0)


@pytest.mark.parametrize("name", list(OWN))
def test_texts_without_reward_count_nothing(tiny_policy, tiny_batch, settings, name):
    policy = tiny_policy("bart")
    args = settings(name, num_samples=2, max_completion_length=6)
    output = step(policy, tiny_batch(policy), args, lambda completions, **kwargs: [None] * len(completions))
    assert output.terms[0].total.item() == 0.0


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"erpo_alpha": 0.0, "erpo_beta": 0.0}, "both 0"),
        ({"top_p": 0.9}, "edit_share=0"),
        ({"edit_rate": 1.0}, "edit_rate"),
    ],
)
def test_wrong_settings_are_told(settings, own, told):
    with pytest.raises(UserError, match=told):
        settings("erpo", **own)


@pytest.mark.parametrize("name", ["spg", "erpo"])
def test_it_finds_the_reward(learnt, ads_examples, settings, short_training, sampled_reward, name):
    def discovers(completions, **kwargs):
        return [float("discover" in text.split()) for text in completions]

    drawing = settings("avg", max_completion_length=24)
    before = sampled_reward(learnt, ads_examples, drawing, discovers)
    args = settings(name, num_samples=8, max_completion_length=24)
    short_training(learnt, load_method(args), ads_examples, steps=15, lr=1e-3, reward=discovers)
    assert sampled_reward(learnt, ads_examples, drawing, discovers) > before + 0.2


def test_raml_raises_the_likelihood_of_texts_by_their_reward(learnt, ads_examples, settings, short_training):
    """Its objective, E_q[log p], on the same edits before and after."""

    def like(completions, references, **kwargs):
        """The share of the ground truth's words that are there."""
        pairs = zip(completions, (own[0].split() for own in references), strict=True)
        return [sum(word in text.split() for word in words) / len(words) for text, words in pairs]

    args = settings("raml", num_samples=8)
    batch = Collator(learnt.tokens.pad_id)([ads_examples[n] for n in range(64)])

    def objective():
        with torch.no_grad():
            return step(learnt, batch, args, like, at=999).terms[0].total.item()

    before = objective()
    short_training(learnt, load_method(args), ads_examples, steps=20, lr=1e-3, reward=like)
    assert objective() < 0.97 * before


def test_samples_are_those_of_the_policy(tiny_policy, tiny_batch, settings):
    policy = tiny_policy("bart")
    batch = tiny_batch(policy)
    args = settings("spg", num_samples=3, max_completion_length=9)
    assert load_method(args).propose(policy, batch, Randomness(0, 3)) == sample_texts(
        policy, batch, args, Randomness(0, 3), 3
    )
