"""Columns to tokens to batches."""

import logging

import numpy as np
import pytest
import torch
from datasets import Dataset

from semioffline.algorithm.randomness import Randomness
from semioffline.data.examples import Collator, Examples, LikeLengths, as_dataset, check_columns, pick_static
from semioffline.errors import UserError
from semioffline.methods.semi_offline import Method
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

ROWS = {
    "prompt": ["name : zorvia", "name : lumora | category : lamps"],
    "completion": ["meet zorvia today !", "grab the bold lamps"],
    "city": ["oslo", "paris"],
}
CANDIDATES = {
    "candidates": [["bold", "meet the zorvia", "grab"], ["oslo", "paris", "try paris today"]],
    "candidate_rewards": [[0.2, 0.9, -1.0], [0.5, 0.1, 0.3]],
}


@pytest.fixture(scope="module")
def policy(tiny_policy):
    return tiny_policy("bart")


@pytest.fixture(scope="module")
def causal(tiny_policy):
    return tiny_policy("llama")


def make(policy, columns, static_target="ground_truth", longest=40, **options):
    return Examples(Dataset.from_dict(columns), policy, longest, longest, static_target=static_target, **options)


def make_or_message(*args):
    """The examples, or what the user is told instead."""
    try:
        return make(*args)
    except UserError as error:
        return str(error)


def texts(policy, tokens):
    return policy.tokens.decode([t.ids.tolist() for t in tokens])


def test_an_example_holds_source_target_static_target_and_columns(policy):
    examples = make(policy, ROWS)
    assert len(examples) == 2
    second = examples[1]
    assert second.index == 1
    assert texts(policy, [second.source, second.target, *second.static]) == [
        "name : lumora | category : lamps",
        "grab the bold lamps",
        "grab the bold lamps",
    ]
    assert second.columns == {
        "prompt": ROWS["prompt"][1],
        "completion": ROWS["completion"][1],
        "references": [ROWS["completion"][1]],
        "city": "paris",
    }


@pytest.mark.parametrize(
    ("static_target", "chosen"), [("best", ["meet the zorvia", "oslo"]), ("worst", ["grab", "paris"])]
)
def test_the_best_or_worst_candidate_is_the_static_target(policy, static_target, chosen):
    examples = make(policy, ROWS | CANDIDATES, static_target)
    assert [texts(policy, e.static) for e in examples.examples] == [[c] for c in chosen]
    assert texts(policy, [e.target for e in examples.examples]) == ROWS["completion"]


def test_random_keeps_every_candidate_and_needs_no_rewards(policy):
    examples = make(policy, ROWS | {"candidates": CANDIDATES["candidates"]}, "random")
    assert [texts(policy, e.static) for e in examples.examples] == CANDIDATES["candidates"]


def test_candidates_do_not_reach_the_rewards(policy):
    columns = make(policy, ROWS | CANDIDATES, "worst")[0].columns
    assert "candidates" not in columns
    assert "candidate_rewards" not in columns


def test_references_are_used_where_given_and_the_completion_where_empty(policy):
    examples = make(policy, ROWS | {"references": [["meet zorvia", "try zorvia"], []]})
    assert examples[0].columns["references"] == ["meet zorvia", "try zorvia"]
    assert examples[1].columns["references"] == ["grab the bold lamps"]


def test_a_reference_that_is_a_plain_text_is_not_split_into_letters(policy):
    """One reference, or a clear refusal; never 20 references of one letter."""
    columns = ROWS | {"references": ["meet zorvia", "grab lamps"]}
    made = make_or_message(policy, columns)
    if isinstance(made, str):
        assert "references" in made
    else:
        assert made[0].columns["references"] == ["meet zorvia"]


def test_a_batch_is_padded_on_the_right(policy):
    examples = make(policy, ROWS)
    batch = Collator(policy.tokens.pad_id)([examples[0], examples[1]])
    assert len(batch) == 2
    assert batch.index.tolist() == [0, 1]
    assert batch.source.lengths == [5, 9]
    assert (batch.source.ids[0, 5:] == policy.tokens.pad_id).all()
    assert not batch.source.keep_mask[0, 5:].any()
    assert batch.columns["city"] == ["oslo", "paris"]
    assert torch.equal(batch.static.ids, batch.target.ids)


