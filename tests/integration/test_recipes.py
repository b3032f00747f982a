"""Every recipe says what the paper says, and runs: with a tiny random model and a few synthetic rows."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import semioffline
from semioffline.cli import COMMANDS, main
from semioffline.cli.candidates import CandidateOptions
from semioffline.cli.evaluate import EvaluateOptions
from semioffline.cli.options import parse
from semioffline.cli.recipes import SHIPPED, find_recipe, recipe_names
from semioffline.cli.train import parse_training
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.tasks import ads

RECIPES = sorted(path for path in SHIPPED.glob("*.yaml") if not path.name.startswith("compare"))
PAPER = {
    "cnndm-bart-large": ("facebook/bart-large", 1e-6, 20, 64, 0.1, ["rouge"]),
    "samsum-bart-large": ("facebook/bart-large-xsum", 1e-6, 5, 64, 0.0, ["rouge"]),
    "squad-qg-t5-large": ("google-t5/t5-large", 3e-6, 4, 16, 0.15, ["bleu", "rougeL"]),
    "xsum-pegasus-large": ("google/pegasus-large", 2e-6, 2, 64, 0.1, ["rouge"]),
}
"""Table 8: model, learning rate, lambda, K, and (from the published code) label smoothing; then the reward."""
DECODING = {  # beams, shortest and longest output without the start token, length penalty, n-grams that never repeat
    "cnndm-bart-large": (4, 55, 141, 2.0, 3),
    "samsum-bart-large": (6, 10, 61, 1.0, 3),
    "squad-qg-t5-large": (4, 0, 63, 1.0, 0),
    "xsum-pegasus-large": (8, 11, 63, 0.6, 0),
}
COLUMNS = {
    "cnndm": ("article", "highlights"),
    "samsum": ("dialogue", "summary"),
    "squad_qg": ("paragraph_answer", "question"),
    "xsum": ("document", "summary"),
}
KINDS = {"bart": "bart", "t5": "t5", "pegasus": "pegasus", "smollm2": "llama"}


def parse_recipe(path, folder, *flags):
    return parse_training(
        "semi_offline", ["--config", str(path), "--device", "cpu", "--output_dir", str(folder), *flags]
    )


def commands(path):
    """The command lines in a recipe's comments, as lists of words."""
    text = re.sub(r"\\\n#\s+", "", path.read_text())
    return [line.split()[2:] for line in text.splitlines() if line.startswith("# semioffline ")]


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_settings(name, tmp_path):
    _, model, options, args = parse_recipe(SHIPPED / f"{name}.yaml", tmp_path)
    found = (model.model, args.learning_rate, args.rl_weight, args.num_samples, args.label_smoothing_factor)
    assert (*found, options.reward) == PAPER[name]
    assert args.train_batch_size * args.gradient_accumulation_steps == 16
    assert (args.mask_rate, args.static_target, args.loss_scale) == (0.4, "worst", "token")
    assert args.reward_weights == ([0.5, 0.5] if len(options.reward) == 2 else None)
    decoding = (args.num_beams, args.min_new_tokens, args.max_completion_length)
    assert (*decoding, args.length_penalty, args.no_repeat_ngram_size) == DECODING[name]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_commands_in_the_comments(path):
    """They are known, their flags too, and they name this recipe."""
    lines = commands(path)
    assert lines
    for command, *words in lines:
        assert command in COMMANDS
        if command == "train":
            assert words[words.index("--config") + 1] == path.stem
            parse_training(words[0], [*words[1:], "--device", "cpu", "--bf16", "false"])
        else:
            options = {"candidates": CandidateOptions, "evaluate": EvaluateOptions}[command]
            parse(command, [DataOptions, ModelOptions, options], words)


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_model, tiny_tokenizer):
    """model(recipe) -> a folder with a tiny random model of the recipe's kind, which takes texts as long as its own."""

    def build(name):
        kind = next(kind for word, kind in KINDS.items() if word in name)
        folder = tmp_path_factory.mktemp(kind)
        positions = {} if kind == "t5" else {"max_position_embeddings": 1024}
        tokenizer = tiny_tokenizer(kind)
        tiny_model(kind, len(tokenizer), **positions).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return build


