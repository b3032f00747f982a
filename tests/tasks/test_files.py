"""Rows from files, folders, the Hub and memory; and what is said when they are wrong."""

import bz2
import csv
import gzip
import json
import lzma
import os
import re
import resource
import time
from random import Random

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semioffline.errors import UserError
from semioffline.tasks.reading.formats import WINDOW
from semioffline.tasks.reading.rows import group_references, load_rows, parse_columns

ROWS = [{"prompt": "a\u2028b", "completion": "A", "id": 1}, {"prompt": "c, \"d\"\n'e'", "completion": "ü", "id": 2}]


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(path, content, encoding="utf-8"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def write_jsonl(path, rows):
    return write(path, lines(rows))


def pack_gz(content):
    """Without the time: it would be part of the test's name, which every process must find alike."""
    return gzip.compress(content, mtime=0)


def pack_zst(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_json_lines_plain_and_compressed(tmp_path, ending):
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": pack_zst}[ending]
    path = write(tmp_path / f"rows.jsonl{ending}", pack(lines(ROWS).encode()))
    assert load_rows(path).to_list() == ROWS
    assert load_rows(str(path), limit=1).to_list() == ROWS[:1]


@pytest.mark.parametrize(
    "content", [json.dumps(ROWS, indent=2), lines(ROWS), "\ufeff" + lines(ROWS), "\n" + lines(ROWS)]
)
def test_json_as_an_array_or_as_lines(tmp_path, content):
    assert load_rows(write(tmp_path / "rows.json", content)).to_list() == ROWS


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".csv.gz", ",")])
def test_tables_keep_every_cell_as_text(tmp_path, ending, delimiter):
    path = tmp_path / f"rows{ending}"
    opener = gzip.open if ending.endswith("gz") else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["prompt", "completion", "id"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    assert load_rows(path).to_list() == [row | {"id": str(row["id"])} for row in ROWS]


def test_a_table_may_hold_long_documents(tmp_path):
    path = write(tmp_path / "rows.csv", f"prompt,completion\n{'x' * 200_000},y\n")
    assert len(load_rows(path)[0]["prompt"]) == 200_000


def test_parquet(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert load_rows(tmp_path / "rows.parquet").to_list() == ROWS


def test_a_list_of_files_is_joined_and_missing_values_are_none(tmp_path):
    first = write_jsonl(tmp_path / "a.jsonl", ROWS)
    second = write(tmp_path / "b.csv", "prompt,completion,note\np,q,r\n")
    loaded = load_rows([first, str(second)])
    assert loaded["note"][:] == [None, None, "r"]
    assert loaded["id"][:] == [1, 2, None]
    assert len(load_rows([first, second], limit=2)) == 2


def test_folder_and_split(tmp_path):
    for name in ("train.jsonl.xz", "train-old.jsonl", "dev.jsonl", "test-0.jsonl", "test-1.jsonl", "notes.txt"):
        content = lines([{"prompt": name, "completion": "x"}]).encode()
        write(tmp_path / name, lzma.compress(content) if name.endswith("xz") else content)
    assert load_rows(tmp_path, "train")["prompt"][:] == ["train.jsonl.xz"]  # the exact name wins
    assert load_rows(str(tmp_path), "validation")["prompt"][:] == ["dev.jsonl"]
    assert load_rows(tmp_path, "test")["prompt"][:] == ["test-0.jsonl", "test-1.jsonl"]
    with pytest.raises(UserError, match=r"no extra split: looked for extra\*.*It holds: dev.jsonl, test-0"):
        load_rows(tmp_path, "extra")
    with pytest.raises(UserError, match="say which split"):
        load_rows(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(UserError, match=r"more than once \(train.jsonl, train.jsonl.xz\)"):
        load_rows(tmp_path, "train")


@pytest.mark.parametrize("name", ["validation", "val", "valid", "dev"])
def test_every_name_of_the_validation_split(tmp_path, name):
    write_jsonl(tmp_path / f"{name}.jsonl", ROWS)
    assert len(load_rows(tmp_path, "validation")) == len(load_rows(tmp_path, "dev")) == 2


@pytest.mark.parametrize("source", ["/no/such/folder", "rows.jsonl", "data/rows.csv.gz", "./rows", "data/"])
def test_a_path_that_does_not_exist_is_named(source):
    with pytest.raises(UserError, match=f"no file or folder '{source.rstrip('/').removeprefix('./')}'"):
        load_rows(source, "train")


def test_other_files_and_other_things_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data files end in .jsonl, .json, .csv"):
        load_rows(write(tmp_path / "rows.txt", "x"))
    for source in (3, [], [3]):
        with pytest.raises(UserError, match="data must be a file"):
            load_rows(source)
    with pytest.raises(UserError, match="limit must be at least 1"):
        load_rows("rows.jsonl", limit=0)


def test_a_name_is_loaded_from_the_hub(monkeypatch):
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.Dataset.from_list([*ROWS, {"prompt": "x", "completion": " ", "id": 3}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_rows("owner/name:config", "train", limit=2).to_list() == ROWS
    assert calls == [(("owner/name", "config"), {"split": "train"})]
    with pytest.raises(UserError, match="owner/name, index 2: the completion is missing or empty"):
        load_rows("owner/name", "train")
    with pytest.raises(UserError, match="needs a split"):
        load_rows("owner/name")


def test_a_name_that_cannot_be_loaded(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("not\nthere")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"'nothing' is no file or folder here, nor .*: not there"):
        load_rows("nothing", "train")


def test_a_dataset_in_memory_is_passed_through():
    rows = datasets.Dataset.from_list(ROWS)
    assert load_rows(rows) is rows
    assert load_rows(rows.with_format("torch"), prompt_template="{id}: {prompt}")[0]["prompt"] == "1: a\u2028b"
    assert load_rows(rows.shuffle(seed=0), prompt_template="{prompt}").sort("id").to_list() == [
        {"id": row["id"], "prompt": row["prompt"], "completion": row["completion"]} for row in ROWS
    ]


def test_columns_are_renamed_and_others_kept(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"dialogue": "d", "summary": "s", "id": 5}])
    loaded = load_rows(path, columns={"prompt": "dialogue", "completion": "summary"})
    assert loaded.to_list() == [{"prompt": "d", "completion": "s", "id": 5}]
    with pytest.raises(
        UserError, match=r"unknown column 'sumary'. Did you mean 'summary'\? Known: dialogue, id, summary"
    ):
        load_rows(path, columns={"completion": "sumary"})
    with pytest.raises(UserError, match=r"no column 'completion'. Columns: prompt, summary, id"):
        load_rows(path, columns={"prompt": "dialogue"})
    with pytest.raises(UserError, match="mapped to two names"):
        load_rows(path, columns={"prompt": "summary", "completion": "summary"})
    assert load_rows(path, columns={"prompt": "dialogue"}, require=("prompt",)).column_names == [
        "prompt",
        "summary",
        "id",
    ]


def test_renaming_never_overwrites_a_column():
    rows = datasets.Dataset.from_list([{"prompt": "p", "completion": "c", "text": "t"}])
    with pytest.raises(UserError, match="there is a column 'prompt' already"):
        load_rows(rows, columns={"prompt": "text"})
    swapped = load_rows(rows, columns={"prompt": "completion", "completion": "prompt"})
    assert swapped[0] == {"prompt": "c", "completion": "p", "text": "t"}


def test_prompt_template():
    rows = datasets.Dataset.from_list([{"prompt": "{id} hi", "completion": "x", "id": 7, "tags": ["a"], "none": None}])

    def prompt(template, **kwargs):
        return load_rows(rows, prompt_template=template, **kwargs)[0]["prompt"]

    assert prompt("Dialogue:\n{prompt}\nSummary:") == "Dialogue:\n{id} hi\nSummary:"  # braces in the data stay
    assert prompt(r"{id}\n{{{prompt}}} {id}") == "7\n{{id} hi} 7"
    assert prompt("{none}{prompt}", allow_empty=True) == "{id} hi"
    for template, message in {
        "{promt}": "Did you mean 'prompt'",
        "{prompt.__class__}": "unknown column in prompt_template",
        "{prompt[0]}": "unknown column in prompt_template",
        "{}": "unknown column in prompt_template ''",
        "{prompt!r}": r"write only \{prompt\}",
        "{id:>5}": r"write only \{id\}",
        "{prompt": "cannot read prompt_template",
        "Summary:": "contains no column",
        "{tags}": r"dataset, index 0: .*tags is \['a'\]",
        "{none}": "dataset, index 0: the none is missing",
    }.items():
        with pytest.raises(UserError, match=message):
            prompt(template)


def test_a_template_can_make_the_prompt_but_not_hide_an_empty_one(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"name": "n", "completion": "c"}])
    assert load_rows(path, prompt_template="name: {name}")[0]["prompt"] == "name: n"
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": " ", "completion": "c"}])
    with pytest.raises(UserError, match="line 1: the prompt is missing or empty"):
        load_rows(path, prompt_template="Dialogue: {prompt}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.jsonl", '{"prompt": "a", "completion": "b"}\n{"prompt": \n', "r.jsonl, line 2: not valid JSON"),
        ("r.jsonl", b'{"prompt": "a", "completion": "b"}\n{"prompt": "\xff"}\n', "r.jsonl, line 2: .*utf-8"),
        ("r.jsonl", '\n["a", "b"]\n', r"r.jsonl, line 2: expected an object with columns, got \['a', 'b'\]"),
        ("r.json", '[{"prompt": "a"},\n{"prompt"}]', "r.json, line 2: not valid JSON"),
        ("r.json", '[{"prompt": "a", "completion": "b"}, 3]', "r.json, row 2: expected an object with columns, got 3"),
        ("r.jsonl", "", "r.jsonl' is empty"),
        ("r.json", "[]", "r.json' is empty"),
        ("r.csv", "prompt,completion\n", "r.csv' is empty"),
        ("r.csv", "prompt,completion\na,b\nc\n", "r.csv, line 3: 1 cells, but 2 columns"),
        ("r.csv", 'prompt,completion\na,"b\n', "r.csv, line 2: not a valid table"),
        ("r.csv", "prompt,prompt\na,b\n", "occurs twice"),
        ("r.csv", b"prompt,completion\na,\xff\n", "cannot read .*r.csv.*utf-8"),
        ("r.parquet", "no parquet", "r.parquet' as Parquet"),
        ("r.jsonl.gz", "no gzip", "cannot read .*r.jsonl.gz"),
        ("r.jsonl.xz", lzma.compress(lines(ROWS).encode())[:-20], "cannot read .*r.jsonl.xz"),
        ("r.jsonl.zst", "no zstandard", "cannot read .*r.jsonl.zst"),
    ],
)
def test_broken_files_are_told_with_file_and_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        load_rows(write(tmp_path / name, content))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p"}, "the completion is missing or empty"),
        ({"prompt": "p", "completion": None}, "the completion is missing or empty"),
        ({"prompt": "p", "completion": " \n"}, "the completion is missing or empty"),
        ({"completion": "c"}, "the prompt is missing or empty"),
        ({"prompt": "p", "completion": 3}, "column 'completion' does not fit the rows before it"),
        ({"prompt": "p", "completion": "c", "references": "r"}, "references must be a list of texts, got 'r'"),
        ({"prompt": "p", "completion": "c", "references": [1]}, "references must be a list of texts"),
        ({"prompt": "p", "completion": "c", "candidates": ["a", None]}, "candidates must be a list of texts"),
        ({"prompt": "p", "completion": "c", "candidates": ["a"], "candidate_rewards": ["b"]}, "a list of numbers"),
        ({"prompt": "p", "completion": "c", "candidates": ["a"], "candidate_rewards": [True]}, "a list of numbers"),
        ({"prompt": "p", "completion": "c", "candidates": ["a"], "candidate_rewards": [1, 2]}, "1 candidates but 2"),
        ({"prompt": "p", "completion": "c", "candidate_rewards": [1.5]}, "0 candidates but 1"),
    ],
)
def test_wrong_rows_are_told_with_file_and_line(tmp_path, row, message):
    good = {"prompt": "p", "completion": "c"}
    path = write_jsonl(tmp_path / "rows.jsonl", [good, good, row, good])
    with pytest.raises(UserError, match=f"rows.jsonl, line 3: .*{message}"):
        load_rows(path)


