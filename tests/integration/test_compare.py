"""semioffline compare: same start, same data, same budget, one table."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from tests.integration.toy import build_rows, save_model

from semioffline.cli import main
from semioffline.cli.compare_options import method_config, read_command
from semioffline.cli.prepare import divide_inputs
from semioffline.cli.recipes import SHIPPED
from semioffline.engines.processes import Children
from semioffline.errors import UserError
from semioffline.evaluation.statistics import paired_p_value
from semioffline.experiments import timing
from semioffline.experiments.best_checkpoint import BestCheckpoint
from semioffline.experiments.comparison import compare
from semioffline.experiments.plan import Plan
from semioffline.experiments.provenance import commit
from semioffline.experiments.results import Comparison, Timing
from semioffline.experiments.summary import find_reference
from semioffline.methods.shared.registry import method_names
from semioffline.report import table

RECIPES = sorted(SHIPPED.glob("compare-*.yaml"))
FLAGS = ["--task", "ads", "--limit", "24", "--methods", "mft", "semi_offline", "--start_steps", "3", "--device", "cpu"]
FLAGS += [
    "--budget_seconds",
    "1",
    "--per_device_train_batch_size",
    "4",
    "--learning_rate",
    "1e-3",
    "--evaluations",
    "2",
]
DRAWS = ["--num_samples", "4"]


def arguments(*more: str) -> list[str]:
    """num_samples is rejected where no method reads it: given where semi_offline is compared."""
    draws = "--methods" not in more or any(word.startswith("semi_offline") for word in more)
    return [*FLAGS, *DRAWS, *more] if draws else [*FLAGS, *more]


def run(folder: Path, *more: str) -> dict:
    assert main(["compare", "--output_dir", str(folder), *arguments(*more)]) == 0
    return json.loads((folder / "comparison.json").read_text())


def looks_of(folder: Path, method: str) -> list[int]:
    """The steps at which a run looked at validation."""
    lines = (folder / f"runs/{method}-seed0/metrics.jsonl").read_text().splitlines()
    return [row["step"] for row in map(json.loads, lines) if "eval_reward" in row]


def test_it_writes_a_table_and_plots_and_is_reproducible(tmp_path, capsys):
    first = run(tmp_path / "a", "--budget_steps", "4")
    assert "semi_offline" in capsys.readouterr().out
    second = run(tmp_path / "b", "--budget_steps", "4")
    for method in ("mft", "semi_offline"):
        one, two = first["methods"][method], second["methods"][method]
        assert one["metrics"] == two["metrics"]
        assert one["forward_passes"] == two["forward_passes"] == 1
        assert one["steps"] == 4
        assert [p["step"] for p in one["curve"]] == [0, 2, 4]
        assert [p["reward"] for p in one["curve"]] == [p["reward"] for p in two["curve"]]
    starts = [first["methods"][m]["curve"][0]["reward"] for m in ("start", "mft", "semi_offline")]
    assert starts[0] == starts[1] == starts[2]
    assert looks_of(tmp_path / "a", "mft") == [2, 4]  # the start's own is known
    assert (first["methods"]["start"]["steps"], first["methods"]["start"]["seconds"]) == (0, 0)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    plots = {f"reward-{what}.{ending}" for what in ("seconds", "forward-passes") for ending in ("png", "svg")}
    assert {"comparison.md", "config.yaml", *plots} <= names
    assert (tmp_path / "a" / "comparison.md").read_text() == table.markdown(Comparison.from_json(first))


def test_a_method_that_is_looked_at_in_another_way_looks_at_the_start_itself(tmp_path):
    own = {"mft@short": {"max_completion_length": 4}, "mft@rate": {"learning_rate": 1e-4}}
    flags = ["--methods", *own, "--settings", json.dumps(own), "--budget_steps", "1", "--evaluations", "1"]
    assert run(tmp_path, *flags)["methods"]["mft@short"]["curve"][0]["step"] == 0
    assert {name: looks_of(tmp_path, name) for name in own} == {"mft@short": [0, 1], "mft@rate": [1]}
    fewer = [*flags, "--eval_limit", "5", "--only", "mft@rate:0"]  # inputs than the start was looked at with
    assert main(["compare", "--output_dir", str(tmp_path), *arguments(*fewer)]) == 0
    assert looks_of(tmp_path, "mft@rate") == [0, 1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["--learning_rate", "0.01"], "learning_rate: 0.001 before, 0.01 now"),
        (["--budget_steps", "3"], "max_steps: 2 before, 3 now"),
        (["--settings", '{"mft": {"mle_mask_rate": 0.1}}'], "mle_mask_rate: 0.4 before, 0.1 now"),
        (["--reward", "rouge"], "start-seed0 is a run with other settings (comparison"),
    ],
)
def test_runs_with_other_settings_are_not_taken_for_those_of_today(changes, told, tmp_path, capsys):
    """A table says how its runs were made. The same again is welcome, with another method, too."""
    flags = ["--budget_steps", "2", "--methods", "mft"]
    first = run(tmp_path, *flags)
    both = run(tmp_path, *flags, "semi_offline")
    assert both["methods"]["mft"]["curve"] == first["methods"]["mft"]["curve"]
    capsys.readouterr()
    assert main(["compare", "--output_dir", str(tmp_path), *arguments(*flags, *changes)]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    before = json.loads((tmp_path / "comparison.json").read_text())
    assert before["about"]["command"].endswith("--methods mft semi_offline")  # nothing was written


def test_a_budget_in_seconds_that_has_changed_is_seen(tmp_path, capsys):
    flags = ["--methods", "mft", "--budget_seconds"]
    run(tmp_path, *flags, "0.2")
    assert main(["compare", "--output_dir", str(tmp_path), *arguments(*flags, "30")]) == 2
    assert "max_steps" in capsys.readouterr().err.splitlines()[-1]
    assert main(["compare", "--output_dir", str(tmp_path), *arguments(*flags, "0.2", "--budget_steps", "2")]) == 2
    assert "budget: seconds before, steps now" in capsys.readouterr().err.splitlines()[-1]


def test_a_comparison_that_was_stopped_trains_again(tmp_path):
    """Its checkpoints do not know which look was the best, nor the seconds before it."""
    flags = ["--methods", "semi_offline", "--budget_steps", "4", "--save_strategy", "steps", "--save_steps", "3"]
    first = run(tmp_path, *flags)
    folder = tmp_path / "runs" / "semi_offline-seed0"
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoint-4")
    again = run(tmp_path, *flags)
    one, two = first["methods"]["semi_offline"], again["methods"]["semi_offline"]
    assert (one["metrics"], one["best_steps"]) == (two["metrics"], two["best_steps"])
    assert [point["step"] for point in two["curve"]] == [0, 2, 4]


@pytest.mark.parametrize(("rewards", "kept"), [([0.3, 0.4], 0), ([0.3, 0.6], 2), ([0.7, 0.6], 1)])
def test_the_best_look_is_kept_also_if_it_is_that_of_the_start(rewards, kept):
    model = torch.nn.Linear(1, 1, bias=False)
    looks = BestCheckpoint(model, 2, 2, "best", 0.5)
    weights = [model.weight.item()]
    for step, reward in enumerate(rewards, start=1):
        torch.nn.init.constant_(model.weight, float(step))
        weights.append(float(step))
        looks.on_evaluate(None, SimpleNamespace(global_step=step), None, metrics={"eval_reward": reward})
    looks.restore()
    assert looks.best_step == kept
    assert model.weight.item() == weights[kept]


def test_runs_side_by_side_give_the_same_table(tmp_path):
    """Only what the clock says differs: of runs side by side it says nothing."""
    flags = ("--methods", "semi_offline", "--budget_steps", "4")
    one = run(tmp_path / "one", *flags)
    shutil.copytree(tmp_path / "one" / "start", tmp_path / "two" / "start")
    two = run(tmp_path / "two", *flags, "--jobs", "2")
    assert "%|" not in (tmp_path / "two/runs/semi_offline-seed0/log.txt").read_text()  # no bars in a file
    for method in ("start", "semi_offline"):
        assert one["methods"][method]["metrics"] == two["methods"][method]["metrics"]
    assert one["methods"]["semi_offline"]["seconds"] > 0
    assert two["methods"]["semi_offline"]["seconds"] is None
    header, lines = table.rows(Comparison.from_json(two))
    assert [line[header.index("seconds")] for line in lines] == ["0.0", "–"]
    assert [line[header.index("matched after")] for line in lines] == ["–", "–"]


def test_with_a_budget_in_seconds_each_method_is_timed_alone_before_they_run_side_by_side(tmp_path):
    own = json.dumps({"semi_offline": {"steps": 4, "rl_weight": 0.5}})
    flags = ("--methods", "semi_offline", "--budget_seconds", "0.2", "--settings", own)
    method = run(tmp_path, *flags, "--jobs", "2")["methods"]["semi_offline"]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert method["seconds"] == pytest.approx(4 * plan["semi_offline"]["seconds_per_step"])
    assert method["timed"].startswith("alone")


def test_with_a_budget_in_steps_the_seconds_are_those_that_were_measured_alone(tmp_path):
    flags = ("--methods", "semi_offline", "--budget_steps", "2")
    assert main(["compare", "--output_dir", str(tmp_path), *arguments(*flags, "--only", "timing")]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    method = run(tmp_path, *flags, "--jobs", "2")["methods"]["semi_offline"]
    assert (method["steps"], method["timed"]) == (2, "alone, before the runs")
    assert method["seconds"] == pytest.approx(2 * plan["semi_offline"]["seconds_per_step"])


def test_the_start_may_leave_out_the_inputs_that_methods_train_on(tmp_path):
    """24 inputs, 8 of them left out: the start's three steps of 4 are three quarters of an epoch of the other 16."""
    run(tmp_path, "--budget_steps", "2", "--unseen_inputs", "8", "--static_target", "worst", "--num_candidates", "2")
    start, method = (
        json.loads((tmp_path / folder / "metrics.jsonl").read_text().splitlines()[-1])
        for folder in ("start", "runs/semi_offline-seed0")
    )
    assert start["epoch"] == pytest.approx(3 * 4 / 16)
    assert method["epoch"] == pytest.approx(2 * 4 / 8)
    assert len((tmp_path / "candidates" / "candidates.jsonl").read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["--start_steps", "4"], "(start_steps: 3 before, 4 now)"),
        (["--settings", '{"start": {"warmup_steps": 2}}'], "(warmup_steps: None before, 2 now)"),
        (["--max_prompt_length", "20"], "(max_prompt_length: 32 before, 20 now)"),
    ],
)
def test_a_folder_with_another_start_is_refused(changes, told, tmp_path, capsys):
    """It would be taken for the one that is asked for. The same again, and other methods, are welcome."""
    run(tmp_path, "--budget_steps", "1", "--methods", "mft")
    run(tmp_path, "--budget_steps", "1", "--settings", '{"semi_offline": {"num_samples": 2}}')
    capsys.readouterr()
    assert main(["compare", "--output_dir", str(tmp_path), *arguments("--budget_steps", "1", *changes)]) == 2
    message = capsys.readouterr().err
    assert f"start made with other settings {told}" in message