def write_data(folder, task):
    """Three rows for each split, in the task's own columns; those of train with candidates in a file of their own."""
    prompt, completion = COLUMNS[task]
    for split, rows in ads.build({"train": 3, "validation": 3, "test": 3}).items():
        stored = [{prompt: row["prompt"], completion: row["completion"]} for row in rows]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
        if split == "train":
            more = {"candidates": ["meet zorvia today !", "grab the bold lamps"], "candidate_rewards": [0.5, 0.25]}
            lines = "".join(json.dumps(row | more) + "\n" for row in stored)
            (folder / "candidates.jsonl").write_text(lines)
    return folder


SHORT = ["--device", "cpu", "--max_steps", "2", "--bf16", "false", "--report_to", "none", "--disable_tqdm", "true"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_runs_with_a_tiny_model(path, tmp_path, model):
    """Only the model, the data and the number of steps are others."""
    data = write_data(tmp_path, yaml.safe_load(path.read_text())["task"])
    places = ["--model", str(model(path.stem)), "--data_dir", str(data), "--output_dir", str(tmp_path / "run")]
    candidates = ["--train_file", str(data / "candidates.jsonl")]
    assert main(["train", "semi_offline", "--config", str(path), *places, *candidates, *SHORT]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == 2
    assert result["cost_per_input"]["forward_passes"] == 1
    assert result["metrics"]["length"]["inputs"] == 3
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    own = yaml.safe_load(path.read_text())
    changed = {"model", "max_steps", "bf16"}
    assert {key: settings[key] for key in own.keys() - changed} == {key: own[key] for key in own.keys() - changed}


def test_the_four_commands_in_a_row(tmp_path, monkeypatch, model):
    """As they stand in the recipe, with fewer steps, candidates and tokens."""
    path = SHIPPED / "squad-qg-t5-large.yaml"
    write_data(tmp_path, "squad_qg")
    short = {"train": [*SHORT, "--max_completion_length", "24"]}
    short["candidates"] = ["--device", "cpu", "--num_candidates", "2", "--max_completion_length", "24"]
    short["evaluate"] = ["--device", "cpu", "--max_completion_length", "24"]
    start = ["--model", str(model(path.stem))]
    monkeypatch.chdir(tmp_path)
    for command, *words in commands(path):
        words = ["." if word == "DATA" else word for word in words]
        assert main([command, *words, *(start if "--model" not in words else []), *short[command]]) == 0
    rows = [json.loads(line) for line in Path("candidates/candidates.jsonl").read_text().splitlines()]
    assert [set(row) for row in rows] == [{"paragraph_answer", "question", "candidates", "candidate_rewards"}] * 3
    predictions = [json.loads(line) for line in Path("test/predictions.jsonl").read_text().splitlines()]
    assert all(row["prompt"].startswith("generate question: name : ") for row in predictions)
    assert "corpus_bleu" in json.loads(Path("test/result.json").read_text())["metrics"]


def test_the_list_has_a_line_for_each(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    for name in recipe_names():
        [line] = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert line.endswith(".")
    assert main(["recipes", "samsum"]) == 2


def test_a_file_with_the_name_of_a_recipe_wins(tmp_path, monkeypatch):
    assert find_recipe("samsum-flan-t5") == SHIPPED / "samsum-flan-t5.yaml"
    monkeypatch.chdir(tmp_path)
    Path("samsum-flan-t5").write_text("task: samsum\n")
    assert find_recipe("samsum-flan-t5") == Path("samsum-flan-t5")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("samsum-flan-5", "unknown recipe 'samsum-flan-5'. Did you mean 'samsum-flan-t5'?"),
        ("recipes/samsum-flan-t5.yaml", "the recipe in the package is --config samsum-flan-t5"),
        ("nowhere/mine.yaml", "No such file or directory"),
    ],
)
def test_a_recipe_that_is_not_there(given, part, capsys):
    assert main(["train", "semi_offline", "--config", given, "--output_dir", "unused"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert part in line


def test_recipes_ship_in_the_package():
    package = Path(semioffline.__file__).parent
    assert SHIPPED.is_relative_to(package)
    shipped = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = shipped["package-data"]["semioffline"]
    assert {path.stem for pattern in patterns for path in package.glob(pattern) if path.parent == SHIPPED} == set(
        recipe_names()
    )
