"""The tasks on public datasets: the columns and files they read, their prompt forms, references and missing splits."""

import json
import re
from pathlib import Path

import pytest
import transformers as hf

from semioffline.errors import UserError
from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.reading.kinds import KINDS
from semioffline.tasks.registry import Source, load_task, task_names

CONFIGS = {
    "t5": hf.T5Config(),
    "encoder_decoder": hf.BartConfig(),
    "decoder_only": hf.LlamaConfig(),
}


@pytest.fixture(scope="session")
def readers(tmp_path_factory):
    """kind of model -> a folder with its config.json: all that a task looks at."""
    folder = tmp_path_factory.mktemp("models")
    for kind, config in CONFIGS.items():
        config.save_pretrained(folder / kind)
    return {kind: str(folder / kind) for kind in CONFIGS}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_split(folder, split, rows):
    write(folder / f"{split}.jsonl", rows)
    return Source(data_dir=str(folder))


SAMSUM = [{"id": "1", "dialogue": "A: hi\nB: ho", "summary": "They greet."}]
E2E = [
    {"input": "name[X], area[city]", "target": "X is in the city."},
    {"input": "name[Y]", "target": "Y."},
    {"input": "name[X], area[city]", "target": "In the city there is X."},
]


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [
        ("t5", "summarize: A: hi\nB: ho"),
        ("encoder_decoder", "A: hi\nB: ho"),
        ("decoder_only", "Dialogue:\nA: hi\nB: ho\nSummary:"),
    ],
)
def test_the_prompt_has_the_form_that_the_model_wants(tmp_path, readers, kind, prompt):
    source = write_split(tmp_path, "test", SAMSUM)
    [row] = load_task("samsum").load(Source(data_dir=source.data_dir, model=readers[kind]), "test")
    assert row == {"id": "1", "prompt": prompt, "completion": "They greet."}


def test_an_adapter_reads_what_its_base_reads(tmp_path, readers):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": readers["t5"]}))
    source = write_split(tmp_path, "test", SAMSUM)
    [row] = load_task("samsum").load(Source(data_dir=source.data_dir, model=str(tmp_path / "adapter")), "test")
    assert row["prompt"].startswith("summarize: ")


def test_a_template_of_ones_own_replaces_the_form(tmp_path, readers):
    source = write_split(tmp_path, "test", SAMSUM)
    source = Source(data_dir=source.data_dir, model=readers["t5"], prompt_template="TL;DR {prompt}")
    assert load_task("samsum").load(source, "test")[0]["prompt"] == "TL;DR A: hi\nB: ho"


def test_rows_that_have_a_prompt_are_formed_already(tmp_path, readers, caplog):
    """Such as the candidates of a comparison: the form is not put around them twice, and that is said."""
    row = {"prompt": "summarize: A: hi", "completion": "They greet.", "candidates": ["Hi."], "candidate_rewards": [0.5]}
    source = Source(files={"train": write(tmp_path / "c.jsonl", [row])}, model=readers["t5"])
    assert load_task("samsum").load(source, "train").to_list() == [row]
    assert "c.jsonl, line 1: the rows have a column 'prompt', so they are taken as they are" in caplog.text


def test_candidates_are_read_back_as_the_rows_they_were_made_from(tmp_path, readers):
    """`candidates` stores the rows as they are (raw) with two columns more; the task gives them their form again."""
    task, source = load_task("e2e"), write_split(tmp_path, "train", E2E)
    source = Source(data_dir=source.data_dir, model=readers["t5"])
    rows, stored = task.load(source, "train"), task.load(Source(data_dir=source.data_dir, raw=True), "train")
    assert stored.remove_columns("references").to_list() == E2E  # those of all rows: a file may hold only some
    more = {"candidates": ["a"], "candidate_rewards": [1.0]}
    path = write(tmp_path / "candidates.jsonl", [row | more for row in stored])
    again = task.load(Source(files={"train": path}, model=readers["t5"]), "train")
    assert again.to_list() == [row | more for row in rows]
    assert len(again) == 3


