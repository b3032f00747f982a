"""ILQL: its losses by a loop, the slow copies, what it generates with, its file."""

import json

import pytest
import torch
from datasets import Dataset
from tests.integration.toy import build_rows, save_model

from semioffline.algorithm.randomness import Randomness
from semioffline.cli import main
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.evaluation.decode import generate_ids
from semioffline.methods.shared.perturbed import FILE, restore_heads
from semioffline.methods.shared.registry import load_method
from semioffline.policy.decoding import Decoding
from semioffline.policy.heads import QHeads
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.tasks import ads
from semioffline.training.trainer import SemiOfflineTrainer

KINDS = ["bart", "t5", "llama"]


def length(completions, **kwargs):
    return [float(len(text)) / 10 for text in completions]


def with_candidates(rows):
    """Two candidates, of which the first row has one without a twin: its place is filled."""
    rows = [dict(row) for row in rows]
    for n, row in enumerate(rows):
        texts = [rows[n - 1]["completion"], row["completion"]][: 1 + (n > 0)]
        row |= {"candidates": texts, "candidate_rewards": [0.1 * n, 0.9][: len(texts)]}
    return Dataset.from_list(rows)


def batch_for(policy, tiny_data, size=3):
    examples = Examples(with_candidates(tiny_data.to_list()), policy, 40, 40, progress=False, with_candidates=True)
    return Collator(policy.tokens.pad_id)([examples[n] for n in range(size)])


def prepared(policy, args):
    method = load_method(args)
    method.prepare(policy, [])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in method.heads.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return method


def states_before(policy, source, ids):
    """(T, D) by the bare model."""
    if policy.is_encoder_decoder:
        shown = torch.tensor([[policy.config.decoder_start_token_id, *ids[:-1]]])
        out = policy.base(input_ids=source[None], decoder_input_ids=shown, output_hidden_states=True)
        return out.decoder_hidden_states[-1][0].detach()
    out = policy.base(torch.cat([source, torch.tensor(ids)])[None], output_hidden_states=True)
    return out.hidden_states[-1][0, len(source) - 1 : -1].detach()


