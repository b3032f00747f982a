"""The Python blocks of pages without a test of their own run, with a tiny model in place of the real one."""

import json
from pathlib import Path

import pytest

from pages import blocks
from semioffline import SemiOfflineConfig, SemiOfflineTrainer
from semioffline.cli import main
from semioffline.scoring.reward_set import RewardSet
from semioffline.tasks.ads import build, build_model, build_tokenizer

ROOT = Path(__file__).parents[2]
MODEL = "facebook/bart-base"
TESTED = {
    "CONTRIBUTING.md": "test_contributing_examples.py",
    "README.md": "test_readme.py",
    "docs/api.md": "here",
    "docs/choosing-a-method.md": "here",
    "docs/methods/semi_offline.md": "here",
    "docs/quick-start.md": "here",
    "docs/reading-the-report.md": "here",
    "docs/scaling-out.md": "here",
    "docs/tasks.md": "test_public.py",
    "docs/tutorial.md": "test_tutorial.py",
    "docs/your-own-data.md": "here",
    "docs/web-service.md": "test_examples.py",
    "docs/your-own-reward.md": "test_examples.py",
}
"""page -> where its blocks are run"""


def code_of(name: str) -> list[str]:
    return blocks((ROOT / name).read_text(), "python")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model in model, and the current folder."""
    monkeypatch.chdir(tmp_path)
    build_model().save_pretrained("model")
    build_tokenizer().save_pretrained("model")
    return tmp_path


def test_every_page_with_python_has_a_test():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert {str(path.relative_to(ROOT)) for path in pages if blocks(path.read_text(), "python")} == TESTED.keys()


def test_the_model_of_the_demo_loads(folder, capsys):
    load, _ = code_of("docs/quick-start.md")
    exec(load.replace("runs/demo/semi_offline/model", "model"), {})
    assert capsys.readouterr().out.strip()


def test_the_quick_start_trains(folder):
    _, train = code_of("docs/quick-start.md")
    assert train.count("output_dir=") == 2
    rows = build({"train": 8})["train"].select_columns(["prompt", "completion"])
    rows.rename_columns({"prompt": "dialogue", "completion": "summary"}).to_csv("train.csv")
    short = "max_steps=2, use_cpu=True, disable_tqdm=True, output_dir="
    exec(train.replace(MODEL, "model").replace("output_dir=", short), {})
    assert (folder / "rl/model/model.safetensors").exists()


def test_the_reference_begins_with_an_example_that_works(folder):
    [code] = code_of("docs/api.md")
    names: dict = {}
    exec(code.replace(MODEL, "model").replace("num_samples=64", "num_samples=64, use_cpu=True"), names)
    assert names["trainer"].method.config.num_samples == 64


def test_the_report_is_written_by_a_callback(folder):
    [code] = code_of("docs/reading-the-report.md")
    args = SemiOfflineConfig(output_dir="run", max_steps=1, num_samples=2, use_cpu=True, disable_tqdm=True)
    rows = build({"train": 8, "validation": 4})
    trainer = SemiOfflineTrainer("model", "rouge", args, rows["train"], rows["validation"])
    exec(code, {"trainer": trainer})
    trainer.train()
    assert Path("run/report.html").exists()


def test_the_function_for_mask_where_finds_its_spans():
    [code] = code_of("docs/methods/semi_offline.md")
    names: dict = {}
    exec(code, names)
    text = "shoes for $199 , bags for $9"
    assert [text[start:end] for start, end in names["prices"](text)] == ["$199", "$9"]


def test_outputs_without_references_become_rows_to_train_on(folder, monkeypatch):
    """Each output is scored by its first word."""
    score, code = code_of("docs/choosing-a-method.md")
    values = {"meet": 0.2, "try": 0.9, "discover": 0.5}
    reward = f"def score(completions, **columns):\n    return [{values}[text.split()[0]] for text in completions]\n"
    Path("my_rewards.py").write_text(reward)
    monkeypatch.syspath_prepend(str(folder))
    rows = build({"train": 50})["train"]
    outputs = [{"prompt": row["prompt"], "output": f"{word} {row['completion']}"} for row in rows for word in values]
    Path("outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in outputs))
    exec(score, {})
    exec(code, {})
    names = ("train.jsonl", "validation.jsonl")
    made, held = ([json.loads(line) for line in Path(name).read_text().splitlines()] for name in names)
    assert (len(made), len(held)) == (49, 1)
    assert held[0]["prompt"] not in {row["prompt"] for row in made}
    assert made[0]["completion"].startswith("try ")
    assert made[0]["candidate_rewards"] == [0.9, 0.5, 0.2]
    flags = "--model model --train_file train.jsonl --validation_file validation.jsonl --static_target worst"
    flags += " --reward rouge --eval_strategy steps --eval_steps 100 --num_samples 2 --max_steps 2"
    flags += " --max_prompt_length 32 --max_completion_length 32 --device cpu --disable_tqdm true --output_dir rl"
    assert main(["train", "semi_offline", *flags.split()]) == 0


def test_a_job_of_ones_own_runs(folder, capsys):
    [job] = code_of("docs/your-own-data.md")
    (folder / "data").mkdir()
    build({"train": 40})["train"].select_columns(["prompt", "completion"]).to_json("data/train.jsonl")
    short = "mft_steps=1, rl_steps=1, more_mft_steps=1, num_samples=2, device='cpu', output_dir="
    exec(job.replace(MODEL, "model").replace("output_dir=", short), {})
    assert "over fine-tuning for the same time" in capsys.readouterr().out


def test_a_batch_is_divided_among_reward_servers():
    """In place of the servers, a function that notes what it gets."""
    names: dict = {}
    exec(code_of("docs/scaling-out.md")[0], names)
    sent: list[tuple[str, int]] = []
    names["send"] = lambda completions, server: sent.append((server, len(completions))) or [1.0] * len(completions)
    texts = [f"text {n}" for n in range(130)]
    rows = {"prompts": texts, "completions": texts, "references": [["x"]] * 130}
    assert RewardSet(names["quality"])(rows)[0] == [1.0] * 130
    first, second = names["SERVERS"]
    assert sorted(sent) == sorted([(first, 64), (second, 64), (first, 2)])