def test_rows_of_one_input_stay_together_when_some_are_left_out():
    rows = Dataset.from_dict(
        {"prompt": [f"input {n % 10}" for n in range(40)], "completion": [str(n) for n in range(40)]}
    )
    seen, unseen = divide_inputs(rows, 3, seed=0)
    assert (len(seen), len(unseen)) == (28, 12)
    assert not set(seen["prompt"]) & set(unseen["prompt"])
    assert sorted([*seen["completion"], *unseen["completion"]], key=int) == rows["completion"][:]
    assert (
        divide_inputs(rows, 3, seed=0)[1]["completion"][:]
        == unseen["completion"][:]
        != divide_inputs(rows, 3, seed=1)[1]["completion"][:]
    )
    for number in (0, 10):
        with pytest.raises(UserError, match="the training data has 10"):
            divide_inputs(rows, number, seed=0)


def test_what_recording_graphs_takes_is_counted_once_and_not_in_every_step(monkeypatch):
    """Thirteen steps of a second; five of them record graphs, for ten seconds more."""
    clock, control = timing.StepClock(seconds=3.0), SimpleNamespace(should_training_stop=False)
    now, graphs = 0.0, 0
    monkeypatch.setattr(timing, "recordings", lambda: graphs)
    monkeypatch.setattr(clock, "now", lambda: now)
    for step in range(13):
        assert not control.should_training_stop
        clock.on_step_begin(None, None, control)
        records = step in (0, 1, 2, 3, 6)
        graphs += records
        now += 1.0 + 10.0 * records
        clock.on_step_end(None, None, control)
    assert control.should_training_stop  # eight steps without a recording
    assert clock.measured() == Timing(seconds_per_step=1.0, seconds_recording=50.0)