def test_special_tokens_and_padding_are_not_ordinary(policy):
    examples = make(policy, {"prompt": ["name"] * 2, "completion": ["meet zorvia today !", "meet zorvia"]})
    target = Collator(policy.tokens.pad_id)([examples[0], examples[1]]).target
    assert target.ordinary.tolist() == [
        [False, True, True, True, True, False],
        [False, True, True, False, False, False],
    ]


def test_unknown_words_are_special_and_so_never_hidden(policy):
    target = make(policy, {"prompt": ["name"], "completion": ["meet qwertyuiop today"]})[0].target
    assert target.words.tolist() == [-1, 0, -1, 2, -1]


def test_cut_texts_are_counted_and_announced(policy, caplog):
    columns = {
        "prompt": ["name"] * 2,
        "completion": ["meet zorvia today !", "try"],
        "candidates": [["a b c d e f"]] * 2,
    }
    with caplog.at_level(logging.WARNING):
        examples = make(policy, columns, "random", longest=5)
    assert (examples.truncation.prompts, examples.truncation.completions, examples.truncation.candidates) == (0, 1, 2)
    assert "cut to the maximum length: 1 completion, 2 candidates, of 2 rows" in caplog.text
    assert max(len(t.ids) for e in examples.examples for t in [e.target, *e.static]) == 5


def test_nothing_is_announced_when_nothing_is_cut(policy, caplog):
    with caplog.at_level(logging.WARNING):
        make(policy, ROWS)
    assert not caplog.records


@pytest.mark.parametrize(("side", "kept"), [("left", "category : lamps"), ("right", "name : lumora")])
def test_a_long_prompt_loses_the_side_that_is_asked(policy, side, kept):
    source = make(policy, ROWS, longest=5, truncation_side=side)[1].source
    assert texts(policy, [source]) == [kept]


def test_an_empty_prompt_still_gives_a_decoder_only_model_a_place_to_start(causal):
    example = make(causal, {"prompt": [""], "completion": ["try"]})[0]
    assert len(example.source.ids) >= 1


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"text": ["a"], "completion": ["b"]}, "no column 'prompt' .*text, completion.*--columns prompt=text"),
        ({"prompt": ["a"], "summary": ["b"]}, "no column 'completion'"),
        ({"prompt": [], "completion": []}, "empty"),
        ({"prompt": ["a", "b"], "completion": ["c", " \n"]}, r"row 1: completion is ' \\n'.*not empty"),
        ({"prompt": ["a", None], "completion": ["c", "d"]}, "row 1: the prompt must be text, got None"),
        ({"prompt": ["a"], "completion": [3]}, "row 0: the completion must be text, got 3"),
        ({"prompt": ["a"], "completion": ["b"], "prompts": [1]}, "rename the column 'prompts'"),
        ({"prompt": ["a"], "completion": ["b"], "self": [1]}, "rename the column 'self'"),
        ({"prompt": ["a"], "completion": ["b"], "candidates": ["c"]}, "row 0: candidates must be a list of texts"),
        ({"prompt": ["a"], "completion": ["b"], "candidates": [[1]]}, "row 0: candidates must be a list of texts"),
        ({"prompt": ["a"], "completion": ["b"], "references": [[None]]}, "row 0: references must be a list of texts"),
        (
            {"prompt": ["a"], "completion": ["b"], "candidates": [["c"]], "candidate_rewards": [[float("inf")]]},
            "row 0: candidate_rewards must be finite",
        ),
    ],
)
def test_bad_rows_are_refused_in_front(columns, says):
    with pytest.raises(UserError, match=says):
        check_columns(Dataset.from_dict(columns))


