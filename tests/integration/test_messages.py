"""Conversations on the command line: candidates, training and evaluation, and what is said where they do not fit."""

import json

import pytest
from toy import build_rows, build_tokenizer, save_model

from semioffline.cli import main

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}: {% endif %}"


@pytest.fixture
def data(tmp_path):
    rows = [
        {
            "prompt": [{"role": "system", "content": "meet"}, {"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
        }
        for row in build_rows(4)
    ]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_from_candidates_to_evaluation(data, monkeypatch):
    save_model(data / "model", "llama")
    tokenizer = build_tokenizer("llama")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(data / "model")
    monkeypatch.chdir(data)
    shared = "--data_dir . --device cpu --max_completion_length 12 "
    sampling = "--strategy sampling --num_candidates 2 --output_dir candidates"
    assert main(f"candidates --model model --reward rouge {shared} {sampling}".split()) == 0
    rows = [json.loads(line) for line in (data / "candidates" / "candidates.jsonl").read_text().splitlines()]
    assert rows[0]["prompt"][0] == {"role": "system", "content": "meet"}  # as they were
    start = "--model model --train_file candidates/candidates.jsonl --static_target worst --reward rouge"
    short = "--num_samples 2 --max_steps 1 --report_to none --disable_tqdm true --output_dir rl"
    assert main(f"train semi_offline {start} {shared} {short}".split()) == 0
    assert main(f"evaluate --model rl/model {shared} --output_dir test".split()) == 0
    lines = (data / "test" / "predictions.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["prompt"] == f"meet {build_rows(4)[0]['prompt']} : "  # the trained model kept its chat template
    assert first["references"] == [build_rows(4)[0]["completion"]]


@pytest.mark.parametrize(
    ("kind", "problem"), [("bart", "an encoder-decoder model reads"), ("llama", "no chat template")]
)
def test_models_that_read_no_messages(data, capsys, kind, problem):
    save_model(data / "model", kind)
    places = ["--data_dir", str(data), "--model", str(data / "model"), "--output_dir", str(data / "out")]
    capsys.readouterr()
    assert main(["evaluate", *places, "--device", "cpu"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("semioffline: error: row 0: the prompt is a list of messages, but ")
    assert problem in line
