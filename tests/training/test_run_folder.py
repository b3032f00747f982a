"""What a run leaves for its report: outputs of the initial checkpoint, and the tokens that were drawn."""

import json

import pyarrow.parquet
import pytest
from tests.integration.toy import build_rows, save_model, train

from semioffline.cli import main


def test_the_draws_are_next_to_the_completions(tmp_path):
    train(tmp_path, max_steps=4, logging_steps=2)
    for step in (2, 4):
        drawn = pyarrow.parquet.read_table(tmp_path / f"tokens/step-{step}.parquet").to_pylist()
        samples = pyarrow.parquet.read_table(tmp_path / f"completions/step-{step}.parquet").to_pylist()
        assert len(drawn) == 4
        for row in drawn:
            own = [sample["reward"] for sample in samples if sample["example"] == row["example"]]
            assert row["rewards"] == pytest.approx(own)
            assert len(row["position"]) == len(row["token"]) == len(row["advantage"]) > 0
    assert not (tmp_path / "tokens/step-3.parquet").exists()


def test_there_are_none_without_completions_or_without_masks(tmp_path):
    train(tmp_path / "off", max_steps=1, log_completions=False)
    train(tmp_path / "avg", max_steps=1, method="avg")
    assert not (tmp_path / "off" / "tokens").exists()
    assert (tmp_path / "avg" / "completions").exists()
    assert not (tmp_path / "avg" / "tokens").exists()


def test_a_combination_logs_the_draws_of_its_part(tmp_path):
    rows = build_rows(8).map(
        lambda row: {"candidates": [row["completion"], row["prompt"]], "candidate_rewards": [1, 0]}
    )
    train(tmp_path, max_steps=1, method="brio+semi_offline", rows=rows)
    assert (tmp_path / "tokens/step-1.parquet").exists()


def test_train_keeps_what_the_initial_checkpoint_wrote(tmp_path):
    """At most 200 inputs, before the first step; a resumed run does not decode them again."""
    for split, number in (("train", 8), ("validation", 203)):
        build_rows(number).to_json(tmp_path / f"{split}.jsonl")
    flags = ["--data_dir", str(tmp_path), "--model", str(save_model(tmp_path / "model")), "--device", "cpu"]
    flags += ["--reward", "click_rate", "--num_samples", "4", "--logging_steps", "1", "--learning_rate", "0.01"]
    flags += ["--max_prompt_length", "24", "--max_completion_length", "28", "--output_dir", str(tmp_path / "run")]
    flags += ["--save_strategy", "steps", "--save_steps", "2", "--disable_tqdm", "true"]
    flags += ["--per_device_eval_batch_size", "100"]
    assert main(["train", "semi_offline", *flags, "--max_steps", "2"]) == 0
    path = tmp_path / "run" / "before.jsonl"
    before = [json.loads(line) for line in path.read_text().splitlines()]
    after = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert (len(before), len(after)) == (200, 203)
    assert [row["prompt"] for row in before] == [row["prompt"] for row in after[:200]]
    assert before[0].keys() == after[0].keys() >= {"prediction", "references", "click_rate", "length"}
    path.write_text(json.dumps(before[0] | {"prediction": "kept"}) + "\n")
    assert main(["train", "semi_offline", *flags, "--max_steps", "3", "--resume", "true"]) == 0
    assert json.loads(path.read_text())["prediction"] == "kept"


def test_a_run_from_python_leaves_what_the_command_leaves(tmp_path):
    settings = {"max_steps": 2, "logging_steps": 1, "eval_metrics": ["rouge1"], "write_result": True}
    trainer = train(tmp_path / "python", dev=build_rows(3), **settings)
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "validation"):
        build_rows(24 if split == "train" else 3).to_json(data / f"{split}.jsonl")
    flags = ["--model", str(save_model(tmp_path / "model")), "--data_dir", str(data), "--device", "cpu"]
    flags += ["--max_steps", "2", "--logging_steps", "1", "--num_samples", "4", "--reward", "rouge1"]
    assert main(["train", "semi_offline", *flags, "--output_dir", str(tmp_path / "command")]) == 0
    left = [{path.name for path in (tmp_path / name).iterdir()} - {"model", ".lock"} for name in ("python", "command")]
    wanted = {"config.yaml", "versions.json", "metrics.jsonl", "before.jsonl", "predictions.jsonl", "result.json"}
    assert wanted <= left[0]
    of_the_command = {"about.json", "report.html", "checkpoint-2"}
    assert left[1] - of_the_command == left[0]
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("python", "command")]
    assert results[0].keys() == results[1].keys()
    assert trainer.run_folder.result is not None
    assert results[0]["metrics"]["rouge1"]["mean"] == trainer.run_folder.result.metrics["rouge1"].mean
    lines = (tmp_path / "python" / "predictions.jsonl").read_text().splitlines()
    assert len(lines) == 3


def test_a_run_from_python_may_leave_its_log_alone(tmp_path):
    trainer = train(tmp_path, dev=build_rows(3), max_steps=1, write_result=False)
    assert trainer.run_folder.result is None
    assert not {"config.yaml", "result.json", "before.jsonl"} & {path.name for path in tmp_path.iterdir()}