@pytest.mark.parametrize("split", ["validation", "test"])
def test_rows_with_the_same_input_become_one_with_all_references(tmp_path, readers, split):
    task, source = load_task("e2e"), write_split(tmp_path, split, E2E)
    source = Source(data_dir=source.data_dir, model=readers["t5"])
    assert task.load(source, split).to_list() == [
        {
            "prompt": "describe the restaurant: name[X], area[city]",
            "completion": "X is in the city.",
            "references": ["X is in the city.", "In the city there is X."],
        },
        {"prompt": "describe the restaurant: name[Y]", "completion": "Y.", "references": ["Y."]},
    ]
    one = Source(data_dir=source.data_dir, limit=1)
    assert task.load(one, split)["references"][:] == [["X is in the city.", "In the city there is X."]]
    stored = task.load(Source(data_dir=source.data_dir, raw=True), split)
    assert stored[0] == E2E[0] | {"references": ["X is in the city.", "In the city there is X."]}
    path = write(tmp_path / "stored.jsonl", stored)
    again = task.load(Source(files={split: path}, model=readers["t5"]), split)
    assert again.to_list() == task.load(source, split).to_list()


def test_training_rows_stay_single_and_know_the_references_of_their_input(tmp_path):
    task, source = load_task("e2e"), write_split(tmp_path, "train", E2E)
    rows = task.load(source, "train")
    assert [row["completion"] for row in rows] == [row["target"] for row in E2E]
    by_text = {row["completion"]: row["references"] for row in rows}
    assert by_text == {
        "X is in the city.": ["X is in the city.", "In the city there is X."],
        "In the city there is X.": ["In the city there is X.", "X is in the city."],
        "Y.": ["Y."],
    }
    limited = task.load(Source(data_dir=source.data_dir, limit=1), "train")
    assert len(limited) == 1
    assert len(limited[0]["references"]) == 2
    path = write(tmp_path / "again.jsonl", task.load(Source(data_dir=source.data_dir, raw=True), "train"))
    again = task.load(Source(files={"train": path}), "train")
    assert {row["completion"]: row["references"] for row in again} == by_text


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "p", "completion": "c", "references": "yes no"}, "references"),
        ({"input": "p", "target": [{"role": "assistant", "content": "c"}]}, "completion must be text"),
    ],
)
def test_what_is_no_text_is_told_before_rows_are_grouped(tmp_path, split, row, said):
    with pytest.raises(UserError, match=rf"{split}\.jsonl, line 1: .*{said}"):
        load_task("e2e").load(write_split(tmp_path, split, [row, row]), split)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("e2e", {"meaning_representation": "p", "human_reference": "c"}),
        ("e2e", {"mr": "p", "ref": "c"}),
        ("e2e", {"input": "p", "target": "c"}),
        ("samsum", {"dialogue": "p", "summary": "c"}),
        ("dialogsum", {"dialogue": "p", "summary": "c"}),
        ("cnndm", {"article": "p", "highlights": "c"}),
        ("xsum", {"document": "p", "summary": "c"}),
        ("commongen", {"concepts": ["p"], "target": "c"}),
        ("commongen", {"input": "p", "target": "c"}),
        ("scitldr", {"input": "p", "target": "c"}),
        ("squad_qg", {"paragraph_answer": "p", "question": "c"}),
        ("nqg", {"input": "p", "target": "c"}),
    ],
)
def test_the_columns_that_people_have(tmp_path, task, row):
    write(tmp_path / "validation.jsonl", [row])  # nqg would hold one out of train
    source = write_split(tmp_path, "train", [row])
    [loaded] = load_task(task).load(source, "train")
    assert (loaded["prompt"], loaded["completion"]) == ("p", "c")


def test_lists_are_joined_in_a_prompt_and_references_in_a_completion(tmp_path):
    row = {"source": ["We do this.", "It works."], "target": ["It works well.", "This works."]}
    [loaded] = load_task("scitldr").load(write_split(tmp_path, "test", [row]), "test")
    assert loaded == {
        "prompt": "We do this. It works.",
        "completion": "It works well.",
        "references": ["It works well.", "This works."],
    }


