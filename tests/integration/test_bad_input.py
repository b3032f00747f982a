"""Wrong input on the command line: one line on stderr that says what to change, exit code 2, nothing in the way."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy import build_rows, build_tokenizer, save_model
from transformers import BartConfig, BartForConditionalGeneration

from semioffline.cli import main
from semioffline.storage.files import is_unused

ROWS = build_rows(6).to_list()
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
"""3 * 10 ** 9 values in half a kilobyte."""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and files, good and bad."""
    folder = tmp_path_factory.mktemp("inputs")
    save_model(folder / "model")
    shutil.copytree(folder / "model", folder / "endless")
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder / "endless")
    write_rows(folder / "good.jsonl", ROWS)
    write_rows(folder / "other.jsonl", [{"prompt": row["prompt"], "summary": row["completion"]} for row in ROWS])
    write_rows(folder / "blank.jsonl", [*ROWS[:2], ROWS[2] | {"completion": " "}, *ROWS[3:]])
    write_rows(folder / "mixed.jsonl", [*ROWS[:3], ROWS[3] | {"completion": 7}])
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text(json.dumps(ROWS[0]) + '\n{"prompt": "a", "completion": \n')
    (folder / "data.txt").write_text("a b")
    (folder / "rewards.py").write_text(
        "def short(completions, **kwargs):\n    return [0.0]\n\n\n"
        "def text(completions, **kwargs):\n    return ['good'] * len(completions)\n\n\n"
        "def raises(completions, **kwargs):\n    return [1 / 0 for _ in completions]\n\n\n"
        "def scalar(completions, **kwargs):\n    return 1.0\n"
    )
    (folder / "syntax.py").write_text("def score(:\n")
    (folder / "needs.py").write_text("import a_package_that_is_not_there\n")
    (folder / "breaks.py").write_text("raise RuntimeError('no licence found')\n")
    (folder / "key.yaml").write_text("mask_rat: 0.4\n")
    (folder / "value.yaml").write_text("mask_rate: much\n")
    (folder / "range.yaml").write_text("mask_rate: 1.5\n")
    (folder / "list.yaml").write_text("- mask_rate\n- 0.4\n")
    (folder / "broken.yaml").write_text("mask_rate: [0.4\nnum_samples: 2\n")
    (folder / "empty.yaml").write_text("")
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    return folder


Train = Callable[..., list[str]]


