"""The main job, end to end, as `make demo` runs it."""

import json

import pytest

from semioffline.cli import main
from semioffline.tasks.ads import TASK, best_single_wording
from semioffline.tasks.registry import Source


@pytest.mark.slow
def test_the_demo_shows_what_it_promises(tmp_path, capsys):
    """Clicks at least 1.5 times M-FT's, facts kept; and the task is not rigged: no single wording does it."""
    assert main(["demo", "--seed", "0", "--output_dir", str(tmp_path / "run"), "--device", "cpu"]) == 0
    models = json.loads((tmp_path / "run" / "result.json").read_text())["models"]
    before, after = models["mft"]["metrics"], models["semi_offline"]["metrics"]
    assert after["click_rate"]["mean"] >= 1.5 * before["click_rate"]["mean"]
    assert before["facts_right"]["mean"] >= 0.95
    assert after["facts_right"]["mean"] >= before["facts_right"]["mean"] - 0.01
    assert models["more_mft"]["metrics"]["click_rate"]["mean"] < 1.2 * before["click_rate"]["mean"]
    assert models["more_mft"]["difference"]["low"] > 0.3
    categories = TASK.load(Source(seed=0), "test")["category"]
    assert best_single_wording(categories) < 1.2 * before["click_rate"]["mean"]
    assert models["mft"]["cost_per_input"]["forward_passes"] == 1
    assert models["semi_offline"]["cost_per_input"]["forward_passes"] == 1
    out = capsys.readouterr().out
    for row in (
        "click_rate *",
        "facts right",
        "rouge",
        "distinct",
        "repetition",
        "length",
        "seconds",
        "Clicks:",
    ):
        assert row in out
    assert "static target: ground_truth" in out
    for name in ("config.yaml", "versions.json", "semi_offline/metrics.jsonl", "semi_offline/predictions.jsonl"):
        assert (tmp_path / "run" / name).is_file()
    logged = [json.loads(line) for line in (tmp_path / "run/semi_offline/metrics.jsonl").read_text().splitlines()]
    watched = {"eval_facts_right", "eval_repetition", "eval_length", "eval_click_rate"}
    assert any(watched <= line.keys() for line in logged)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--reward", "rogue1"], "Did you mean 'rouge1'?"),
        (["--num_samples", "1"], "--num_samples 1 must be at least 2"),
        (["--batch_size", "0"], "--batch_size 0 must be at least 1"),
        (["--mft_steps", "-5"], "--mft_steps -5"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_trained(flags, part, tmp_path, capsys):
    assert main(["demo", "--output_dir", str(tmp_path / "run"), *flags]) == 2
    assert part in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_task_without_a_model_or_a_reward_says_so(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    for flags, word in [(["--reward", "rouge"], "--model"), ([], "--reward")]:
        out = ["--output_dir", str(tmp_path / word.strip("-"))]
        assert main(["demo", "--task", "files", "--data_dir", str(tmp_path), *flags, *out, "--device", "cpu"]) == 2
        assert word in capsys.readouterr().err