def test_references_in_columns_of_their_own(tmp_path):
    """DialogSum's original files; on the Hub they are three rows."""
    three = {"dialogue": "d", "summary1": "a", "summary2": "b", "summary3": "a"}
    write(tmp_path / "dialogsum.test.jsonl", [three])
    [loaded] = load_task("dialogsum").load(Source(data_dir=str(tmp_path)), "test")
    assert loaded == {"prompt": "d", "completion": "a", "references": ["a", "b"]}
    rows = [{"dialogue": "d", "summary": text} for text in "ab"]
    [loaded] = load_task("dialogsum").load(write_split(tmp_path, "test", rows), "test")
    assert loaded == {"prompt": "d", "completion": "a", "references": ["a", "b"]}


# ---- splits that are not there ----


def numbered(count):
    return [{"input": f"concept{n // 2}", "target": f"sentence {n}"} for n in range(count)]


@pytest.mark.parametrize(
    ("task", "missing", "of", "share"), [("commongen", "test", "validation", 0.5), ("nqg", "validation", "train", 0.1)]
)
def test_a_missing_split_is_held_out_by_input(tmp_path, caplog, task, missing, of, share):
    task, source = load_task(task), write_split(tmp_path, of, numbered(2000))
    parts = [task.load(source, split) for split in (missing, of)]
    inputs = [set(part["prompt"]) for part in parts]
    assert not inputs[0] & inputs[1]
    assert len(inputs[0] | inputs[1]) == 1000
    assert len(inputs[0]) == pytest.approx(1000 * share, abs=40)
    assert f"there is no {missing} split: {share:.0%} of the inputs of {of} are held out for it" in caplog.text
    assert task.has(source, missing)
    (tmp_path / "some").mkdir()
    fewer = write_split(tmp_path / "some", of, numbered(2000)[400:])  # other rows do not change who is chosen
    assert set(task.load(fewer, missing)["prompt"]) == inputs[0] - {f"concept{n}" for n in range(200)}
    stored = task.load(Source(data_dir=source.data_dir, raw=True), missing)
    assert stored["input"][:] == parts[0]["prompt"][:]


def test_nothing_is_held_out_where_the_split_is_there(tmp_path):
    task, rows = load_task("nqg"), numbered(200)
    source = write_split(tmp_path, "train", rows)
    own = Source(data_dir=source.data_dir, files={"validation": write(tmp_path / "mine.jsonl", rows[:4])})
    assert len(task.load(own, "train")) == 200
    candidates = Source(data_dir=source.data_dir, files={"train": write(tmp_path / "candidates.jsonl", rows[:50])})
    assert len(task.load(candidates, "train")) == 50
    held_out = task.load(candidates, "validation").to_list()
    assert held_out == task.load(source, "validation").to_list()  # out of the folder, not out of the candidates
    assert len(held_out) > 5
    write(tmp_path / "validation.jsonl", rows[:4])
    assert len(task.load(source, "train")) == 200
    assert len(task.load(source, "validation")) == 2


# ---- SQuAD ----

CONTEXT = "Beyonce, born in Houston, sings."
ANSWERS = [{"text": "Houston", "answer_start": 17}, {"text": "in Houston", "answer_start": 14}]
MARKED = "Beyonce, born in <hl> Houston <hl> , sings."


@pytest.mark.parametrize(
    "row",
    [
        {"paragraph_answer": MARKED, "question": "Where?"},
        {"context": CONTEXT, "question": "Where?", "answers": ANSWERS},
        {"context": CONTEXT, "question": "Where?", "answers": {"text": ["Houston"], "answer_start": [17]}},
    ],
)
def test_squad_marks_the_answer(tmp_path, readers, row):
    source = Source(data_dir=write_split(tmp_path, "train", [row]).data_dir, model=readers["t5"])
    [loaded] = load_task("squad_qg").load(source, "train")
    assert (loaded["prompt"], loaded["completion"]) == (f"generate question: {MARKED}", "Where?")
    stored = load_task("squad_qg").load(Source(data_dir=source.data_dir, raw=True), "train")
    again = Source(files={"train": write(tmp_path / "candidates.jsonl", stored)}, model=readers["t5"])
    assert load_task("squad_qg").load(again, "train")[0] == loaded