@pytest.fixture
def train(inputs: Path, tmp_path: Path) -> Train:
    """A training command that works; options given by name replace its own, None leaves one out."""

    def build(method: str = "semi_offline", *more: str, **changes: Any) -> list[str]:
        options: dict[str, Any] = {
            "model": inputs / "model",
            "train_file": inputs / "good.jsonl",
            "output_dir": tmp_path / "run",
            "reward": "rouge1",
            "device": "cpu",
            "max_steps": 1,
            "num_samples": 2,
            "per_device_train_batch_size": 2,
            "report_to": "none",
            "disable_tqdm": True,
        }
        given = [(key, str(value).split(" ")) for key, value in (options | changes).items() if value is not None]
        return ["train", method, *(text for key, values in given for text in (f"--{key}", *values)), *more]

    return build


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Run a command that must be refused with one line; give the line back."""

    def run(argv: list[str], *parts: str) -> str:
        capsys.readouterr()
        code = main(argv)
        lines = capsys.readouterr().err.strip().splitlines()
        assert code == 2
        assert len(lines) == 1, "\n".join(lines)
        assert lines[0].startswith("semioffline: error: ")
        missing = [part for part in parts if part not in lines[0]]
        assert not missing, f"{missing} not in: {lines[0]}"
        return lines[0]

    return run


def is_free(folder: Path) -> bool:
    """Whether a run can be started there without --resume."""
    return not folder.exists() or is_unused(folder)


# ---- the data ----


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"train_file": "other.jsonl"}, ["'completion'", "prompt, summary"]),
        ({"train_file": "other.jsonl", "columns": "completion=sumary"}, ["'sumary'", "Did you mean 'summary'?"]),
        ({"columns": "completion:summary"}, ["completion:summary", "OURS=THEIRS"]),
        ({"train_file": "other.jsonl", "columns": "complation=summary"}, ["did you mean completion=summary?"]),
        ({"prompt_template": "{promt}:"}, ["'promt'", "Did you mean 'prompt'?"]),
        ({"train_file": "empty.jsonl"}, ["empty.jsonl", "empty"]),
        ({"train_file": "broken.jsonl"}, ["broken.jsonl, line 2", "JSON"]),
        ({"train_file": "blank.jsonl"}, ["blank.jsonl, line 3", "completion", "empty"]),
        ({"train_file": "mixed.jsonl"}, ["mixed.jsonl, line 4", "completion"]),
        ({"train_file": "nowhere.jsonl"}, ["nowhere.jsonl", "no file"]),
        ({"train_file": "data.txt"}, ["data.txt", ".jsonl"]),
        ({"train_file": None}, ["train", "file"]),
        ({"validation_file": "broken.jsonl"}, ["broken.jsonl, line 2"]),
        ({"limit": 0}, ["limit", "1"]),
        ({"static_target": "worst"}, ["'candidates'", "semioffline candidates"]),
    ],
)
def test_data(changes: dict, parts: list[str], inputs: Path, train: Train, refused, tmp_path: Path) -> None:
    changes = {key: inputs / value if "file" in key and value else value for key, value in changes.items()}
    refused(train(**changes), *parts)
    assert is_free(tmp_path / "run")


# ---- names ----


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["trian"], ["command 'trian'", "Did you mean 'train'?"]),
        (["train"], ["no method given", "semi_offline"]),
        (["train", "semi_ofline"], ["method 'semi_ofline'", "Did you mean 'semi_offline'?"]),
        (["train", "mft", "--task", "adz"], ["task 'adz'", "Did you mean 'ads'?"]),
        (["train", "semi_offline", "--mask_rat", "0.4"], ["option 'mask_rat'", "Did you mean 'mask_rate'?", "more."]),
        (["train", "mft", "mask_rate=0.4"], ["'mask_rate=0.4'", "--name value"]),
        (["train", "mft", "--max_steps", "many"], ["--max_steps", "many"]),
        (["train", "mft", "--max_steps"], ["--max_steps"]),
        (["train", "mft", "--task", "ads"], ["--model"]),
        (["train", "semi_offline", "--static_target", "wurst", "--task", "ads"], ["static_target", "'wurst'", "worst"]),
        (
            ["train", "mft", "--num_samples", "4"],
            ["option 'num_samples'", "a setting of ablations, avg, ", "semi_offline"],
        ),
        (["train", "mft", "--eval_strategy", "sometimes"], ["sometimes", "steps"]),
        (["train", "mft", "--bf16", "maybe"], ["bf16", "maybe"]),
        (["evaluate", "--task", "ads"], ["--model"]),
        (["evaluate", "--modle", "x"], ["option 'modle'", "Did you mean 'model'?"]),
        (["candidates", "--task", "ads"], ["--output_dir"]),
        (["candidates", "--strategy", "divers_beam", "--output_dir", "x", "--task", "ads"], ["'diverse_beam'"]),
        (
            ["candidates", "--num_candidates", "0", "--output_dir", "x", "--task", "ads"],
            ["--num_candidates 0", "at least 1"],
        ),
        (["candidates", "--output_dir", "x"], ["--reward"]),
        (["env", "--verbose"], ["option 'verbose'"]),
        (["evaluate", "--task", "ads", "--model", "x", "--cuda_graphs", "--device", "gpu"], ["device 'gpu'"]),
    ],
)
def test_names(argv: list[str], parts: list[str], refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(argv, *parts)
    assert is_free(tmp_path / "x")
    assert is_free(tmp_path / "trainer_output")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"mask_rate": 1.5}, ["mask_rate=1.5", "between 0 and 1"]),
        ({"num_samples": 1}, ["num_samples=1", "at least 2"]),
        ({"mask_rate": 1.5, "num_samples": 1, "top_p": 0}, ["mask_rate=1.5", "num_samples=1", "top_p=0"]),
        ({"reward": "rogue1"}, ["reward 'rogue1'", "Did you mean 'rouge1'?"]),
        ({"reward": None}, ["semi_offline", "--reward"]),
        ({"reward_weights": 1, "reward": "rouge1 rougeL"}, ["2 rewards", "1 reward_weights"]),
        ({"device": "cuda"}, ["--device cuda", "cpu"]),
        ({"device": "gpu"}, ["device 'gpu'", "cpu"]),
        ({"dtype": "float8"}, ["dtype 'float8'", "float32"]),
        ({"max_prompt_length": 100}, ["max_prompt_length=100", "64 positions"]),
        ({"model": "endless"}, ["EOS", "eos_token"]),
        ({"model": "no-such-model"}, ["no-such-model"]),
        ({"eval_metrics": "rogue1", "validation_file": "good.jsonl"}, ["'rogue1'", "Did you mean 'rouge1'?"]),
        ({"reward_weights": "nan"}, ["reward_weights=[nan] must be", "a finite number"]),
        ({"rl_weight": "nan"}, ["rl_weight=nan must be a finite number"]),
        ({"learning_rate": "nan"}, ["learning_rate=nan must be a finite number"]),
        ({"temperature": "inf"}, ["temperature=inf must be a finite number"]),
        ({"gradient_accumulation_steps": 0}, ["gradient_accumulation_steps=0 must be at least 1"]),
        ({"seed": -1}, ["seed=-1 must be at least 0"]),
        ({"dataloader_num_workers": -1}, ["dataloader_num_workers=-1"]),
        ({"lora_r": 0}, ["--lora_r 0 must be at least 1"]),
        ({"pad_to_multiple_of": 1000}, ["pad_to_multiple_of=1000", "64 positions"]),
        ({"report_to": "wandbx"}, ["wandbx"]),
        ({"early_stopping_patience": 2}, ["set eval_strategy"]),
        ({"early_stopping_patience": 0, "eval_strategy": "steps"}, ["early_stopping_patience=0"]),
        ({"resume_from_checkpoint": "nowhere"}, ["use --resume"]),
        ({"label_smoothing_factor": 1.5}, ["label_smoothing_factor=1.5 must be between 0 and 1"]),
        ({"adam_beta1": 2}, ["adam_beta1=2.0 must lie in [0, 1)"]),
        ({"adam_epsilon": -1}, ["adam_epsilon=-1.0 must be above 0"]),
        ({"reward_workers": -1}, ["reward_workers=-1 must be at least 0"]),
        ({"mask_rate_end": 2}, ["mask_rate_end=2.0 must be between 0 and 1"]),
        ({"lr_scheduler_kwargs": "nope"}, ["lr_scheduler_kwargs is not JSON"]),
        ({"lr_scheduler_kwargs": '{"nope":1}'}, ["lr_scheduler_type=", "'nope'"]),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, ["lr_scheduler_type=cosine_with_min_lr", "min_lr"]),
    ],
)
def test_settings(changes: dict, parts: list[str], inputs: Path, train: Train, refused, tmp_path: Path) -> None:
    """Told before the first step, so that the folder stays free."""
    if changes.get("device") == "cuda" and __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    changes = {key: inputs / value if key in ("model", "validation_file") else value for key, value in changes.items()}
    refused(train(**changes), *parts)
    assert is_free(tmp_path / "run")


@pytest.mark.parametrize(
    ("command", "changes", "parts"),
    [
        ("evaluate", {"batch_size": 0}, ["--batch_size 0 must be at least 1"]),
        ("evaluate", {"seed": -1}, ["--seed -1 must be at least 0"]),
        ("candidates", {"batch_size": -1}, ["--batch_size -1 must be at least 1"]),
        ("candidates", {"shard_size": 0}, ["--shard_size 0 must be at least 1"]),
    ],
)
def test_settings_of_other_commands(command, changes, parts, inputs: Path, refused, tmp_path: Path) -> None:
    options = {"model": inputs / "model", "train_file": inputs / "good.jsonl", "split": "train", "device": "cpu"}
    options |= {"output_dir": tmp_path / "run"} | ({"reward": "rouge1"} if command == "candidates" else {}) | changes
    refused([command, *(word for name, value in options.items() for word in (f"--{name}", str(value)))], *parts)
    assert is_free(tmp_path / "run")


def test_evaluation_into_a_used_folder(inputs: Path, refused, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    places = ["--model", inputs / "model", "--test_file", inputs / "good.jsonl", "--output_dir", tmp_path]
    line = refused(["evaluate", *map(str, places), "--device", "cpu"], "not empty: name another folder")
    assert "--resume" not in line  # which it does not have


def test_help_lists_every_option(capsys: pytest.CaptureFixture) -> None:
    """Those that the method reads; Transformers' rare ones with --help-all."""
    shared = ("reward", "resume", "output_dir", "learning_rate", "eval_metrics")
    for argv, own, others in (
        (["train", "--help"], ("mask_rate", "num_samples"), ("gold_floor", "adam_beta1")),
        (["train", "mft", "--help"], ("mle_mask_rate",), (" --mask_rate", "num_samples", "adam_beta1")),
        (["train", "gold", "--help-all"], ("gold_floor", "adam_beta1", "reward_workers"), ("num_samples",)),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert not stopped.value.code
        text = capsys.readouterr().out
        assert all(f"--{name}" in text for name in (*shared, *own))
        assert not [name for name in others if name in text]
        assert len(text.splitlines()) <= 90 or "--help-all" in argv


# ---- rewards that do not work ----


@pytest.mark.parametrize(
    ("reward", "parts"),
    [
        ("rewards.py:shirt", ["'shirt'", "Did you mean 'short'?"]),
        ("nowhere.py:score", ["nowhere.py", "no file"]),
        ("needs.py:score", ["needs.py", "a_package_that_is_not_there"]),
        ("syntax.py:score", ["syntax.py"]),
        ("breaks.py:score", ["breaks.py", "no licence found"]),
    ],
)
def test_reward_that_cannot_be_loaded(
    reward: str, parts: list[str], inputs: Path, train: Train, refused, tmp_path: Path
) -> None:
    refused(train(reward=inputs / reward), *parts)
    assert is_free(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("short", ["'short'", "1 values for 4 samples"]),
        ("text", ["'text'", "'good'", "sample 0"]),
        ("raises", ["'raises'", "ZeroDivisionError"]),
        ("scalar", ["'scalar'", "float", "list of 4"]),
    ],
)
def test_reward_that_fails(name: str, parts: list[str], inputs: Path, train: Train, refused, tmp_path: Path) -> None:
    """It is met in the first step, when the run folder has been written; --resume then starts there."""
    refused(train(reward=f"{inputs}/rewards.py:{name}"), *parts)
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert main(train("semi_offline", "--resume")) == 0
    assert (tmp_path / "run" / "result.json").exists()