def test_steps_on_one_rollout_are_timed_together(monkeypatch):
    """The first of four steps samples, for eight seconds more: three seconds a step on average."""
    clock, control = timing.StepClock(seconds=3.0, period=4), SimpleNamespace(should_training_stop=False)
    now = 0.0
    monkeypatch.setattr(clock, "now", lambda: now)
    for step in range(32):
        assert not control.should_training_stop
        clock.on_step_begin(None, None, control)
        now += 1.0 + 8.0 * (step % 4 == 0)
        clock.on_step_end(None, None, control)
    assert control.should_training_stop
    assert clock.measured() == Timing(seconds_per_step=3.0, seconds_recording=0.0)


def test_a_run_that_fails_is_named_with_its_last_line(tmp_path, capsys):
    reward = tmp_path / "mine.py"
    reward.write_text("def broken(completions, **kwargs):\n    raise OSError('no network')\n")
    flags = ["--reward", f"{reward}:broken", "--budget_steps", "1", "--only", "semi_offline:0"]
    assert main(["compare", "--output_dir", str(tmp_path / "run"), *arguments(*flags)]) == 2
    assert "no network" in capsys.readouterr().err


def _plan(folder: Path, broken: set[str]) -> Plan:
    """Runs that only leave a result, or fail."""
    fail = "sys.exit('OutOfMemoryError: full') if sys.argv[2] else None"
    script = f"import pathlib, sys; {fail}; pathlib.Path(sys.argv[1]).write_text('')"

    def command(part: str) -> list[str]:
        method, _, seed = part.partition(":")
        result = folder / "runs" / f"{method}-seed{seed}" / "result.json"
        return [sys.executable, "-c", script, str(result), "broken" * (method in broken)]

    methods = ["a", "b", "c", "d", "e"]
    nothing: Any = None
    return Plan(
        folder, methods, {m: [0] for m in methods}, [], nothing, nothing, nothing, nothing, nothing, None, 1, jobs=2,
        command=command, processes=Children,
    )  # fmt: skip