def test_numbers_are_no_text(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "p", "completion": 3}])
    with pytest.raises(UserError, match="line 1: the completion must be text, got 3"):
        load_rows(path)


def test_messages_are_kept_and_checked(tmp_path):
    prompt = [{"role": "user", "content": "hi"}]
    row = {"prompt": prompt, "completion": [{"role": "assistant", "content": "ho"}]}
    assert load_rows(write_jsonl(tmp_path / "rows.jsonl", [row])).to_list() == [row]
    for wrong, message in {
        "speaker": 'the prompt must be text or a list of messages {"role": ..., "content": ...}',
        "content": "the prompt is missing or empty",
    }.items():
        bad = {"speaker": "me", "text": "hi"} if wrong == "speaker" else {"role": "user", "content": " "}
        with pytest.raises(UserError, match=re.escape(message)):
            load_rows(write_jsonl(tmp_path / "rows.jsonl", [row | {"prompt": [bad]}]))
    with pytest.raises(UserError, match=r"line 1: prompt_template needs text or numbers, prompt is \["):
        load_rows(write_jsonl(tmp_path / "rows.jsonl", [row]), prompt_template="Q: {prompt}")


def test_allow_empty(tmp_path):
    rows = [{"prompt": "", "completion": "c"}, {"prompt": "p", "completion": None}]
    assert load_rows(write_jsonl(tmp_path / "rows.jsonl", rows), allow_empty=True).to_list() == rows