# ---- folders and recipes ----


def test_output_folder_that_is_not_empty(train: Train, refused, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    refused(train(), "not empty", "--resume")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_output_folder_that_is_a_file(train: Train, refused, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    refused(train(), "is a file")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        ("nowhere.yaml", ["nowhere.yaml", "No such file"]),
        ("", ["recipe"]),
        ("key.yaml", ["'mask_rat'", "Did you mean 'mask_rate'?"]),
        ("value.yaml", ["mask_rate", "much"]),
        ("range.yaml", ["mask_rate=1.5"]),
        ("list.yaml", ["list.yaml", "NAME: VALUE"]),
        ("broken.yaml", ["broken.yaml", "not YAML"]),
        ("empty.yaml", ["empty.yaml", "NAME: VALUE"]),
        ("binary.yaml", ["binary.yaml"]),
    ],
)
def test_recipes(recipe: str, parts: list[str], inputs: Path, train: Train, refused, tmp_path: Path) -> None:
    refused(train("semi_offline", "--config", str(inputs / recipe)), *parts)
    assert is_free(tmp_path / "run")


@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        (LAUGHS, ["not YAML that holds settings", "aliases"]),
        ("mask_rate: 0.4\nmask_rate: 0.5\n", ["'mask_rate' occurs twice", "line 2"]),
        ("a: &a [*a]\n", ["alias"]),
        ("seed: " + "9" * 400, ["at most 63 are allowed"]),
        ("task: 2001-01-01", ["datetime.date(2001, 1, 1)", "in quotes"]),
        ("reward: !!python/name:os.system", ["could not determine a constructor"]),
        ('output_dir: "a\\0b"', ["no setting takes"]),
        ("# " + "x" * 200_000, ["larger than 100 kB"]),
        ("prompt_template: '-- {prompt!r}'", ["prompt_template", "without a format or conversion"]),
        ("max_row_mb: -1", ["max_row_mb -1.0", "above 0"]),
        ("max_row_mb: .nan", ["max_row_mb nan", "finite"]),
        ("max_row_mb: 1.0e-4", ["good.jsonl, line 1", "--max_row_mb"]),
    ],
)
def test_hostile_recipes(recipe: str, parts: list[str], train: Train, refused, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe)
    refused(train("semi_offline", "--config", str(tmp_path / "recipe.yaml")), *parts)
    assert is_free(tmp_path / "run")