def test_one_run_that_fails_does_not_stop_the_others(tmp_path):
    plan = _plan(tmp_path, {"c", "d"})
    with pytest.raises(
        UserError,
        match=r"^[cd], seed 0 ended with .* 1: OutOfMemoryError: full .*: fewer --jobs .*; 1 more failed. .*table",
    ):
        compare(plan, print)
    assert plan.missing() == [("c", 0), ("d", 0)]


def test_where_all_fail_not_all_are_tried(tmp_path):
    with pytest.raises(UserError, match="a, seed 0 ended"):
        compare(_plan(tmp_path, set("abcde")), print)
    assert len(list((tmp_path / "runs").iterdir())) < 5


def test_the_best_look_on_validation_is_tested(tmp_path):
    """A learning rate that destroys the model: the best look is the start, and the last one is worse."""
    flags = (
        "--budget_steps",
        "4",
        "--learning_rate",
        "1.0",
        "--methods",
        "mft",
        "--reward",
        "rouge",
        "--start_steps",
        "40",
    )
    best = run(tmp_path / "best", *flags)["methods"]["mft"]
    last = run(tmp_path / "last", *flags, "--keep", "last")["methods"]["mft"]
    assert [p["reward"] for p in best["curve"]] == [p["reward"] for p in last["curve"]]
    assert best["curve"][0]["reward"] > last["curve"][-1]["reward"]
    assert (best["best_steps"], last["best_steps"]) == ([0], [None])
    assert best["metrics"]["rouge"]["mean"] > last["metrics"]["rouge"]["mean"]


def test_what_is_done_is_not_done_again(tmp_path):
    run(tmp_path, "--budget_steps", "2")
    kept = tmp_path / "runs" / "mft-seed0" / "result.json"
    (tmp_path / "runs" / "semi_offline-seed0" / "result.json").unlink()
    before = (kept.stat().st_mtime_ns, (tmp_path / "start" / "model" / "model.safetensors").stat().st_mtime_ns)
    run(tmp_path, "--budget_steps", "2")
    after = (kept.stat().st_mtime_ns, (tmp_path / "start" / "model" / "model.safetensors").stat().st_mtime_ns)
    assert before == after


def test_a_table_of_what_is_done_so_far(tmp_path, capsys):
    """Made anywhere: it needs no data and no model, and says where the runs were made."""
    flags = ["--budget_steps", "2", "--settings", '{"mft": {"seeds": [0, 1]}}']
    flags += ["--eval_metrics", "click_rate", "bleu_rougeL"]
    whole = run(tmp_path, *flags)
    assert whole["missing"] == []
    assert whole["percent"] == {"click_rate": False, "bleu_rougeL": True}
    shutil.rmtree(tmp_path / "start")
    for name in ("semi_offline-seed0", "mft-seed1"):
        shutil.rmtree(tmp_path / "runs" / name)
    result = tmp_path / "runs" / "mft-seed0" / "result.json"
    made = json.loads(result.read_text())
    made["about"] |= {"commit": "another"}
    made["about"]["versions"] |= {"torch": "1.0"}
    result.write_text(json.dumps(made))
    part = run(tmp_path, *flags, "--only", "table")
    assert part["missing"] == ["semi_offline:0", "mft:1"]  # in the order of running: first seeds first
    assert list(part["methods"]) == ["start", "mft"]
    assert part["methods"]["mft"]["seeds"] == [0]
    assert part["about"]["command"] == whole["about"]["command"]
    assert part["about"]["commit"].endswith(", another")
    assert part["about"]["mixed"]
    assert "Not run: semi_offline:0, mft:1" in (tmp_path / "comparison.md").read_text()
    assert not (tmp_path / "start").exists()
    elsewhere = run(tmp_path, *flags, "--reward", "not_here.py:score", "--only", "table")  # nor the reward
    assert elsewhere["methods"] == part["methods"]
    shutil.rmtree(tmp_path / "runs")
    assert main(["compare", "--output_dir", str(tmp_path), *arguments(*flags, "--only", "table")]) == 2
    assert "no run of this comparison is done" in capsys.readouterr().err