def test_references_and_candidates_may_be_missing_in_some_rows(tmp_path):
    full = {"references": ["r", "s"], "candidates": ["a"], "candidate_rewards": [0.5]}
    rows = [{"prompt": "p", "completion": "c"}, {"prompt": "p", "completion": "c", **full}]
    loaded = load_rows(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert loaded["references"][:] == [None, ["r", "s"]]
    assert loaded["candidate_rewards"][:] == [None, [0.5]]


def test_parse_columns():
    assert parse_columns(["prompt=dialogue", "completion = a=b"]) == {"prompt": "dialogue", "completion": "a=b"}
    assert parse_columns([]) == {}
    for bad in ("prompt", "=x", "prompt=", "prompt:x"):
        with pytest.raises(UserError, match="OURS=THEIRS"):
            parse_columns([bad])
    with pytest.raises(UserError, match="mapped twice"):
        parse_columns(["prompt=a", "prompt=b"])


def test_group_references():
    rows = datasets.Dataset.from_list(
        [{"prompt": p, "completion": c, "id": i} for i, (p, c) in enumerate(["ax", "bx", "ay", "ax"])]
    )
    assert group_references(rows).to_list() == [
        {"prompt": "a", "completion": "x", "id": 0, "references": ["x", "y", "x"]},
        {"prompt": "b", "completion": "x", "id": 1, "references": ["x"]},
    ]


def test_group_references_keeps_references_that_are_there():
    rows = datasets.Dataset.from_list(
        [
            {"prompt": "a", "completion": "x", "references": ["x", "z"]},
            {"prompt": "a", "completion": "y", "references": None},
        ]
    )
    assert group_references(rows)["references"][:] == [["x", "z", "y"]]
    with pytest.raises(UserError, match="unknown column 'completion'"):
        group_references(rows.remove_columns("completion"))


def test_task_loads_what_the_source_says(tmp_path):
    from semioffline.tasks.registry import Source, load_task

    path = write_jsonl(tmp_path / "train.jsonl", [{"text": "t", "label": "l"}] * 3)
    columns = {"prompt": "text", "completion": "label"}
    task = load_task("files")
    loaded = task.load(Source(data_dir=str(tmp_path), columns=columns, prompt_template="> {prompt}", limit=2), "train")
    assert loaded["prompt"][:] == ["> t", "> t"]
    assert len(task.load(Source(files={"train": str(path)}, columns=columns), "train")) == 3
    with pytest.raises(UserError, match="no data for the test split"):
        task.load(Source(), "test")


# ---- hostile files ----


def pack(name, head, unit, megabytes, tail=b""):
    """A file of which a few kB stand for many MB."""
    content = head + unit * (megabytes * 2**20 // len(unit)) + tail
    ending = name.rpartition(".")[2]
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lambda c: lzma.compress(c, preset=0), "zst": pack_zst}[
        ending
    ](content)


ROW = b'{"prompt": "a", "completion": "b"}\n'


@pytest.mark.parametrize(
    ("name", "head", "unit"),
    [
        ("line.jsonl.gz", b'{"prompt": "', b"a"),
        ("line.jsonl.bz2", b'{"prompt": "', b"a"),
        ("line.jsonl.xz", b'{"prompt": "', b"a"),
        ("line.jsonl.zst", b'{"prompt": "', b"a"),
        ("rows.jsonl.gz", b"", ROW),
        ("blank.jsonl.gz", b"", b"\n"),
        ("rows.json.xz", b"[", ROW.strip() + b","),
        ("nested.json.gz", b'{"prompt": [', b"[],"),
        ("space.json.gz", b"", b" "),
        ("cell.csv.gz", b'prompt,completion\n"', b"a"),
        ("lines.csv.bz2", b'prompt,completion\n"', b"a\n"),
        ("header.tsv.gz", b"", b"a\t"),
        ("zeros.parquet.gz", b"PAR1", b"\0"),
    ],
)
def test_a_decompression_bomb_is_refused_soon(tmp_path, name, head, unit):
    """After two windows at most, whatever follows: see `formats.WINDOW`."""
    path = write(tmp_path / name, pack(name, head, unit, 12))
    with pytest.raises(UserError, match=r"100 times larger .* decompression bomb.* unpack it"):
        load_rows(path)


def test_a_bomb_of_a_gigabyte_takes_neither_time_nor_memory(tmp_path):
    part = gzip.compress(b"a" * 10**7)  # files of several parts are one content
    path = write(tmp_path / "rows.jsonl.gz", gzip.compress(b'{"prompt": "') + part * 100 + gzip.compress(b'"}'))
    assert path.stat().st_size < 2**20
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="decompression bomb"):
        load_rows(path)
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize(
    "table",
    [
        {"prompt": ["a" * 10**7] * 2},
        {"prompt": pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["a" * 10**6]))},
        {"prompt": pa.array(["a"] * 3_000_000)},
    ],
    ids=["packed", "one value often", "many rows"],
)
def test_a_parquet_bomb_is_refused_soon(tmp_path, table):
    pq.write_table(pa.table(table), tmp_path / "rows.parquet", compression="zstd")
    assert (tmp_path / "rows.parquet").stat().st_size < 2e5
    with pytest.raises(UserError, match="decompression bomb"):
        load_rows(tmp_path / "rows.parquet")