@pytest.mark.parametrize(
    "rows",
    [[{"prompt": "a"}, {"prompt": 1}], [1], [{"prompt": 10**400}], [{"prompt": "\ud800"}], [{"x": [1]}, {"x": "a"}]],
)
def test_a_list_of_rows_that_is_no_table_is_refused_in_one_line(rows):
    with pytest.raises(UserError, match="the list of rows is no table: ") as refused:
        as_dataset(rows)
    assert "\n" not in str(refused.value)


def test_a_token_that_the_model_does_not_know_is_refused_by_row(policy, tiny_tokenizer):
    """Tokens may be added to a tokenizer later, and the model may belong to another."""
    known = policy.tokens.tokenizer
    policy.tokens.tokenizer = tiny_tokenizer("bart")
    policy.tokens.tokenizer.add_tokens(["newword"])
    size = policy.base.get_input_embeddings().weight.shape[0]
    policy.tokens.tokenizer.add_tokens([f"new{n}" for n in range(size - len(policy.tokens.tokenizer) + 1)])
    last = policy.tokens.tokenizer.convert_ids_to_tokens(size)
    try:
        with pytest.raises(UserError, match=f"row 1: .*token id {size}, but the model knows {size}"):
            make(policy, {"prompt": ["name", last], "completion": ["try", "try"]})
    finally:
        policy.tokens.tokenizer = known


def test_an_empty_prompt_is_allowed():
    check_columns(Dataset.from_dict({"prompt": [""], "completion": ["try"]}))


@pytest.mark.parametrize(
    ("static_target", "columns", "missing"),
    [
        ("worst", {}, "candidates"),
        ("random", {}, "candidates"),
        ("best", {"candidates": [["a"]] * 2}, "candidate_rewards"),
    ],
)
def test_a_static_target_without_its_columns_is_refused(static_target, columns, missing):
    with pytest.raises(UserError, match=f"static_target={static_target} needs the column '{missing}'"):
        check_columns(Dataset.from_dict(ROWS | columns), static_target)


def test_an_unknown_static_target_is_refused():
    with pytest.raises(UserError, match=r"unknown static_target 'wurst'\. Did you mean 'worst'"):
        check_columns(Dataset.from_dict(ROWS), "wurst")


def test_a_row_without_candidates_is_named_also_far_down_in_the_data(policy):
    number = 1001
    columns = {
        "prompt": ["name"] * number,
        "completion": ["try"] * number,
        "candidates": [["meet"]] * (number - 1) + [[]],
    }
    with pytest.raises(UserError, match="row 1000 has no candidates"):
        make(policy, columns, "random", progress=False)


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("static_target", ["best", "worst"])
def test_a_candidate_without_a_reward_is_refused_or_passed_over(policy, static_target, missing):
    """An unscored candidate is neither the best nor the worst: refuse the row by number, or choose among the others."""
    columns = {"candidates": [["bold", "grab"], ["oslo", "paris"]], "candidate_rewards": [[0.5, 0.1], [missing, 0.1]]}
    made = make_or_message(policy, ROWS | columns, static_target)
    if isinstance(made, str):
        assert "row 1" in made
    else:
        assert texts(policy, made[1].static) == ["paris"]


def test_a_row_with_fewer_rewards_than_candidates_is_refused_by_number(policy):
    columns = {"candidates": [["bold", "grab"], ["oslo", "paris"]], "candidate_rewards": [[0.5, 0.1], [0.1]]}
    with pytest.raises(UserError, match="row 1"):
        make(policy, ROWS | columns, "worst")


def random_statics(policy, counts):
    """Examples with so many candidates each: the words of a row are its own."""
    words = iter(policy.tokens.tokenizer.convert_ids_to_tokens(range(5, 100)))
    candidates = [[next(words) for _ in range(count)] for count in counts]
    number = len(counts)
    columns = {"prompt": ["name"] * number, "completion": ["try"] * number, "candidates": candidates}
    return make(policy, columns, "random"), candidates