def test_runs_of_another_comparison_from_the_same_start_stand_beside(tmp_path, capsys):
    """As where some methods have other candidates: one table, with what is due to each, and tests between them."""
    first, other = tmp_path / "first", tmp_path / "other"
    start = ["--start_steps", "0", "--model", str(first / "start/model")]
    flags = ["--budget_steps", "2", "--methods", "mft", "mft@own", "--settings", '{"mft": {"seeds": [0, 1]}}']
    run(first, *flags)
    theirs = run(other, "--budget_steps", "3", "--methods", "mft", "ft", *start)
    flags.append("--beside")
    made = run(first, *flags, f"longer={other}", "--only", "table")
    assert list(made["methods"]) == ["start", "mft", "mft@own", "mft@longer", "ft@longer"]
    scores = [found["metrics"]["rouge"]["mean"] for found in (made["methods"]["mft@longer"], theirs["methods"]["mft"])]
    assert scores[0] == scores[1]
    assert 0 < made["methods"]["mft"]["p_by_method"]["ft@longer"] <= 1
    assert made["about"]["command"].endswith("--beside longer=runs/other")
    shown = table.about_comparison(Comparison.from_json(made))
    assert f"`{theirs['about']['command']}` (@longer)" in shown
    assert "--model runs/first/start/model" in shown
    assert str(tmp_path) not in shown

    def refused(*words: str) -> str:
        capsys.readouterr()
        assert main(["compare", "--output_dir", str(first), *arguments(*flags, *words, "--only", "table")]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "must be LABEL=FOLDER" in refused(str(other))
    assert "the folder has no comparison.json" in refused(f"longer={tmp_path}")
    assert "another folder has the label longer" in refused(f"longer={other}", f"longer={other}")
    third = tmp_path / "third"  # what stands beside `first` does not stand beside this one
    nested = run(third, "--budget_steps", "3", "--methods", "mft", *start, "--beside", f"two={first}")
    assert list(nested["methods"]) == ["start", "mft", "mft@two", "mft@own@two"]
    assert "mft@own is a method of this comparison, too" in refused(f"own={other}")
    whole = (other / "comparison.json").read_text()
    (other / "comparison.json").write_text(json.dumps(json.loads(whole) | {"missing": ["ft:1"]}))
    assert "is not finished: ft:1" in refused(f"longer={other}")
    (other / "comparison.json").write_text(whole)
    elsewhere = tmp_path / "elsewhere"
    run(elsewhere, "--budget_steps", "2", "--methods", "mft", "--start_steps", "5")
    assert "has another initial checkpoint" in refused(f"another={elsewhere}")
    shutil.rmtree(other / "runs")
    assert "No such file" in refused(f"longer={other}")
    for content in ("[]", '{"kind": "bench"}', '{"methods": {"mft": {}}}'):
        (other / "comparison.json").write_text(content)
        assert "cannot be read as a comparison" in refused(f"longer={other}")


def test_a_wrong_folder_beside_is_told_before_anything_is_trained(tmp_path, capsys):
    assert main(["compare", "--output_dir", str(tmp_path / "run"), *arguments("--beside", f"one={tmp_path}")]) == 2
    assert "the folder has no comparison.json" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_where_semi_offline_is_not_compared_a_table_tests_against_what_is_there(tmp_path):
    made = run(tmp_path, "--budget_steps", "2", "--methods", "mft", "ft@own", "ft", "--settings", '{"ft@own": {}}')
    assert made["reference"] == "mft"
    assert made["methods"]["ft"]["metrics"]["rouge"]["p"] is not None
    assert "* differs from mft" in table.caption(Comparison.from_json(made))
    assert find_reference("ft", list(made["methods"])) == "ft"
    assert find_reference("ft", ["start", "mft", "ft@own"]) == "ft@own"
    assert find_reference("ft", ["start"]) == "start"


def test_every_two_methods_are_tested_against_each_other(tmp_path):
    own = {"semi_offline": {"rl_weight": 0.5}}
    made = run(tmp_path, "--budget_steps", "2", "--settings", json.dumps(own))
    methods, first = made["methods"], made["metrics"][0]
    for one in methods:
        assert list(methods[one]["p_by_method"]) == [other for other in methods if other != one]
        for other, p in methods[one]["p_by_method"].items():
            assert p == methods[other]["p_by_method"][one]
            if other == made["reference"]:
                assert p == methods[one]["metrics"][first]["p"]
    assert made["own_settings"] == own


def test_settings_of_the_start_are_for_its_training_and_not_for_testing_it(tmp_path):
    """How a model decodes (in batches of another size, with rounding) would make it another one."""
    own = {"start": {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 3}}
    made = run(tmp_path, "--budget_steps", "1", "--settings", json.dumps(own), "--per_device_eval_batch_size", "5")
    sizes = [
        json.loads((tmp_path / "runs" / f"{method}-seed0" / "settings.json").read_text())["per_device_eval_batch_size"]
        for method in ("start", "mft")
    ]
    assert sizes == [5, 5]
    assert made["own_settings"] == own
    lines = [json.loads(line) for line in (tmp_path / "start" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train_samples_per_second"] == pytest.approx(2 * lines[-1]["train_steps_per_second"], rel=0.01)


def test_a_result_names_the_commit_and_whether_files_differ_from_it(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    assert commit(tmp_path) is None
    (tmp_path / "recipe.yaml").write_text("mask_rate: 0.4\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    head = commit(tmp_path)
    assert head is not None
    assert len(head) == 12
    (tmp_path / "result.json").write_text("{}")  # not a part of it
    assert commit(tmp_path) == head
    (tmp_path / "recipe.yaml").write_text("mask_rate: 0.6\n")
    assert commit(tmp_path) == f"{head} with changes"


def test_one_method_with_several_settings(tmp_path):
    """METHOD@LABEL has METHOD's settings, and its own before them."""
    names = ["semi_offline@few", "semi_offline@many"]
    own = {"semi_offline": {"rl_weight": 0.5, "num_samples": 2}, names[1]: {"num_samples": 6, "steps": 3}}
    both = run(tmp_path, "--methods", *names, "--settings", json.dumps(own), "--budget_steps", "1")["methods"]
    assert [both[name]["steps"] for name in names] == [1, 3]
    for name, many in zip(names, (2, 6), strict=True):
        args = json.loads((tmp_path / "runs" / f"{name}-seed0" / "settings.json").read_text())
        assert (args["num_samples"], args["rl_weight"], args["method"]) == (many, 0.5, "semi_offline")


def test_some_methods_of_a_recipe(tmp_path, capsys):
    """--methods leaves out what the recipe lists, with its settings; a name that stands nowhere is still refused."""
    recipe = tmp_path / "recipe.yaml"
    written = "methods: [ft, mft, mft@few]\nsettings: {ft: {seeds: [0, 1]}, mft: {seeds: [2]}, mft@few: {seeds: [3]}}\n"
    recipe.write_text(written)
    flags = ["compare", "--config", str(recipe), "--output_dir", str(tmp_path / "run"), *FLAGS, "--methods", "mft"]
    assert main([*flags, "--budget_steps", "1"]) == 0
    made = json.loads((tmp_path / "run/comparison.json").read_text())
    assert {name: row["seeds"] for name, row in made["methods"].items()} == {"start": [0], "mft": [2]}
    assert list(made["own_settings"]) == ["mft"]
    for methods in ("methods: [mft@few, ft]\n", "", "methods: ft\n"):  # bases of names; the default; one name
        rest = written.partition("\n")[2] if methods != "methods: ft\n" else "settings: {ft: {seeds: [0]}}\n"
        recipe.write_text(methods + rest.replace(", mft@few: {seeds: [3]}" * (not methods), ""))
        assert main([*flags, "--budget_steps", "1"]) == 0
    recipe.write_text(written.replace("mft@few: {", "mft@fwe: {"))
    capsys.readouterr()
    assert main([*flags, "--budget_steps", "1"]) == 2
    assert "unknown method in --settings 'mft@fwe'" in capsys.readouterr().err.splitlines()[-1]


def test_the_start_can_be_made_and_timed_first(tmp_path):
    for only in ("start:0", "timing"):
        assert main(["compare", "--output_dir", str(tmp_path), *arguments("--only", only)]) == 0
    assert set(json.loads((tmp_path / "plan.json").read_text())) == {"mft", "semi_offline"}
    assert not (tmp_path / "comparison.json").exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["start-seed0"]


def test_seconds_are_turned_into_steps_once(tmp_path):
    first = run(
        tmp_path, "--budget_seconds", "0.5", "--settings", '{"semi_offline": {"rl_weight": 0.5, "seeds": [0, 1]}}'
    )
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert first["methods"]["mft"]["steps"] == plan["mft"]["steps"] >= 1
    assert first["methods"]["semi_offline"]["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--methods", "mft", "semi_ofline"], "semi_offline"),
        (["--settings", "{"], "must be JSON"),
        (["--settings", '{"avgg": {}}'], "avgg"),
        (["--start_steps", "0"], "--model"),
        (["--keep", "bst"], "best"),
        (["--only", "mft:7"], "mft:0"),
        (["--jobs", "0"], "at least 1"),
        (["--settings", "[1]"], "a map of methods"),
        (["--settings", '{"mft": 5}'], "a map of methods"),
        (["--settings", '{"mft": {"seeds": 3}}'], "the seeds of mft"),
        (["--settings", '{"mft": {"steps": "x"}}'], "the steps of mft"),
        (["--budget_steps", "0"], "at least 1"),
        (["--budget_seconds", "nan"], "--budget_seconds nan must be a finite number above 0"),
        (["--start_steps", "-1"], "at least 0"),
        (["--seeds", "0", "-1"], "at least 0"),
        (["--evaluations", "0"], "at least 1"),
        (["--reward", "rogue"], "rouge"),
        (["--early_stopping_patience", "1", "--eval_strategy", "steps"], "same steps"),
        (["--early_stopping_patience", "1"], "set eval_strategy"),
    ],
)
def test_mistakes(tmp_path, capsys, flags, part):
    assert main(["compare", "--output_dir", str(tmp_path / "run"), *arguments(*flags)]) == 2
    err = capsys.readouterr().err
    assert part in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_parse(path):
    """Every setting of every method, too."""
    flags = ["--config", str(path), "--output_dir", "unused", "--use_cpu", "true", "--bf16", "false"]
    _, _, options, *_, own = read_command(flags, {"reward": ["rouge"]})
    assert {"start", *options.methods} == own.keys()
    for method, settings in own.items():
        config = method_config(method, settings, flags, {"reward": ["rouge"]})
        assert config.method == ("mft" if method == "start" else method.partition("@")[0])


def test_the_recipe_of_all_methods_has_all_of_them():
    flags = ["--config", str(SHIPPED / "compare-ads.yaml"), "--output_dir", "unused"]
    options = read_command(flags, {"reward": ["click_rate"]})[2]
    named = {part for method in options.methods for part in method.partition("@")[0].split("+")}
    assert named == set(method_names())
    assert len(options.seeds) == 3


def test_paired_bootstrap_sees_a_shift_that_the_spread_hides():
    rng = np.random.default_rng(0)
    values = rng.normal(0, 10, 300)
    assert paired_p_value(values + 0.5 + rng.normal(0, 1, 300), values) < 0.01
    assert paired_p_value(values + rng.normal(0, 1, 300) - 0.0, values) > 0.05
    assert paired_p_value(values, values) == 1.0


def test_one_run_by_itself_has_the_rows_of_the_whole(tmp_path):
    """It takes candidates that were made for all runs, but only where the comparison uses them. How long those took is
    noted when they are made."""
    few = [*FLAGS, "--candidate_rows", "8", "--num_candidates", "2", "--budget_steps", "1", "--methods"]
    assert main(["compare", "--output_dir", str(tmp_path), *few, "brio", "--only", "start:0"]) == 0
    for method in ("brio", "ft"):
        assert main(["compare", "--output_dir", str(tmp_path), *few, method, "--only", f"{method}:0"]) == 0
    spent = json.loads((tmp_path / "preparation.json").read_text())
    assert spent.keys() == {"M-FT", "candidates"}
    assert min(spent.values()) > 0
    assert run(tmp_path, *few[len(FLAGS) :], "brio")["preparation"] == spent  # made once
    epochs = {}
    for method in ("brio", "ft"):
        log = (tmp_path / "runs" / f"{method}-seed0" / "metrics.jsonl").read_text().splitlines()
        epochs[method] = max(json.loads(line).get("epoch", 0) for line in log)
    assert epochs["brio"] > 2 * epochs["ft"] > 0


def test_candidates_made_with_other_settings_are_refused_also_by_one_run(tmp_path, capsys):
    few = [*FLAGS, "--candidate_rows", "8", "--budget_steps", "1", "--methods", "brio", "--num_candidates"]
    assert main(["compare", "--output_dir", str(tmp_path), *few, "3", "--only", "start:0"]) == 0
    assert main(["compare", "--output_dir", str(tmp_path), *few, "2", "--only", "brio:0"]) == 2
    assert "num_candidates: 3 before, 2 now" in capsys.readouterr().err.splitlines()[-1]


def test_rows_without_candidates_are_left_out(tmp_path, capsys):
    """A model may write nothing for an input; all others are trained on."""
    few = [*FLAGS, "--candidate_rows", "8", "--num_candidates", "2", "--methods", "brio", "--budget_steps", "1"]
    assert main(["compare", "--output_dir", str(tmp_path), *few, "--only", "start:0"]) == 0
    path = tmp_path / "candidates/candidates.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3] |= {"candidates": [], "candidate_rewards": []}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    run(tmp_path, *few[len(FLAGS) :], "--seeds", "0", "0")
    assert "1 of 8 rows have no candidate and are left out" in capsys.readouterr().out


def test_the_start_has_a_learning_rate_of_its_own(tmp_path):
    weights = []
    for rate in (0.0, 0.0, 0.01):
        folder = tmp_path / str(len(weights))
        own = json.dumps({"start": {"learning_rate": rate}})
        assert main(["compare", "--output_dir", str(folder), *arguments("--settings", own, "--only", "start:0")]) == 0
        weights.append((folder / "start/model/model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_a_comparison_that_was_refused_can_be_mended(tmp_path, capsys):
    """Nothing is noted of a start that was never made."""
    assert main(["compare", "--output_dir", str(tmp_path), *arguments("--limit", "0", "--budget_steps", "1")]) == 2
    capsys.readouterr()
    run(tmp_path, "--budget_steps", "1", "--methods", "mft")


def test_a_start_that_was_killed_while_it_was_saved_is_made_again(tmp_path):
    """Its configuration alone is no model, and neither are weights that are cut off."""
    flags = [*FLAGS, "--budget_steps", "1", "--only", "start:0"]
    assert main(["compare", "--output_dir", str(tmp_path), *flags]) == 0
    model = tmp_path / "start/model"
    whole = (model / "model.safetensors").read_bytes()
    for damage in ("config alone", "cut off", "without tokenizer"):
        if damage == "cut off":
            (model / "model.safetensors").write_bytes(whole[:100])
        for path in list(model.iterdir()):
            kept = (
                damage == "cut off"
                or path.name == "config.json"
                or (damage != "config alone" and "token" not in path.name)
            )
            if not kept:
                path.unlink()
        assert main(["compare", "--output_dir", str(tmp_path), *flags]) == 0
        assert (model / "model.safetensors").read_bytes() == whole
    made = model.stat().st_mtime_ns
    assert main(["compare", "--output_dir", str(tmp_path), *flags]) == 0
    assert model.stat().st_mtime_ns == made


def test_a_comparison_in_use_is_refused_and_its_single_runs_are_not(tmp_path, capsys):
    flags = ["--methods", "semi_offline", "--budget_steps", "1"]
    script = "import time\nfrom pathlib import Path\nfrom semioffline.storage.files import lock_folder\n"
    script += f"lock_folder(Path({str(tmp_path)!r}))\nprint(flush=True)\ntime.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert main(["compare", "--output_dir", str(tmp_path), *FLAGS, *flags]) == 2
        assert "is in use by another process" in capsys.readouterr().err.splitlines()[-1]
        assert main(["compare", "--output_dir", str(tmp_path), *FLAGS, *flags, "--only", "start:0"]) == 0
        other.kill()


def test_candidates_have_a_temperature(tmp_path, capsys):
    """Near 0 all candidates of an input are its most likely text; 0 is refused before anything is made."""
    few = [*FLAGS, "--candidate_rows", "8", "--num_candidates", "3", "--methods", "brio", "--only", "start:0"]
    assert main(["compare", "--output_dir", str(tmp_path / "a"), *few, "--candidate_temperature", "0"]) == 2
    assert "--candidate_temperature 0.0 must be at least 0.0001" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "a").exists()
    different = {}
    for temperature in ("1", "0.001"):
        folder = tmp_path / temperature
        assert main(["compare", "--output_dir", str(folder), *few, "--candidate_temperature", temperature]) == 0
        rows = [json.loads(line) for line in (folder / "candidates/candidates.jsonl").read_text().splitlines()]
        different[temperature] = sum(len(set(row["candidates"])) for row in rows)
    assert different["0.001"] == 8 < different["1"]


def test_ones_own_data_is_the_default_and_names_the_table(tmp_path, capsys):
    """Not the task that the library makes up: its settings would be used without a word."""
    folder = tmp_path / "my-data"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        build_rows(12).to_json(folder / f"{split}.jsonl")
    flags = ["--methods", "mft", "--start_steps", "1", "--device", "cpu", "--budget_steps", "1", "--evaluations", "1"]
    flags += ["--max_prompt_length", "24", "--max_completion_length", "12", "--output_dir", str(tmp_path / "run")]
    flags += ["--data_dir", str(folder), "--model", str(save_model(tmp_path / "model"))]
    assert main(["compare", *flags]) == 2
    assert "give --reward" in capsys.readouterr().err  # there is none that all data have
    assert main(["compare", *flags, "--reward", "rouge1"]) == 0
    settings = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (settings["task"], settings["start_learning_rate"]) == ("files", 1e-4)
    assert "my-data: 1 methods" in capsys.readouterr().out
    assert json.loads((tmp_path / "run/comparison.json").read_text())["title"] == "my-data: 1 methods"


def test_a_method_that_does_not_fit_the_budget_is_told_and_left_out(tmp_path, capsys):
    """AVG generates all its samples: on a CPU one step may take longer than the whole budget."""
    known = {"mft": Timing(0.01, 0.0), "avg": Timing(90.0, 0.0)}
    (tmp_path / timing.PLAN).write_text(json.dumps({name: each.to_json() for name, each in known.items()}))
    flags = ("--methods", "mft", "avg", "--budget_seconds", "0.05")
    result = run(tmp_path, *flags)
    assert (list(result["methods"]), result["missing"]) == (["start", "mft"], ["avg:0"])
    lines = capsys.readouterr().out.splitlines()
    told = ("  mft", "  avg", "1 runs")
    at = {name: next(n for n, line in enumerate(lines) if line.startswith(name)) for name in told}
    assert lines[at["  mft"]] == "  mft: 0.01 s a step, 5 steps in 0 s"
    assert lines[at["  avg"]].startswith("  avg: 90 s a step, and the budget is 0.05 s: left out.")
    assert at["1 runs"] < lines.index("mft, seed 0")  # the total comes first
    result = run(tmp_path, *flags, "--settings", '{"avg": {"steps": 1, "num_samples": 2}}')
    assert list(result["methods"]) == ["start", "mft", "avg"]


def test_one_step_is_timed_where_more_would_pass_the_budget(monkeypatch):
    clock, now = timing.StepClock(0.0, most=10.0), iter(range(0, 1000, 6))
    monkeypatch.setattr(timing.StepClock, "now", staticmethod(lambda: float(next(now))))
    stops = []
    for _ in range(3):
        control = SimpleNamespace(should_training_stop=False)
        clock.on_step_begin(None, None, control)
        clock.on_step_end(None, None, control)
        stops.append(control.should_training_stop)
    assert stops == [False, True, True]  # 6, 12 and 18 seconds