def test_a_file_that_packs_well_is_no_bomb(tmp_path):
    random = Random(0)
    rows = [
        {"prompt": f"{random.random()} {random.random()}" + " the same words" * 70, "completion": "c"}
        for _ in range(7000)
    ]
    content = lines(rows).encode()
    packed = gzip.compress(content)
    assert len(content) > 3 * WINDOW
    assert 30 < len(content) / len(packed) < 60
    assert load_rows(write(tmp_path / "rows.jsonl.gz", packed)).to_list() == rows


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("r.jsonl", ROW + b'{"prompt": "' + b"a" * 2000 + b'", "completion": "b"}\n', "line 2"),
        ("r.json", b"[" + ROW + b', {"prompt": "' + b"a" * 300_000 + b'", "completion": "b"}]', "row 2"),
        ("r.csv", b"prompt,completion\na,b\n" + b"a" * 2000 + b",b\n", "line 3"),
        ("r.csv", b'prompt,completion\na,b\n"' + b"a\n" * 2000 + b'",b\n', "line"),
        ("r.jsonl.gz", pack_gz(ROW + b" " * 2000 + ROW), "line 2"),
    ],
)
def test_no_row_is_longer_than_the_limit(tmp_path, name, content, where):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=rf"{where}.*: longer than 0.001 MB.*--max_row_mb"):
        load_rows(path, max_row_mb=0.001)
    assert len(load_rows(path)) == 2
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="max_row_mb"):
            load_rows(path, max_row_mb=wrong)