@pytest.mark.parametrize("indent", [None, 1])
def test_squad_in_its_original_form(tmp_path, indent):
    asked = [
        {"id": "a", "question": "Where?", "answers": ANSWERS},
        {"id": "b", "question": "Who?", "answers": [{"text": "Beyonce", "answer_start": 0}]},
        {"id": "c", "question": "When?", "answers": [], "is_impossible": True},
    ]
    paragraphs = [{"context": CONTEXT, "qas": asked}]
    nested = {"version": "1.1", "data": [{"title": "Beyonce", "paragraphs": paragraphs}]}
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(nested, indent=indent))
    loaded = load_task("squad_qg").load(Source(data_dir=str(tmp_path)), "validation")
    assert loaded.to_list() == [
        {"id": "a", "prompt": MARKED, "completion": "Where?"},
        {"id": "b", "prompt": "<hl> Beyonce <hl> , born in Houston, sings.", "completion": "Who?"},
    ]
    assert len(load_task("squad_qg").load(Source(data_dir=str(tmp_path), limit=1), "validation")) == 1


def test_the_reward_of_question_generation_is_the_average_of_bleu_and_rouge():
    from semioffline.scoring.named import find_reward as load_reward

    texts, references = ["where is it ?", "who sings ?"], [["where was it ?"], ["who sings ?"]]
    name, reward = load_reward(load_task("squad_qg").reward)
    bleu, rouge = (load_reward(part)[1](completions=texts, references=references) for part in ("bleu", "rougeL"))
    assert name == "bleu_rougeL"
    expected = [(a + b) / 2 for a, b in zip(bleu, rouge, strict=True)]
    assert reward(completions=texts, references=references, prompts=["", ""]) == pytest.approx(expected)
    assert expected[1] == pytest.approx(1.0)


# ---- what every task declares ----


@pytest.mark.parametrize("name", task_names())
def test_rewards_metrics_and_settings_exist(name):
    from dataclasses import fields

    from semioffline.cli.evaluate import EvaluateOptions
    from semioffline.config import MethodConfig
    from semioffline.scoring.named import find_reward as load_reward

    task = load_task(name)
    for reward in (*task.metrics, *([task.reward] if task.reward else [])):
        load_reward(reward)
    for options in (MethodConfig, EvaluateOptions):
        assert set(task.settings) <= {field.name for field in fields(options)}
    assert set(getattr(task.load, "forms", {})) <= set(KINDS)


# ---- what is said when something is missing ----


def test_a_missing_column_is_told_with_what_was_looked_for(tmp_path):
    source = write_split(tmp_path, "train", [{"text": "p", "summary": "c"}])
    message = "train.jsonl, line 1: no column for the prompt: looked for dialogue or input; there are text, summary"
    with pytest.raises(UserError, match=message):
        load_task("samsum").load(source, "train")
    own = Source(data_dir=source.data_dir, columns={"prompt": "text"})
    assert load_task("samsum").load(own, "train").to_list() == [{"prompt": "p", "completion": "c"}]
    with pytest.raises(UserError, match="looked for txt; there are text, summary"):
        load_task("samsum").load(Source(data_dir=source.data_dir, columns={"prompt": "txt"}), "train")
    with pytest.raises(UserError, match="looked for paragraph_answer or context with answers; there are text, summary"):
        load_task("squad_qg").load(source, "train")


def test_other_columns_can_be_named_too(tmp_path):
    row = {"dialogue": "d", "summary": "a", "more": ["b"]}
    source = write_split(tmp_path, "test", [row])
    [loaded] = load_task("samsum").load(Source(data_dir=source.data_dir, columns={"references": "more"}), "test")
    assert loaded == {"prompt": "d", "completion": "a", "references": ["a", "b"]}


def test_a_missing_file_is_told_with_what_was_looked_for(tmp_path):
    source = write_split(tmp_path, "train", SAMSUM)
    with pytest.raises(UserError, match=r"no test split: looked for test\*.*It holds: train.jsonl"):
        load_task("samsum").load(source, "test")
    with pytest.raises(
        UserError, match=r"no data for the test split: give --test_file .*columns: dialogue or input, and summary"
    ):
        load_task("samsum").load(Source(files={"train": f"{tmp_path}/train.jsonl"}), "test")


