"""The synthetic advertisement task: its data, its click model, its facts, and the tiny model that learns it."""

from itertools import product
from statistics import mean

import pytest

from semioffline.errors import UserError
from semioffline.tasks import ads

CATEGORIES = ads.FACTS["category"]
WORDINGS = [dict(zip(ads.WORDING, words, strict=True)) for words in product(*ads.WORDING.values())]


@pytest.fixture(scope="module")
def data():
    return ads.build()


def facts_of(rows):
    return {field: list(rows[field]) for field in ads.FACTS}


def test_sizes_and_columns(data):
    assert {split: len(rows) for split, rows in data.items()} == {"train": 4000, "validation": 200, "test": 500}
    assert data["train"].column_names == ["prompt", "completion", "name", "category", "price", "feature", "city"]
    row = data["train"][0]
    assert row["prompt"] == ads.write_prompt({field: row[field] for field in ads.FACTS})


def test_prompt_form():
    record = {"name": "zorvia", "category": "lamps", "price": "$49", "feature": "dimmable", "city": "oslo"}
    prompt = "name : zorvia | category : lamps | price : $49 | feature : dimmable | city : oslo"
    assert ads.write_prompt(record) == prompt


def test_no_record_occurs_twice(data):
    prompts = [prompt for rows in data.values() for prompt in rows["prompt"]]
    assert len(set(prompts)) == len(prompts)


def test_seed_decides_the_data():
    sizes = {"train": 20, "test": 5}
    assert ads.build(sizes, seed=1)["train"][:] == ads.build(sizes, seed=1)["train"][:]
    assert ads.build(sizes, seed=1)["train"][:] != ads.build(sizes, seed=2)["train"][:]


def test_another_training_size_keeps_the_test_rows(data):
    assert ads.build({"train": 10, "test": 500})["test"][:] == data["test"][:]


@pytest.mark.parametrize("sizes", [{"train": -1}, {"train": 10**8}])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(UserError, match="split sizes"):
        ads.build(sizes)


def test_every_completion_states_its_facts_and_one_word_of_each_slot(data):
    for rows in data.values():
        assert set(ads.facts_right(rows["completion"], **facts_of(rows))) <= {1.0}
        for text in rows["completion"]:
            for words in ads.WORDING.values():
                assert sum(word in words for word in text.split()) == 1


def test_vocabularies_are_disjoint_and_of_the_stated_sizes():
    assert {field: len(values) for field, values in ads.FACTS.items()} == {
        "name": 60, "category": 8, "price": 30, "feature": 24, "city": 24,
    }  # fmt: skip
    slots = dict.fromkeys((*ads.FACTS, *ads.WORDING), "")
    frame = {word for template in ads.TEMPLATES for word in template.format(**slots).split()}
    frame |= set(ads.write_prompt(slots).split())
    groups = [*ads.FACTS.values(), *ads.WORDING.values(), tuple(frame)]
    words = [word for group in groups for word in group]
    assert len(set(words)) == len(words)
    assert set(words) == set(ads.vocabulary())
    assert all(word == word.lower() and len(word.split()) == 1 for word in words)


def test_the_vocabulary_covers_the_data(data):
    seen = {
        word for rows in data.values() for name in ("prompt", "completion") for word in " ".join(rows[name]).split()
    }
    assert seen == set(ads.vocabulary())


def click_rates(wording):
    """The click rate of one wording in every category."""
    return ads.click_rate([" ".join(wording.values())] * len(CATEGORIES), CATEGORIES)


def test_click_rates_of_random_best_and_fixed_wording(data):
    """Random wording is poor, the best per category is good, and no single wording serves all categories."""
    table = [click_rates(wording) for wording in WORDINGS]  # (512, 8)
    random_mean = mean(mean(row) for row in table)
    assert 0.2 <= random_mean <= 0.3
    for index, category in enumerate(CATEGORIES):
        best = max(row[index] for row in table)
        assert 0.7 <= best <= 0.85
        assert ads.click_rate([" ".join(ads.best_wording(category).values())], [category]) == [best]
    assert max(mean(row) for row in table) < 1.1 * random_mean
    for rows in data.values():
        counts = [list(rows["category"]).count(category) / len(rows) for category in CATEGORIES]
        data_mean = mean(ads.click_rate(rows["completion"], rows["category"]))
        assert 0.2 <= data_mean <= 0.3
        best_single = max(sum(share * rate for share, rate in zip(counts, row, strict=True)) for row in table)
        assert best_single < 1.2 * data_mean