P = '{"prompt": "a", "completion": "b"'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.jsonl", '{"prompt": "a", "prompt": "b"}', "line 1: .*the key 'prompt' occurs twice"),
        ("r.json", '[{"prompt": "a", "prompt": "b"}]', "line 1: .*the key 'prompt' occurs twice"),
        ("r.jsonl", "[" * 100_000, "line 1: .*nested more than 32"),
        ("r.json", "[" * 100_000, "line 1: .*nested more than 32"),
        ("r.jsonl", P + ', "x": ' + "[" * 40 + "]" * 40 + "}", "line 1: .*nested more than 32"),
        ("r.jsonl", P + ', "x": 1' + "0" * 400 + "}", "line 1: column 'x' has a number .* 64 bits"),
        ("r.jsonl", P + ', "x": 1' + "0" * 5000 + "}", "line 1: .*thousands of digits"),
        ("r.jsonl", '{"prompt": NaN, "completion": "b"}', "the prompt must be text, got nan"),
        ("r.jsonl", P + ', "candidates": ["a"], "candidate_rewards": [NaN]}', "finite numbers, got"),
        ("r.jsonl", P + ', "candidates": ["a"], "candidate_rewards": [-Infinity]}', "finite numbers, got"),
        ("r.jsonl", P + ', "candidates": ["a"], "candidate_rewards": [1' + "0" * 400 + "]}", "64 bits"),
        ("r.jsonl", P + ', "candidates": {"a": 1}}', "candidates must be a list of texts"),
        ("r.jsonl", P + ', "references": [["a"]]}', "references must be a list of texts"),
        ("r.jsonl", '{"prompt": "a\\ud800", "completion": "b"}', "ud800 is half of a character"),
        ("r.json", '[{"prompt": "a\\ud800", "completion": "b"}]', "ud800 is half of a character"),
        ("r.jsonl", P + ', "\\ud800": 1}', "half of a character"),
        ("r.jsonl", P + ', "\\u0000": 1}', "has a NUL in it"),
        ("r.jsonl", b"\0" * 100, "line 1: not valid JSON"),
        ("r.jsonl", ROW + b"\xef\xbb\xbf" + ROW, "line 2: not valid JSON"),
        ("r.jsonl", ROW.decode().encode("utf-16"), "line 1: .*utf-8"),
        ("r.csv", "prompt,completion\na,b\n".encode("utf-16"), "it is not UTF-8"),
        ("r.csv", "a," * 2000, "2,001 columns, but at most 1,000"),
        ("r.jsonl", lines([{f"k{n}": 1} for n in range(2000)]), "line 1001: .*1,000 names of columns"),
        ("r.jsonl", lines([{"x": {f"k{n}": 1}} for n in range(2000)]), "line 1000: .*1,000 names of columns"),
        ("r.json", "[" + P + "} " + P + "}]", "Expecting ',' delimiter"),
        ("r.json", "[" + P + "},]", "Expecting value"),
        ("r.json", "[" + P + "}] x", "Extra data"),
        ("r.json", "[" + P, "not valid JSON"),
        ("r.jsonl.gz.gz", pack_gz(pack_gz(ROW)), "data files end in"),
        ("r.jsonl.gz", pack_gz(ROW) + b"garbage", "cannot read"),
    ],
)
def test_hostile_content_is_told_in_one_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as refused:
        load_rows(write(tmp_path / name, content))
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