def test_random_picks_one_candidate_of_the_row_itself(policy):
    examples, candidates = random_statics(policy, [3, 3])
    batch = Collator(policy.tokens.pad_id)([examples[0], examples[1]])
    for numbers, picks in [([0.0, 0.0], (0, 0)), ([0.34, 0.99], (1, 2)), ([0.999999, 0.5], (2, 1))]:
        picked = pick_static(batch.static, batch.static_counts, torch.tensor(numbers))
        assert policy.tokens.decode(picked.ids.tolist()) == [candidates[0][picks[0]], candidates[1][picks[1]]]


def picks_of_a_step(policy, examples, chosen, step, settings):
    """The static targets that one training step works on: with nothing hidden, every sample is the static target."""
    seen = []

    def look(completions, **kwargs):
        seen.extend(completions[::2])
        return [0.0] * len(completions)

    look.deterministic = False  # it looks at all samples, and those of a row are the same
    batch = Collator(policy.tokens.pad_id)([examples[n] for n in chosen])
    with torch.no_grad():
        Method(settings).step(policy, batch, Scorer(policy, RewardSet(look)), Randomness(0, step))
    return seen


def test_random_picks_the_same_candidate_whatever_batch_the_row_is_in(policy, settings):
    """Rows differ in their number of candidates; 4 x 2 accumulation is 2 x 4 only if a neighbour changes nothing."""
    examples, candidates = random_statics(policy, [2, 3])
    args = settings(mask_rate=0.0, num_samples=2)
    alone = [picks_of_a_step(policy, examples, [0], step, args)[0] for step in range(30)]
    together = [picks_of_a_step(policy, examples, [0, 1], step, args)[0] for step in range(30)]
    assert set(alone) == set(candidates[0])
    assert alone == together


def test_random_picks_every_candidate_of_a_row_equally_often(policy, settings):
    examples, candidates = random_statics(policy, [2, 3])
    args = settings(mask_rate=0.0, num_samples=2)
    picks = [picks_of_a_step(policy, examples, [0, 1], step, args) for step in range(240)]
    for row, names in enumerate(candidates):
        drawn = [pair[row] for pair in picks]
        expected = 240 / len(names)
        assert [drawn.count(name) for name in names] == pytest.approx([expected] * len(names), abs=27)  # 3.5 sigma


def test_a_batch_moves_as_a_whole(policy):
    examples = make(policy, ROWS)
    moved = Collator(policy.tokens.pad_id)([examples[0]]).to("meta")
    tensors = [moved.index, *(t for text in (moved.source, moved.target, moved.static) for t in vars(text).values())]
    assert all(t.device.type == "meta" for t in tensors)
    assert moved.columns["city"] == ["oslo"]


# ---- conversations ----

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)
CHAT = {
    "prompt": [
        [{"role": "system", "content": "grab"}, {"role": "user", "content": "name : zorvia"}],
        [{"role": "user", "content": "name : lumora"}],
    ],
    "completion": [[{"role": "assistant", "content": text}] for text in ("meet zorvia today !", "grab the bold lamps")],
    "city": ["oslo", "paris"],
}


@pytest.fixture
def chatty(tiny_model, tiny_tokenizer):
    tokenizer = tiny_tokenizer("llama", extra=("system", "user", "assistant"))
    tokenizer.chat_template = TEMPLATE
    return Policy(tiny_model("llama", len(tokenizer)), tokenizer)


def chat(prompt=CHAT["prompt"][1], completion=({"role": "assistant", "content": "bold"},)):
    return {"prompt": [prompt], "completion": [completion if isinstance(completion, str) else list(completion)]}


def test_messages_go_through_the_chat_template(chatty):
    examples = make(chatty, CHAT)
    first, second = (example.source.ids.tolist() for example in examples)
    words = chatty.tokens.tokenizer.convert_ids_to_tokens
    assert words(first) == "<s> system : grab user : name : zorvia assistant :".split()  # one start token, not two
    assert words(second) == "<s> user : name : lumora assistant :".split()
    assert words(examples[0].target.ids.tolist()) == "meet zorvia today ! </s>".split()
    assert examples[0].columns["completion"] == "meet zorvia today !"
    assert examples[0].columns["references"] == ["meet zorvia today !"]
    assert texts(chatty, [make(chatty, chat(completion="bold"))[0].target]) == ["bold"]


