"""mask_where: spans of the text, whole words inside them, and nothing else is ever masked."""

import copy

import pytest
from datasets import Dataset

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples
from semioffline.data.spans import keep_inside, load_where
from semioffline.errors import UserError
from semioffline.methods.shared.registry import load_method
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.policy.tokens import Encoded
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer
from semioffline.tasks import ads

WORDING = r"\b(?:" + "|".join(word for words in ads.WORDING.values() for word in words) + r")\b"


def hidden_words(policy, examples, rows=range(4)):
    """Of each static target, the tokens that may be masked."""
    return [
        [policy.tokens.decode([[token]])[0] for token, word in zip(t.ids.tolist(), t.words.tolist()) if word >= 0]
        for n in rows
        for t in examples[n].static
    ]


def test_a_pattern_gives_its_matches_or_its_groups():
    assert load_where(r"\d+")("from 9 to 49") == [(5, 6), (10, 12)]
    assert load_where(r"(\w+) today|only (\w+)")("order today , only 9") == [(0, 5), (19, 20)]
    assert load_where(r"x*")("ab") == []


def test_a_word_is_masked_only_if_it_lies_inside_as_a_whole():
    """Characters: 0-2 ab, 3-5 cd (one word of two pieces), 6-8 with the space before it; the end stands for none."""
    text = "ab cdxx ef"
    encoded = Encoded([5, 6, 7, 8, 2], [0, 1, 1, 2, -1], False, [(0, 2), (3, 5), (5, 7), (7, 10), (0, 0)])
    found = [keep_inside(encoded, text, spans).words for spans in ([(0, 2)], [(3, 5)], [(3, 7)], [(8, 10)], [(0, 10)])]
    assert found == [
        [0, -1, -1, -1, -1],
        [-1, -1, -1, -1, -1],
        [-1, 1, 1, -1, -1],
        [-1, -1, -1, 2, -1],
        [0, 1, 1, 2, -1],
    ]
    assert keep_inside(encoded, text, []).words == [-1] * 5


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_only_the_wording_is_ever_masked(tiny_policy, tiny_data, settings, kind):
    """With mask_rate=1 it is masked as a whole, and all samples have the facts of the static target."""
    policy = tiny_policy(kind)
    examples = Examples(tiny_data, policy, 40, 40, progress=False, mask_where=WORDING)
    wording = {word for words in ads.WORDING.values() for word in words}
    for row, words in zip(tiny_data, hidden_words(policy, examples, range(8))):
        assert words == [word for word in row["completion"].split() if word in wording]
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in range(8)])
    assert batch.target.ordinary.sum() > 2 * batch.static.ordinary.sum() > 0, "the MLE row's masks are as before"
    seen = []

    def reward(completions, references, **kwargs):
        seen.extend(zip(completions, references))
        return [0.0] * len(completions)

    args = settings("semi_offline", num_samples=16, mask_rate=1.0, mask_where=WORDING)
    output = load_method(args).step(policy, batch, Scorer(policy, RewardSet(reward)), Randomness(0, 0))
    assert output.metrics["mask_rate"] == 1.0
    assert any(text != own[0] for text, own in seen)
    for text, [own] in seen:
        assert len(text.split()) == len(own.split())
        assert all(a == b for a, b in zip(text.split(), own.split()) if b not in wording)


def test_a_function_of_the_users_gives_spans(tiny_policy, tiny_data, tmp_path):
    (tmp_path / "spans.py").write_text("def last(text):\n    return [(text.rindex(' ') + 1, len(text))]\n")
    policy = tiny_policy("bart")
    examples = Examples(tiny_data, policy, 40, 40, progress=False, mask_where=f"{tmp_path / 'spans.py'}:last")
    assert hidden_words(policy, examples) == [[row["completion"].split()[-1]] for row in tiny_data.select(range(4))]


@pytest.mark.parametrize(
    ("body", "told"),
    [("return 3", "gave 3 for the text"), ("return [(0, 999)]", r"\(start, end\)"), ("return [(2, 1)]", "list of")],
)
def test_wrong_spans_are_told(tiny_policy, tiny_data, tmp_path, body, told):
    (tmp_path / "spans.py").write_text(f"def wrong(text):\n    {body}\n")
    with pytest.raises(UserError, match=told):
        Examples(tiny_data, tiny_policy("bart"), 40, 40, mask_where=f"{tmp_path / 'spans.py'}:wrong")
    with pytest.raises(UserError, match=r"unknown function in .*spans.py"):
        Examples(tiny_data, tiny_policy("bart"), 40, 40, mask_where=f"{tmp_path / 'spans.py'}:wrongs")


def test_candidates_have_spans_of_their_own(tiny_policy):
    policy = tiny_policy("bart")
    rows = {
        "prompt": ["name : zorvia"],
        "completion": ["meet zorvia today !"],
        "candidates": [["try paris today", "meet the bold lamps"]],
        "candidate_rewards": [[0.1, 0.5]],
    }
    for static, words in (("worst", [["try"]]), ("best", [["meet", "bold"]]), ("random", [["try"], ["meet", "bold"]])):
        options = {"static_target": static, "mask_where": WORDING, "progress": False}
        assert hidden_words(policy, Examples(Dataset.from_dict(rows), policy, 40, 40, **options), [0]) == words


def test_a_pattern_that_matches_nowhere_is_told(tiny_policy, tiny_data):
    with pytest.raises(UserError, match="leaves nothing to mask in any row"):
        Examples(tiny_data, tiny_policy("bart"), 40, 40, mask_where="zzz")


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"mask_where": "(unclosed"}, "no regular expression"),
        ({"mask_where": "a", "eos_after": 3}, "eos_after cannot be combined with mask_where"),
        ({"mask_where": ""}, "must not be empty"),
    ],
)
def test_wrong_settings_are_told(settings, own, told):
    with pytest.raises(UserError, match=told):
        settings("semi_offline", **own)


def test_masking_the_wording_alone_needs_fewer_steps_and_keeps_the_facts(
    learnt, ads_rows, ads_examples, settings, short_training
):
    """20 steps from the same policy, which knows 99 % of the facts: the decoded outputs."""
    batch = Collator(learnt.tokens.pad_id)([ads_examples[n] for n in range(64)])
    facts = {name: ads_rows[name][:64] for name in ads.FACTS}

    def outputs(policy):
        texts = policy.tokens.decode(policy.generate(batch.source, Decoding(max_new_tokens=24)))
        clicks, right = ads.click_rate(texts, facts["category"]), ads.facts_right(texts, **facts)
        return sum(clicks) / 64, sum(right) / 64

    before, reached = outputs(learnt), {}
    for where in (None, WORDING):
        policy = Policy(copy.deepcopy(learnt.model), learnt.tokens.tokenizer)
        examples = Examples(ads_rows, policy, 32, 32, progress=False, mask_where=where)
        args = settings("semi_offline", num_samples=16, rl_weight=1.0, mask_where=where)
        short_training(policy, load_method(args), examples, steps=20, lr=1e-3)
        reached[where] = outputs(policy)
    assert reached[WORDING][0] > max(reached[None][0], before[0]) + 0.02
    assert reached[WORDING][1] > 0.97