def test_odd_content_that_is_fine(tmp_path):
    row = {"prompt": "a\0b 😀", "completion": "\u202e c", "x": None, "": 1, "score": float("inf")}
    assert load_rows(write_jsonl(tmp_path / "r.jsonl", [row])).to_list() == [row]
    many = [{"prompt": f"p{n} [{{,", "completion": "c" * (n % 700 + 1)} for n in range(1, 2000)]  # over several buffers
    assert load_rows(write(tmp_path / "r.json", json.dumps(many, indent=1))).to_list() == many
    assert load_rows(write(tmp_path / "s.json", lines(many)), limit=3).to_list() == many[:3]


def test_hostile_tables(tmp_path):
    names = ["prompt", "completion", "prompt"]
    texts = pa.array(["a"])
    tables = {
        "twice": (pa.Table.from_arrays([texts] * 3, names=names), "occurs twice"),
        "date": (pa.table({"prompt": texts, "t": pa.array([2**60], pa.timestamp("ms"))}), "as Parquet"),
        "map": (pa.table({"prompt": texts, "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))}), "'m'"),
        "bytes": (pa.table({"prompt": [b"a"], "completion": texts}), "the prompt must be text, got b'a'"),
    }
    for name, (table, message) in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(UserError, match=message):
            load_rows(tmp_path / f"{name}.parquet")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    for name, message in {"fifo": "no regular file", "zero": "no regular file", "loop": "there is no file"}.items():
        with pytest.raises(UserError, match=message):
            load_rows(tmp_path / f"{name}.jsonl")


@pytest.mark.parametrize("source", ["x" * 300 + ".jsonl", "/x" * 3000, "~nobody-of-that-name/rows.jsonl", "a\0b.jsonl"])
def test_a_path_that_cannot_be_one_is_told(source):
    with pytest.raises(UserError, match=r"cannot look for|there is no file"):
        load_rows(source, "train")