def test_messages_stored_in_a_dataset(chatty):
    """Arrow fills the keys that a message lacks with None; the template does not see them."""
    rows = chat([{"role": "user", "content": "name : lumora", "name": "x"}, {"role": "user", "content": "oslo"}])
    examples = make(chatty, rows)
    assert examples[0].columns["prompt"] == "user : name : lumora user : oslo assistant : "


def test_a_tokenizer_that_adds_no_start_token_keeps_the_template_s(chatty, tiny_tokenizer):
    chatty.tokens.tokenizer.backend_tokenizer.post_processor = tiny_tokenizer(
        "llama", template="$A"
    ).backend_tokenizer.post_processor
    [example] = make(chatty, chat())
    assert chatty.tokens.tokenizer.convert_ids_to_tokens(example.source.ids.tolist())[:2] == ["<s>", "user"]


def test_rewards_see_the_prompt_as_text_and_the_messages_beside_it(chatty):
    seen = {}

    def reward(prompts, completions, messages, city, **columns):
        seen.update(prompts=prompts, messages=messages, city=city)
        return [float(len(text)) for text in completions]

    batch = Collator(chatty.tokens.pad_id)(list(make(chatty, CHAT)))
    Scorer(chatty, RewardSet(reward)).score_ids([[9], [10]], batch, 1)
    assert seen["prompts"] == ["system : grab user : name : zorvia assistant : ", "user : name : lumora assistant : "]
    assert seen["messages"] == CHAT["prompt"]
    assert seen["city"] == ["oslo", "paris"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (chat(prompt=[{"role": "user"}]), "the prompt must be text or a list of messages"),
        (chat(prompt=[]), "the prompt must be text or a list of messages"),
        (chat(prompt=["hi"]), "the prompt must be text or a list of messages"),
        (chat(prompt=[{"role": "assistant", "content": "hi"}]), "the last message of the prompt is the assistant's"),
        (chat(completion=[{"role": "user", "content": "hi"}]), "one message of the assistant"),
        (chat(completion=[{"role": "assistant", "content": "hi"}] * 2), "one message of the assistant"),
        (chat(completion=[{"role": "assistant", "content": " "}]), "must be a text that is not empty"),
    ],
)
def test_wrong_messages_are_told_in_front(chatty, columns, message):
    with pytest.raises(UserError, match=f"row 0: .*{message}"):
        make(chatty, columns)


def test_models_that_read_no_messages(policy, causal, chatty):
    with pytest.raises(UserError, match=r"row 0: .* an encoder-decoder model reads one text"):
        make(policy, chat())
    with pytest.raises(UserError, match=r"row 0: .* the tokenizer has no chat template: take a model that"):
        make(causal, chat())
    chatty.tokens.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(UserError, match="row 0: the tokenizer's chat template refuses the messages: no system role"):
        make(chatty, chat())


# ---- batches of like lengths ----


def test_batches_have_like_lengths_in_random_order():
    """Long and short batches take turns by chance; rows beside each other are alike; every epoch has its own order."""
    lengths = np.random.default_rng(0).integers(5, 500, 3207)
    sampler = LikeLengths(lengths, 16, seed=1)
    order = list(sampler)
    assert sorted(order) == list(range(len(sampler)))
    assert order == list(sampler)
    batches = lengths[order[: 3207 // 16 * 16]].reshape(-1, 16)
    assert batches[0].max() == lengths[order[: 3207 // 16 * 16]].max()
    assert (batches.max(1) - batches.min(1))[1:].mean() < 30  # of 495
    means = batches.mean(1)[1:]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3  # sorted, one follows from the one before
    sampler.set_epoch(1)
    assert list(sampler) != order
    assert list(LikeLengths(lengths, 16, seed=2)) != order


@pytest.mark.parametrize("rows", [0, 3, 16, 17])
def test_few_rows_are_all_there(rows):
    assert sorted(LikeLengths(list(range(rows)), 16, seed=0)) == list(range(rows))