CODE = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\ndef score(completions, **kwargs):\n"
CODE += "    return [float(len(text)) for text in completions]\n"


def test_a_recipe_s_python_file_is_in_its_folder_and_announced(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the folder where the command is started."""
    for folder in ("theirs", "mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_reward.py").write_text(CODE)
    (tmp_path / "theirs" / "recipe.yaml").write_text("reward: [rouge1, 'own_reward.py:score']\n")
    monkeypatch.chdir(tmp_path / "mine")
    assert main(train("semi_offline", "--config", "../theirs/recipe.yaml", reward=None)) == 0
    told = capsys.readouterr().err.splitlines()[0]
    assert told == f"semioffline: the recipe runs Python code: 'score' of '{tmp_path}/theirs/own_reward.py'"
    assert (tmp_path / "theirs" / "own_reward.ran").exists()
    assert not (tmp_path / "mine" / "own_reward.ran").exists()


def test_what_a_recipe_runs_is_announced_before_it_runs(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "exits.py").write_text("raise ValueError('was run')\n")
    (tmp_path / "recipe.yaml").write_text("reward: exits.py:score\n")
    assert main(train("semi_offline", "--config", str(tmp_path / "recipe.yaml"), reward=None)) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "runs Python code: 'score' of" in first
    assert "was run" in second


def test_code_that_the_command_line_names_is_not_announced(inputs: Path, train: Train, tmp_path: Path, refused) -> None:
    """Nor that of a recipe which the command line replaces."""
    (tmp_path / "recipe.yaml").write_text("reward: exits.py:score\n")
    refused(
        train("semi_offline", "--config", str(tmp_path / "recipe.yaml"), reward="rouge2 nowhere.py:f"), "nowhere.py"
    )


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("settings: {mft: {eval_metrics: [own.py:score]}}", "'score' of '{}/own.py'"),
        ('settings: \'{"mft": {"eval_metrics": ["own.py:score"]}}\'', "'score' of '{}/own.py'"),
        ("eval_metrics: [rouge1, 'length_penalty:1-5', 'os:system']", "'system' of 'the module os'"),
        ("reward: /tmp/own.py:score", "'score' of '/tmp/own.py'"),
    ],
)
def test_code_is_found_wherever_a_recipe_names_it(
    recipe: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe)
    assert main(["compare", "--config", str(tmp_path / "recipe.yaml"), "--methods", "mft", "--jobs", "0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("Python code: ")[2] for line in lines[:-1]] == [told.format(tmp_path)]


@pytest.mark.parametrize(
    ("label", "part"),
    [
        ("mft@/../../x", "none of /"),
        ("mft@a\\b", "none of /"),
        ("mft@" + "x" * 300, "304 characters, but at most 100"),
        ("mft@" + "漢" * 90, "274 bytes"),
        ("mft@a\x1b[31m", "printable"),
        ("mft@..", "dot"),
        ("mft@", "METHOD@LABEL"),
        ("mft@a@b", "METHOD@LABEL"),
        ("../mft", "unknown method"),
        ("", "must not be empty"),
    ],
)
def test_labels_that_cannot_be_folders(label: str, part: str, inputs: Path, refused, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"methods": [label], "reward": "rouge1"}))
    given = ["--model", inputs / "model", "--train_file", inputs / "good.jsonl", "--output_dir", tmp_path / "run"]
    refused(["compare", "--config", str(tmp_path / "recipe.yaml"), "--device", "cpu", *map(str, given)], part)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ('{"mft": {}, "mft": {}}', "'mft' occurs twice"),
        ("[" * 100_000, "nested"),
        ('{"mft": {"seeds": [1' + "0" * 400 + "]}}", "at most 63 are allowed"),
    ],
)
def test_hostile_settings_of_a_comparison(settings: str, part: str, refused) -> None:
    refused(["compare", "--task", "ads", "--methods", "mft", "--settings", settings], "--settings must be JSON", part)


def test_a_label_of_another_comparison_that_cannot_be_a_folder(refused) -> None:
    refused(["compare", "--task", "ads", "--methods", "mft", "--beside", "../x=runs"], "the label '../x'")


# ---- models of others ----


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def break_model(folder: Path, how: str) -> None:
    """One file of a saved model as another would write it to do harm."""
    config = json.loads((folder / "config.json").read_text())
    if how == "pickle":
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile()))
    elif how == "remote":
        (folder / "code.py").write_text("import os\nos.mkdir('ran')\n")
        mapped = {"AutoConfig": "code.Config", "AutoModelForSeq2SeqLM": "code.Model"}
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "theirs", "auto_map": mapped}))
    elif how == "small":
        names = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
        small = BartConfig(**{name: config[name] for name in names}, vocab_size=40, max_position_embeddings=64)
        BartForConditionalGeneration(small).save_pretrained(folder)
    elif how == "tokens":
        table = json.loads((folder / "tokenizer.json").read_text())
        table["model"]["vocab"]["oslo"] = 5000
        (folder / "tokenizer.json").write_text(json.dumps(table))
    else:
        name, _, content = how.partition("=")
        (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("pickle", ["a pickle", "model.safetensors"]),
        ("remote", ["custom code"]),
        ("small", ["192 tokens", "the model has 40"]),
        ("tokens", ["token id 5000", "row "]),
        ("config.json=" + "[" * 100_000, ["cannot load the model"]),
        ("config.json=null", ["cannot load the model"]),
        ('config.json={"model_type": "bart", "d_model": -4}', ["cannot load the model"]),
        ("tokenizer.json={}", ["cannot load the model"]),
        ("tokenizer_config.json=[]", ["cannot load the model"]),
        ("model.safetensors=x", ["cannot load the model", "Safetensor"]),
        ('adapter_config.json={"peft_type": "LORA"}', ["cannot load the model"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_hostile_models(
    how: str, parts: list[str], inputs: Path, refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(inputs / "model", tmp_path / "theirs")
    break_model(tmp_path / "theirs", how)
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "oslo paris", "completion": "from oslo"}]
    write_rows(tmp_path / "rows.jsonl", rows)
    refused(["evaluate", "--model", "theirs", "--test_file", "rows.jsonl", "--device", "cpu"], *parts)
    assert not (tmp_path / "ran").exists()


def test_a_recipe_after_an_equals_sign(inputs: Path, train: Train, refused, tmp_path: Path) -> None:
    """--config=recipe.yaml is read as --config recipe.yaml is, not silently left out."""
    refused(train("semi_offline", f"--config={inputs / 'key.yaml'}"), "'mask_rat'", "Did you mean 'mask_rate'?")
    assert is_free(tmp_path / "run")


def test_a_recipe_without_a_path(train: Train, refused) -> None:
    refused(train("semi_offline", "--config"), "--config needs the name or the path of a recipe")
    refused(train("semi_offline", "--config", "--resume"), "--config needs the name or the path of a recipe")
    refused(train("semi_offline", "--config", "a.yaml", "--config", "b.yaml"), "--config is given twice")


def test_a_good_recipe_gives_defaults_and_flags_override_it(inputs: Path, train: Train, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(
        "method: semi_offline\nmask_rate: 0.3\nrl_weight: 0.7\nreward: [rouge1, rougeL]\n"
    )
    for n, flags in enumerate((["--config", f"{tmp_path}/good.yaml"], [f"--config={tmp_path}/good.yaml"])):
        folder = tmp_path / str(n)
        assert main(train("semi_offline", *flags, "--rl_weight", "0.9", output_dir=folder, reward=None)) == 0
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        assert (settings["mask_rate"], settings["rl_weight"]) == (0.3, 0.9)
        assert settings["reward"] == ["rouge1", "rougeL"]


def test_the_method_of_recipe_and_command_must_agree(train: Train, refused, tmp_path: Path) -> None:
    (tmp_path / "mft.yaml").write_text("method: mft\n")
    refused(train("semi_offline", "--config", str(tmp_path / "mft.yaml")), "mft", "semi_offline")


def test_a_command_can_be_repeated_after_the_error_is_mended(
    inputs: Path, train: Train, refused, tmp_path: Path
) -> None:
    refused(train(train_file=inputs / "broken.jsonl"), "line 2")
    assert main(train()) == 0
    assert {"config.yaml", "versions.json", "metrics.jsonl", "result.json", "model"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }


# ---- as people start it ----


def start(argv: list[str]) -> subprocess.CompletedProcess:
    code = "import sys; from semioffline.cli import main; sys.exit(main())"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, env=environment, timeout=200
    )


def test_in_a_process_of_its_own() -> None:
    done = start(["trian"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "Did you mean 'train'?" in done.stderr


def test_a_hostile_recipe_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(LAUGHS)
    code = "import sys; from semioffline.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    words = ["train", "mft", "--config", str(tmp_path / "recipe.yaml")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert "aliases" in done.stderr
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_broken_data_in_a_process_of_its_own(inputs: Path, train: Train) -> None:
    done = start(train(train_file=inputs / "broken.jsonl"))
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "broken.jsonl, line 2" in lines[0]
