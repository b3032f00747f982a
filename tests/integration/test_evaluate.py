"""Two models on one test set: paired differences, from run folders and from models."""

import json
from pathlib import Path

import pytest
from tests.integration.toy import build_rows, save_model

from semioffline.cli import main
from semioffline.evaluation.paired import Predictions, paired_changes
from semioffline.evaluation.statistics import paired_difference


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With two models, and a test split."""
    build_rows(12).to_json(tmp_path / "test.jsonl")
    for n, name in enumerate(("one", "two")):
        save_model(tmp_path / name, seed=n)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SHARED = "--data_dir . --device cpu --max_prompt_length 24 --max_completion_length 12 --metrics rouge1 corpus_bleu"


def evaluate(*words: str) -> int:
    return main(["evaluate", *SHARED.split(), *words])


def test_a_run_and_a_model_are_compared_over_the_same_inputs(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert evaluate("--model", "two", "--output_dir", "b") == 0
    assert evaluate("--model", "one", "--output_dir", "a", "--against", "b", "two") == 0
    result = json.loads((folder / "a/result.json").read_text())
    assert list(result["against"]) == ["b", "two"]
    assert result["against"]["b"] == result["against"]["two"]  # the same outputs
    ours, theirs = (
        [json.loads(line)["rouge1"] for line in (folder / name / "predictions.jsonl").read_text().splitlines()]
        for name in "ab"
    )
    wanted = paired_difference(ours, theirs)
    assert result["against"]["b"]["rouge1"] == wanted.to_json()
    bleu = {name: json.loads((folder / name / "result.json").read_text())["metrics"]["corpus_bleu"] for name in "ab"}
    assert result["against"]["b"]["corpus_bleu"]["mean"] == pytest.approx(bleu["a"]["mean"] - bleu["b"]["mean"])
    out = capsys.readouterr().out
    assert "test: one against b, 12 inputs" in out
    assert f"{100 * wanted.low:+.2f} to {100 * wanted.high:+.2f}" in out
    assert "Report: a/report.html" in out
    assert (folder / "a/report.html").exists()
    assert evaluate("--model", "one", "--output_dir", "a", "--against", "b", "two") == 0  # goes on, decodes nothing


def test_another_decoding_is_said(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert evaluate("--model", "one", "--output_dir", "beams", "--num_beams", "2") == 0
    assert evaluate("--model", "one", "--output_dir", "a", "--against", "beams") == 0
    assert "measured in another way" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_compared_is_refused(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (folder / "empty").mkdir()
    assert evaluate("--model", "one", "--output_dir", "a", "--against", "empty") == 2
    assert "--against empty must be a run folder with predictions.jsonl, or a model" in capsys.readouterr().err
    assert not (folder / "a").exists()  # before anything is decoded
    assert evaluate("--model", "one", "--output_dir", "b", "--limit", "5") == 0
    assert evaluate("--model", "one", "--output_dir", "a", "--against", "b") == 2
    assert "has 5 outputs and a/predictions.jsonl 12" in capsys.readouterr().err


def test_other_rows_and_files_are_refused(tmp_path: Path) -> None:
    row = {"prompt": "p", "prediction": "x", "references": ["r"], "rouge1": 0.5}
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    for path, change in zip(paths, ({}, {"references": ["other"]}, {"rouge1": "?"})):
        path.write_text(json.dumps(row | change) + "\n")
    with pytest.raises(ValueError, match="other references"):
        paired_changes(Predictions.read(paths[0]), Predictions.read(paths[1]))
    with pytest.raises(ValueError, match=r"c\.jsonl does not hold predictions"):
        Predictions.read(paths[2])


def test_the_sum_of_several_rewards_is_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {"prompt": "p", "prediction": "x", "references": ["r"], "one": 0.5, "two": 0.25}
    path.write_text(json.dumps(row) + "\n")
    found = Predictions.read(path).with_reward({"one": 1.0, "two": 2.0})
    assert found.values["reward"] == [1.0]
    assert "reward" not in Predictions.read(path).with_reward({"one": 1.0}).values