def test_without_a_folder_the_public_dataset_is_asked_for(monkeypatch):
    import datasets

    asked = []

    def load_dataset(name, config, **options):
        asked.append((name, config, options["split"]))
        if len(asked) > 1:
            raise ConnectionError("no network")
        return datasets.Dataset.from_list(SAMSUM)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_task("samsum").load(Source(), "test")[0]["prompt"] == "A: hi\nB: ho"
    assert asked == [("knkarthick/samsum", None, "test")]
    with pytest.raises(UserError, match=r"no --data_dir was given.*'knkarthick/samsum'.*: no network. Give --data_dir"):
        load_task("samsum").load(Source(), "test")


def test_the_hub_has_parquet_copies_in_which_a_config_is_a_folder(monkeypatch):
    import datasets

    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return datasets.Dataset.from_list([{"source": ["p"], "target": ["c"]}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_task("scitldr").load(Source(), "test")["prompt"][:] == ["p"]
    load_task("scitldr").load(Source(data_dir="allenai/scitldr:AIC"), "test")
    where = {"data_dir": "Abstract", "revision": "refs/convert/parquet"}
    assert asked == [
        (("allenai/scitldr", None), {"split": "test", **where}),
        (("allenai/scitldr", "AIC"), {"split": "test"}),
    ]


def test_rows_without_text_are_left_out_and_told(tmp_path, caplog):
    """SAMSum and others have a few."""
    rows = [
        *SAMSUM,
        {"id": "2", "dialogue": "", "summary": "x"},
        {"id": "3", "dialogue": "d", "summary": None},
        *SAMSUM,
    ]
    source = write_split(tmp_path, "train", rows)
    assert load_task("samsum").load(source, "train")["id"][:] == ["1", "1"]
    assert "2 of 4 rows have no prompt or no completion and are left out" in caplog.text
    assert "train.jsonl, line 2" in caplog.text
    source = write_split(tmp_path, "train", rows[1:3])
    with pytest.raises(UserError, match="no row has both"):
        load_task("samsum").load(source, "train")


def test_which_splits_there_are(tmp_path):
    source = write_split(tmp_path, "train", SAMSUM)
    task = load_task("samsum")
    assert [task.has(source, split) for split in ("train", "validation", "test")] == [True, False, False]
    assert task.has(Source(), "validation")  # on the Hub
    files = Source(files={"train": f"{tmp_path}/train.jsonl"})
    assert [task.has(files, split) for split in ("train", "validation")] == [True, False]


# ---- the page on tasks ----

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()


def test_the_examples_of_the_page(tmp_path, readers, monkeypatch):
    """From Python, and a task of one's own; with small files in place of the data."""
    first, second = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "samsum").mkdir(parents=True)
    write_split(tmp_path / "data" / "samsum", "train", SAMSUM)
    names: dict = {}
    exec(first.replace("google/flan-t5-small", readers["t5"]), names)
    assert names["rows"][0]["prompt"] == "summarize: A: hi\nB: ho"
    exec(second, names)
    source = write_split(tmp_path, "test", [{"ingredients": ["flour", "eggs"], "instructions": "Mix."}])
    source = Source(data_dir=source.data_dir, model=readers["decoder_only"])
    [row] = names["TASK"].load(source, "test")
    assert row == {"prompt": "Ingredients: flour eggs\nRecipe:", "completion": "Mix.", "references": ["Mix."]}


@pytest.mark.parametrize("name", task_names())
def test_the_page_says_what_the_task_says(name):
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    task = load_task(name)
    said = [*task.metrics, (task.reward or "").rpartition(":")[2]]
    if isinstance(task.load, Corpus):
        said += [task.load.name or "", *task.load.prompt, *task.load.completion]
        said += [form.replace("\n", "\\n") for form in task.load.forms.values()]
    assert [text for text in said if text not in line] == []
    limits = [task.settings.get(key, 0) for key in ("min_new_tokens", "max_completion_length")]
    if limits[1]:
        assert (f"{limits[0]}–{limits[1]}" if limits[0] else f"≤ {limits[1]}") in line
    assert f"beam {task.settings.get('num_beams')}" in line or task.settings.get("num_beams", 1) == 1