def test_every_category_has_words_it_likes_and_words_it_dislikes():
    for category, (slot, words) in product(CATEGORIES, ads.WORDING.items()):
        values = [ads.preference(slot, word, category) for word in words]
        assert min(values) < 0 < max(values)
    for slot, words in ads.WORDING.items():  # a Latin square: each word is the best of exactly one category
        assert {ads.best_wording(category)[slot] for category in CATEGORIES} == set(words)


def test_click_rate_is_a_mean_over_the_words_of_a_slot():
    """So repeating a word or stuffing a text with all words gains nothing; but no fact is looked at either."""
    everything = " ".join(word for words in ads.WORDING.values() for word in words)
    best = " ".join(ads.best_wording("lamps").values())
    texts = ["discover", "discover discover", "", everything, best, best + " zorvia"]
    once, twice, nothing, stuffed, *no_ads = ads.click_rate(texts, ["lamps"] * len(texts))
    assert once == twice
    assert nothing == ads.BIAS
    assert stuffed == pytest.approx(0.25)
    assert no_ads == [pytest.approx(0.79)] * 2


def test_click_rate_refuses_an_unknown_category():
    with pytest.raises(UserError, match="Did you mean 'lamps'"):
        ads.click_rate(["discover"], ["lamp"])


def test_rewards_take_whatever_else_the_trainer_passes():
    assert ads.click_rate(completions=["meet"], category=["mugs"], prompts=["x"], references=[["y"]])


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("zorvia lamps $49 vegan oslo", 1.0),
        ("zorvia lamps $49 vegan", 0.8),  # a fact left out
        ("zorvia lamps $49 vegan oslo oslo", 0.8),  # a fact said twice
        ("zorvia lamps $49 vegan oslo paris", 0.8),  # a second value beside the right one
        ("zorvia lamps $49 vegan paris", 0.8),
        ("discover discover", 0.0),
    ],
)
def test_facts_right(text, share):
    facts = {"name": ["zorvia"], "category": ["lamps"], "price": ["$49"], "feature": ["vegan"], "city": ["oslo"]}
    assert ads.facts_right([text], **facts, prompts=["x"]) == [pytest.approx(share)]


def test_tokenizer_encodes_like_bart_and_decodes_exactly(data, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = ads.build_tokenizer()
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]) == [0, 1, 2, 3, 4]
    assert len(tokenizer) == len(ads.vocabulary()) + 5
    assert tokenizer.mask_token_id == 4
    texts = [*data["test"]["prompt"], *data["test"]["completion"]]
    encoded = tokenizer(texts)
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert all(ids[0] == 0 and ids[-1] == 2 and 3 not in ids and len(ids) < 40 for ids in encoded["input_ids"])
    assert tokenizer.batch_decode(encoded["input_ids"], skip_special_tokens=True) == texts
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(texts[0]).input_ids == encoded["input_ids"][0]


def test_model_is_small_and_depends_on_the_seed_only(tmp_path):
    import torch
    from transformers import AutoModelForSeq2SeqLM

    state = torch.get_rng_state()
    model, again, other = ads.build_model(3), ads.build_model(3), ads.build_model(4)
    assert torch.equal(torch.get_rng_state(), state)
    assert 300_000 < model.num_parameters() < 700_000
    assert torch.equal(model.model.shared.weight, again.model.shared.weight)
    assert not torch.equal(model.model.shared.weight, other.model.shared.weight)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    batch = ads.build_tokenizer()(["name : zorvia"], return_tensors="pt")
    ids = loaded.generate(**batch, max_new_tokens=5)
    assert ids[0, :2].tolist() == [2, 0]  # BART starts the decoder with </s> and forces <s>


def test_task_loads_a_split():
    from semioffline.tasks.registry import Source, load_task

    task = load_task("ads")
    assert len(task.load(Source(limit=7), "test")) == 7
    with pytest.raises(UserError, match="Did you mean 'test'"):
        task.load(Source(), "tests")


def test_task_reads_rows_that_were_written_before(tmp_path):
    """Such as the candidates that `semioffline candidates --task ads` made; the other splits are built as ever."""
    import json

    from semioffline.tasks.registry import Source, load_task

    row = ads.build({"train": 1})["train"][0] | {"candidates": ["meet zorvia"], "candidate_rewards": [0.25]}
    (tmp_path / "candidates.jsonl").write_text(json.dumps(row) + "\n")
    source = Source(files={"train": str(tmp_path / "candidates.jsonl")})
    task = load_task("ads")
    assert task.load(source, "train").to_list() == [row]
    assert len(task.load(source, "test")) == 500
    assert task.has(source, "validation")
