"""Hostile files: rows, or one line that says what is wrong, and little memory and time."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign import hostile
from campaign.conftest import Tally
from campaign.hostile import BAD, GOOD, NO_FILES, RECIPES
from integration.toy import save_model
from semioffline.cli import main

SLOW = 20.0
"""Seconds after which an input counts as hung."""
SHORT = "--model model --device cpu --output_dir out --max_completion_length 4"
COMMANDS = {
    "evaluate": f"evaluate {SHORT} --metrics rouge1 --test_file",
    "candidates": f"candidates {SHORT} --reward rouge1 --strategy sampling --num_candidates 2 --train_file",
    "train": f"train semi_offline {SHORT} --reward rouge1 --max_steps 1 --num_samples 2 --report_to none "
    "--per_device_train_batch_size 2 --disable_tqdm true --train_file",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    hostile.write_data(folder)
    save_model(folder / "model")
    return folder


@pytest.fixture
def try_it(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tally: Tally) -> Any:
    """try_it(what, words, names, allowed): run a command in the folder of the files, and check its end."""
    monkeypatch.chdir(files)

    def run(what: str, words: list[str], name: str, allowed: tuple[int, ...]) -> None:
        shutil.rmtree(files / "out", ignore_errors=True)
        capsys.readouterr()
        began, code, problem = time.monotonic(), None, ""
        try:
            code = main(words)
        except Exception as error:
            problem = f"ends in {error!r}"
        seconds, err = time.monotonic() - began, capsys.readouterr().err
        told = [line for line in err.splitlines() if line.startswith("semioffline: error: ")]
        if not problem and code not in allowed:
            problem = f"ends with code {code}: {err[-500:]}"
        if not problem and code == 2 and (len(told) != 1 or name not in told[0] or "\x1b" in told[0]):
            problem = f"is told as {told}"
        hung = seconds > SLOW
        tally(what, "hung" if hung else "lost" if problem else "handled")
        assert not problem, problem
        assert not hung, f"{seconds:.0f} s"
        assert not (files / "owned").exists()

    return run


@pytest.mark.campaign
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", GOOD)
def test_odd_files_are_read(command: str, name: str, try_it: Callable[..., None]) -> None:
    try_it("hostile data", [*COMMANDS[command].split(), name], "", (0,))


@pytest.mark.campaign
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_name(command: str, name: str, try_it: Callable[..., None]) -> None:
    no_rows = name in ("no-completion.jsonl", "wrapped.json", "empty-object.json", "semicolons.csv")
    named = {"our-names.jsonl": "'completions'", "self.jsonl": "'self'"}.get(name, "column" if no_rows else name)
    try_it("hostile data", [*COMMANDS[command].split(), name], named, (2,))


@pytest.mark.campaign
@pytest.mark.parametrize("name", NO_FILES, ids=lambda name: repr(name[:20]))
def test_what_is_no_file_is_refused(name: str, try_it: Callable[..., None]) -> None:
    try_it("hostile data", [*COMMANDS["evaluate"].split(), name], "", (2,))


@pytest.mark.campaign
@pytest.mark.parametrize("name", RECIPES)
def test_hostile_recipes_are_refused(name: str, files: Path, try_it: Callable[..., None]) -> None:
    (files / "theirs.yaml").write_bytes(RECIPES[name])
    words = f"train semi_offline {SHORT} --train_file no-end.jsonl --config theirs.yaml".split()
    try_it("hostile recipes", words, "", (2,))


# ---- bombs ----

MEASURE = """
import resource, sys, time
from semioffline.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(code, used // 1024, time.process_time())
"""


def gzip_bomb(path: Path) -> None:
    """1 MB that says it is a line of 1 GB."""
    path.write_bytes(gzip.compress(b'{"prompt":"') + gzip.compress(b"a" * 10**7) * 100)


def xz_bomb(path: Path) -> None:
    with lzma.open(path, "wb", preset=1) as file:
        for _ in range(300):
            file.write(b"a" * 10**6)


def bz2_bomb(path: Path) -> None:
    with bz2.open(path, "wb") as file:
        for _ in range(100):
            file.write(b"a" * 10**6)


def bomb_of_rows(path: Path) -> None:
    """Not one long line: many rows that are short."""
    path.write_bytes(gzip.compress(hostile.row() * 100_000) * 100)


def parquet_bomb(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.array(["a" * 10**6]).dictionary_encode()
    index = pa.array([0] * 3000, pa.int32())
    column = pa.DictionaryArray.from_arrays(index, texts.dictionary)
    pq.write_table(pa.table({"prompt": column, "completion": column}), path)


BOMBS: dict[str, Callable[[Path], None]] = {
    "one-line.jsonl.gz": gzip_bomb,
    "many-rows.jsonl.gz": bomb_of_rows,
    "one-line.jsonl.xz": xz_bomb,
    "one-line.jsonl.bz2": bz2_bomb,
    "texts.parquet": parquet_bomb,
    "one-line.csv.gz": gzip_bomb,
    "one-line.json.gz": gzip_bomb,
}


def measured(words: list[str], folder: Path) -> tuple[int, float, float, str]:
    """(exit code, MB, seconds of a processor, what is printed): the wall clock counts what others do, too."""
    command = [sys.executable, "-c", MEASURE, *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    code, megabytes, seconds = ended.stdout.split()[-3:]
    return int(code), float(megabytes), float(seconds), ended.stderr


@pytest.fixture(scope="module")
def start(files: Path) -> float:
    """Seconds of a command that is refused for a small file."""
    return measured([*COMMANDS["evaluate"].split(), "number.jsonl"], files)[2]


@pytest.mark.campaign
@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_refused(name: str, files: Path, start: float, tally: Tally) -> None:
    """In under 5 seconds more than the command needs to start, and under 1 GB in all."""
    BOMBS[name](files / name)
    assert (files / name).stat().st_size < 2**21
    code, megabytes, seconds, err = measured([*COMMANDS["evaluate"].split(), name], files)
    good = code == 2 and megabytes < 1000 and seconds - start < 5 and "decompression bomb" in err
    tally("decompression bombs", "handled" if good else "lost")
    assert good, (code, megabytes, seconds, start, err[-500:])


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["billion laughs", "maps of maps", "deep"])
def test_a_bomb_of_yaml_is_refused(name: str, files: Path, tally: Tally) -> None:
    """A kilobyte that stands for 10^12 values: in under 5 seconds with all that the command needs to start."""
    (files / "bomb.yaml").write_bytes(RECIPES[name])
    code, megabytes, seconds, err = measured([*COMMANDS["train"].split(), "x.jsonl", "--config", "bomb.yaml"], files)
    good = code == 2 and megabytes < 1000 and seconds < 5 and len(err.splitlines()) == 1
    tally("decompression bombs", "handled" if good else "lost")
    assert good, (code, megabytes, seconds, err[-500:])


def test_a_small_bomb_and_a_bomb_of_yaml_are_refused(try_it: Callable[..., None], files: Path) -> None:
    with gzip.open(files / "small.jsonl.gz", "wb") as file:
        file.write(b'{"prompt":"' + b"a" * 30_000_000)
    try_it("hostile data", [*COMMANDS["evaluate"].split(), "small.jsonl.gz"], "decompression bomb", (2,))
    (files / "theirs.yaml").write_bytes(RECIPES["billion laughs"])
    try_it("hostile recipes", [*COMMANDS["train"].split(), "x.jsonl", "--config", "theirs.yaml"], "aliases", (2,))


@pytest.mark.parametrize("name", ["byte-order-mark.jsonl", "mixed-lists.jsonl", "folder.jsonl", "pipe.jsonl"])
def test_some_odd_and_bad_files(name: str, try_it: Callable[..., None]) -> None:
    good = name in GOOD
    try_it("hostile data", [*COMMANDS["evaluate"].split(), name], "" if good else name, (0 if good else 2,))


# ---- models ----

MODELS: dict[str, tuple[str, bytes | None]] = {
    # what is written into which file of a good model; None: it is removed
    "no config": ("config.json", None),
    "no weights": ("model.safetensors", None),
    "no tokenizer": ("tokenizer.json", None),
    "empty config": ("config.json", b""),
    "config of a list": ("config.json", b"[]"),
    "config of null": ("config.json", b"null"),
    "config without a type": ("config.json", b"{}"),
    "config of an unknown type": ("config.json", b'{"model_type": "no-such"}'),
    "config of another type": ("config.json", b'{"model_type": "bert"}'),
    "config that asks for code": (
        "config.json",
        b'{"model_type": "x", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}',
    ),
    "config of negative sizes": ("config.json", b'{"model_type": "bart", "d_model": -16}'),
    "config of texts": ("config.json", b'{"model_type": "bart", "d_model": "x"}'),
    "deep config": ("config.json", b"[" * 100_000),
    "empty weights": ("model.safetensors", b""),
    "cut weights": ("model.safetensors", b"\x00" * 100),
    "weights with a huge header": ("model.safetensors", b"\xff" * 8 + b"{}"),
    "empty tokenizer": ("tokenizer.json", b""),
    "tokenizer of a list": ("tokenizer.json", b"[]"),
    "tokenizer without a model": ("tokenizer.json", b"{}"),
    "empty tokenizer config": ("tokenizer_config.json", b""),
    "tokenizer config of a list": ("tokenizer_config.json", b"[]"),
    "tokenizer class that is none": ("tokenizer_config.json", b'{"tokenizer_class": "os.system"}'),
    "empty generation config": ("generation_config.json", b""),
    "generation config of a list": ("generation_config.json", b"[]"),
    "generation config of texts": ("generation_config.json", b'{"max_length": "x", "num_beams": "many"}'),
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", MODELS)
def test_model_folders_with_something_wrong(name: str, files: Path, try_it: Callable[..., None]) -> None:
    """They are refused by name, unless what is wrong is not needed."""
    file, content = MODELS[name]
    shutil.rmtree(files / "theirs", ignore_errors=True)
    shutil.copytree(files / "model", files / "theirs")
    (files / "theirs/own.py").write_text("open('owned', 'w')")
    if content is None:
        (files / "theirs" / file).unlink()
    else:
        (files / "theirs" / file).write_bytes(content)
    words = COMMANDS["evaluate"].replace("--model model", "--model theirs").split()
    needed = not file.startswith(("generation", "tokenizer_config"))
    try_it("hostile models", [*words, "no-end.jsonl"], "theirs" if needed else "", (2,) if needed else (0, 2))


@pytest.mark.campaign
@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"kind": 1}', '{"kind": "comparison"}', "[" * 10_000])
def test_results_of_others_that_are_none(content: str, files: Path, try_it: Callable[..., None]) -> None:
    (files / "comparison").mkdir(exist_ok=True)
    (files / "comparison/comparison.json").write_text(content)
    words = "compare --device cpu --output_dir out --limit 4 --start_steps 1 --methods ft --budget_steps 1".split()
    try_it("hostile results", [*words, "--reward", "click_rate", "--beside", "a=comparison"], "comparison", (2,))


@pytest.fixture
def run_folder(files: Path) -> Callable[..., Path]:
    """run_folder(file, content): a good run folder but for one of its files."""

    def build(name: str, content: bytes) -> Path:
        folder = files / "their-run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file, good in (hostile.RUN | {name: content}).items():
            (folder / file).write_bytes(good)
        return folder

    return build


SHOWN = {"report": "report their-run", "rate": "rate their-run --output_dir out"}


@pytest.mark.campaign
@pytest.mark.parametrize("command", SHOWN)
@pytest.mark.parametrize("name", hostile.ODD_RUNS)
def test_odd_run_folders_are_shown(
    name: str, command: str, run_folder: Callable[..., Path], try_it: Callable[..., None]
) -> None:
    run_folder(*hostile.ODD_RUNS[name])
    try_it("hostile run folders", SHOWN[command].split(), "", (0,))


REFUSED = [(command, name) for command in SHOWN for name in hostile.BAD_RUNS]
REFUSED += [("report", name) for name in hostile.BAD_NOTES]


@pytest.mark.campaign
@pytest.mark.parametrize(("command", "name"), REFUSED)
def test_bad_run_folders_are_refused_by_the_name_of_the_file(
    command: str, name: str, run_folder: Callable[..., Path], try_it: Callable[..., None]
) -> None:
    file, content = (hostile.BAD_RUNS | hostile.BAD_NOTES)[name]
    run_folder(file, content)
    try_it("hostile run folders", SHOWN[command].split(), f"their-run/{file}", (2,))


@pytest.mark.campaign
@pytest.mark.parametrize("changed", hostile.BAD_KEYS, ids=lambda changed: json.dumps(changed)[:60])
def test_bad_keys_of_rating_pages_are_refused(
    changed: dict[str, Any], files: Path, try_it: Callable[..., None]
) -> None:
    (files / "key.json").write_text(json.dumps(hostile.KEY | changed))
    (files / "ratings-of-one.json").write_text(json.dumps({"id": "a", "ratings": [hostile.RATING]}))
    try_it("hostile ratings", ["rate", "--read", "ratings-of-one.json"], "key.json", (2,))


@pytest.mark.campaign
@pytest.mark.parametrize("rating", hostile.BAD_RATINGS, ids=lambda rating: json.dumps(rating)[:80])
def test_ratings_that_no_page_gives_are_refused(rating: Any, files: Path, try_it: Callable[..., None]) -> None:
    (files / "key.json").write_text(json.dumps(hostile.KEY))
    (files / "ratings-of-one.json").write_text(json.dumps({"id": "a", "ratings": [rating]}))
    try_it("hostile ratings", ["rate", "--read", "ratings-of-one.json"], "ratings-of-one.json", (2,))


def test_the_files_are_many() -> None:
    assert len(GOOD | BAD) + len(NO_FILES) + len(RECIPES) + len(MODELS) >= 140
    assert json.loads(hostile.row())["prompt"] == "a"