@pytest.mark.parametrize("lam", [0.0, 0.6])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_a_loop(tiny_policy, tiny_data, settings, kind, lam):
    policy = tiny_policy(kind)
    batch = batch_for(policy, tiny_data)
    args = settings("ilql", gamma=0.9, td_lambda=lam, expectile=0.8, conservative_weight=0.3)
    method = prepared(policy, args)
    output = method.step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))
    heads, expected = method.heads, {"q": 0.0, "v": 0.0, "conservative": 0.0}
    for b in range(3):
        texts = [(batch.target.ids[b][batch.target.keep_mask[b]].tolist(), length(batch.columns["completion"])[b])]
        for n, reward in enumerate(batch.candidate_rewards[b].tolist()):
            if reward == reward:
                at = 2 * b + n
                texts.append((batch.candidates.ids[at][batch.candidates.keep_mask[at]].tolist(), reward))
        for ids, reward in texts:
            states = states_before(policy, batch.source.ids[b][batch.source.keep_mask[b]], ids)
            v, (q1, q2), (s1, s2) = heads.v(states)[:, 0], (q(states) for q in heads.q), (q(states) for q in heads.slow)
            goals = [reward]
            for t in reversed(range(len(ids) - 1)):
                goals.insert(0, 0.9 * ((1 - lam) * v[t + 1].item() + lam * goals[0]))
            for t, (a, goal) in enumerate(zip(ids, goals, strict=True)):
                d = torch.minimum(s1[t, a], s2[t, a]).detach() - v[t]
                share = 1 / len(ids) / len(texts)
                expected["q"] = expected["q"] + share * ((goal - q1[t, a]) ** 2 + (goal - q2[t, a]) ** 2)
                expected["v"] = expected["v"] + share * (0.2 if d < 0 else 0.8) * d**2
                both = sum(q[t].logsumexp(0) - q[t, a] for q in (q1, q2))
                expected["conservative"] = expected["conservative"] + share * both
    found = {term.name: term for term in output.terms}
    assert {name: term.weight for name, term in found.items()} == {"mle": 1, "q": 1, "v": 1, "conservative": 0.3}
    for name, value in expected.items():
        assert found[name].total.item() == pytest.approx(value.item(), rel=1e-4)
    weights = [weight for weight in heads.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(sum(found[name].total for name in expected), weights, retain_graph=True)
    for one, other in zip(ours, torch.autograd.grad(sum(expected.values()), weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert found["q"].total.grad_fn is not None
    model = torch.autograd.grad(found["q"].total, list(policy.model.parameters()), allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in model), "the heads must not move the model"


def test_cost_is_that_of_every_text(tiny_policy, tiny_data, settings):
    policy = tiny_policy("bart")
    batch = batch_for(policy, tiny_data)
    prepared(policy, settings("ilql")).step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, 0))
    policy.meter.add_inputs(len(batch))
    cost = policy.meter.per_input()
    assert (cost["forward_passes"], cost["mle_rows"], cost["grad_rows"]) == (3, 1, 0), (
        "the ground truth, two candidates"
    )


def test_the_slow_copies_follow_once_a_step(tiny_policy, tiny_data, settings):
    policy = tiny_policy("bart")
    batch = batch_for(policy, tiny_data)
    method = prepared(policy, settings("ilql", polyak=0.25))
    weight, slow = method.heads.q[0][0].weight.detach(), method.heads.slow[0][0].weight
    first = slow.clone()
    for step, parts in ((0, 0), (0, 0), (1, 1), (1, 1), (2, 2)):
        method.step(policy, batch, Scorer(policy, RewardSet(length)), Randomness(0, step))
        assert torch.allclose(slow, weight + 0.75**parts * (first - weight), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_generated_from_log_p_plus_beta_times_q_minus_v(tiny_policy, tiny_batch, settings, kind):
    """Greedy decoding by a loop over the bare model; a new pair of heads changes nothing."""
    policy = tiny_policy(kind)
    batch, decoding = tiny_batch(policy, 2), Decoding(max_new_tokens=5)
    plain = policy.generate(batch.source, decoding, keep_end=True)
    method = load_method(settings("ilql", beta=5.0))
    method.prepare(policy, [])
    assert policy.generate(batch.source, decoding, keep_end=True) == plain
    torch.nn.init.normal_(method.heads.slow[0][2].weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.normal_(method.heads.slow[1][2].weight, generator=torch.Generator().manual_seed(2))
    found = policy.generate(batch.source, decoding, keep_end=True)
    assert found != plain
    head = policy.base.get_output_embeddings().weight
    for b in range(2):
        source, ids = batch.source.ids[b][batch.source.keep_mask[b]], []
        while len(ids) < 5 and 2 not in ids:
            states = states_before(policy, source, [*ids, 0])[-1:]
            if policy.is_encoder_decoder:
                shown = torch.tensor([[policy.config.decoder_start_token_id, *ids]])
                logits = policy.base(input_ids=source[None], decoder_input_ids=shown).logits[0, -1]
            else:
                logits = policy.base(torch.cat([source, torch.tensor(ids, dtype=torch.long)])[None]).logits[0, -1]
            logits = logits + 5.0 * (method.heads.slow_q(states) - method.heads.v(states))[0]
            logits[policy.tokens.mask_id] = -torch.inf
            ids.append(int(logits.argmax()))
        assert found[b] == ids
    assert head.shape[0] == method.heads.slow_q(states).shape[1]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_constant_changes_no_text(tiny_policy, tiny_batch, beams):
    """Scores that are the same for all tokens leave every distribution as it is, in beam search too."""
    policy = tiny_policy("bart")
    batch, decoding = tiny_batch(policy), Decoding(num_beams=beams, max_new_tokens=6)
    plain = policy.generate(batch.source, decoding)
    policy.generator.perturb(lambda states: torch.full((len(states), 1), 3.0))
    assert policy.generate(batch.source, decoding) == plain


def test_a_run_stops_and_goes_on_exactly(tiny_policy, tiny_data, settings, tmp_path):
    """Heads, slow copies and the optimizer's state of heads with a learning rate of their own."""

    def trainer(folder):
        args = settings(
            "ilql", max_steps=4, save_steps=2, save_total_limit=3, per_device_train_batch_size=4, learning_rate=1e-2,
            max_prompt_length=40,
            max_completion_length=12, disable_tqdm=True, logging_steps=1, eval_metrics=[], head_learning_rate=0.03,
            polyak=0.5,
        )  # fmt: skip
        args.output_dir = str(folder)
        return SemiOfflineTrainer(tiny_policy("bart"), length, args, with_candidates(tiny_data.to_list()))

    straight = trainer(tmp_path / "straight")
    straight.train()
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))
    ours, theirs = resumed.policy.state_dict(), straight.policy.state_dict()
    assert any("slow" in key for key in theirs)
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
    log = [entry for entry in straight.state.log_history if "loss" in entry]
    assert {"loss/q", "loss/v", "loss/conservative", "q", "value"} <= log[0].keys()
    # what is saved generates the same; without its file the model is the plain one
    straight.save_model(str(tmp_path / "model"))
    policy = Policy.load(str(tmp_path / "model"))
    source, decoding = straight.data_collator([straight.train_dataset[0]]).source, Decoding(max_new_tokens=8)
    restore_heads(policy, tmp_path / "model")
    states = torch.randn(3, 16)
    assert torch.equal(policy.value_head.advantages(states), straight.method.heads.advantages(states))
    assert policy.generate(source, decoding) == straight.policy.generate(source, decoding)
    (tmp_path / "model" / FILE).unlink()
    plain = Policy.load(str(tmp_path / "model"))
    restore_heads(plain, tmp_path / "model")
    assert plain.value_head is None


def test_without_its_file_it_is_told(tiny_policy, settings, tmp_path):
    with pytest.raises(UserError, match=FILE):
        prepared(tiny_policy("bart"), settings("ilql")).load(tmp_path)


def test_it_does_not_share_the_head_of_a_critic(tiny_policy, settings):
    method = load_method(settings("actor_critic+ilql"))
    with pytest.raises(UserError, match="cannot be combined with a method that has a critic"):
        method.prepare(tiny_policy("bart"), [])


def test_evaluate_uses_the_heads(tmp_path, capsys):
    """The same model with and without heads that want one word everywhere."""
    folder = save_model(tmp_path / "model")
    build_rows(6).to_json(tmp_path / "test.jsonl")
    policy = Policy.load(str(folder))
    heads = policy.add_value_head(QHeads)
    word = policy.tokens.tokenizer.convert_tokens_to_ids("discover")
    with torch.no_grad():
        for slow in heads.slow:
            slow[2].bias[word] = 10.0
    method = load_method_with(heads, tmp_path)
    outputs = []
    for name in ("plain", "perturbed"):
        if name == "perturbed":
            method.save(folder)
        argv = [
            "evaluate",
            "--data_dir",
            str(tmp_path),
            "--model",
            str(folder),
            "--device",
            "cpu",
            "--metrics",
            "distinct",
        ]
        argv += ["--max_prompt_length", "24", "--max_completion_length", "8", "--output_dir", str(tmp_path / name)]
        assert main(argv) == 0
        lines = (tmp_path / name / "predictions.jsonl").read_text().splitlines()
        outputs.append([json.loads(line)["prediction"] for line in lines])
    assert outputs[1] == [" ".join(["discover"] * 7)] * 6
    assert outputs[0] != outputs[1]


def load_method_with(heads, folder):
    from tests.integration.toy import build_config

    method = load_method(build_config(folder, "ilql", beta=50.0))
    method.heads = heads
    return method


def discovers(completions, **kwargs):
    return [float("discover" in text.split()) for text in completions]


def test_what_it_generates_gets_more_reward(learnt, ads_rows, settings, short_training):
    """Candidates with other wordings, and whether they have the word. The plain model stays what fine-tuning makes of
    it."""
    rows = ads_rows.to_list()
    for n, row in enumerate(rows):
        row["candidates"] = [ads.write_ad(row, wording(n, k), ads.TEMPLATES[(n + k) % 3]) for k in range(3)]
        row["candidate_rewards"] = discovers(row["candidates"])
    examples = Examples(Dataset.from_list(rows), learnt, 32, 32, progress=False, with_candidates=True)
    held_out = Examples(ads.build({"test": 48})["test"], learnt, 32, 32, progress=False)

    def measure():
        ids = generate_ids(learnt, held_out, Decoding(max_new_tokens=32), 48, progress=False)
        return sum(discovers(learnt.tokens.decode(ids))) / 48

    before = measure()
    args = settings("ilql", beta=20.0, head_learning_rate=0.003, conservative_weight=0.002, polyak=0.2, td_lambda=1.0)
    short_training(learnt, load_method(args), examples, steps=80, lr=1e-5, batch_size=16, reward=discovers)
    after = measure()
    learnt.generator.perturb(lambda states: torch.zeros(len(states), 1))
    plain = measure()  # over five seeds, after - before is at least 0.52 and after - plain at least 0.66
    assert after > before + 0.3
    assert after > plain + 0.3


def wording(n, k):
    """In a third of the texts the opener is the first of its list."""
    words = {slot: words[(7 * n + 3 * k + i) % len(words)] for i, (slot, words) in enumerate(ads.WORDING.items())}
    return words | ({"opener": "discover"} if (n + k) % 3 == 0 else {})
