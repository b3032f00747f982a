"""What the report reads from run folders, and what it says."""

import json
import math
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from benchmarks.synthetic_run import write_run

from integration.toy import build_rows, save_model
from semioffline.cli import main
from semioffline.data.options import DataOptions
from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.scale import shown_value
from semioffline.evaluation.statistics import Difference
from semioffline.experiments.job_results import JobResult, ModelResult
from semioffline.experiments.provenance import Provenance, changed_settings
from semioffline.methods.semi_offline import SemiOfflineConfig
from semioffline.report.curves import curves_of
from semioffline.report.draws import draws_of
from semioffline.report.html import STATIC, embed
from semioffline.report.outputs import MOST_CHARACTERS, changes_of, metric_names, output_tables, pairs_of, row_value
from semioffline.report.page import write_report
from semioffline.report.run_folders import Run, named_apart, read_folder
from semioffline.report.summary import duration, summarise_run


def data_of(path: Path) -> Any:
    """What a page embeds."""
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_a_run_is_read_and_paired_with_its_initial_outputs(tmp_path):
    write_run(tmp_path, rows=30, before=20, steps=5)
    [run] = read_folder(tmp_path).runs
    pairs = pairs_of(run)
    assert [pair.before is not None for pair in pairs] == [True] * 20 + [False] * 10
    assert all(pair.before is None or pair.before["prompt"] == pair.prompt for pair in pairs)
    change = changes_of(run, pairs)[0]
    assert (change.metric, change.inputs) == ("good", 20)
    before = sum(pair.before["good"] for pair in pairs[:20]) / 20
    assert change.before == pytest.approx(before)
    assert change.difference.mean == pytest.approx(change.after - change.before)
    summary = summarise_run(run, changes_of(run, pairs))
    assert "The mean good rose from" in summary.sentence
    assert {fact.name for fact in summary.facts} >= {"steps", "training time", "rewards computed"}
    assert [row.metric for row in summary.rows if row.is_rewarded] == ["good"]


def test_the_reward_of_several_functions_is_their_weighted_sum(tmp_path):
    write_run(tmp_path, rows=3, before=0, steps=2)
    log = {"step": 5, "loss": 1.0, "rewards/good/mean": 0.1, "rewards/rouge/mean": 0.2}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(log) + "\n")
    (tmp_path / "config.yaml").write_text("reward_weights: [1.0, -2.0]\n")
    [run] = read_folder(tmp_path).runs
    row = run.after[0]
    assert row_value(row, "reward", run) == pytest.approx(row["good"] - 2 * row["rouge"])
    assert row_value(row | {"rouge": math.nan}, "reward", run) is None
    assert changes_of(run, pairs_of(run))[0].metric == "reward"


def test_scores_have_one_scale_and_rewards_that_of_their_function():
    assert (shown_value("rougeL", 0.2153), shown_value("good", 0.2153)) == ("21.53", "0.2153")


def test_long_texts_are_shortened_until_the_page_can_be_opened(tmp_path):
    write_run(tmp_path, rows=300, before=0, steps=1, prompt_words=10_000)
    [run] = read_folder(tmp_path).runs
    tables = output_tables([(run, pairs_of(run))])
    assert tables.shortened is not None
    assert sum(len(prompt) for prompt, _ in tables.inputs) < MOST_CHARACTERS
    assert tables.inputs[0][0].endswith("more characters)")


def test_the_explorer_has_the_draws_of_every_logged_step(tmp_path):
    write_run(tmp_path, rows=2, before=0, steps=4, num_samples=8)
    (tmp_path / "tokens" / "step-20.parquet").write_bytes(b"no parquet")
    [found] = draws_of(read_folder(tmp_path).runs)
    assert [step["step"] for step in found["steps"]] == [10, 30, 40]
    shown = found["steps"][0]["inputs"][0]
    assert len(shown["rewards"]) == 8
    assert {draw[0] for draw in shown["draws"]} <= set(range(len(shown["target"])))
    rewards = [reward for _, reward in shown["samples"]]
    assert rewards == sorted(rewards, reverse=True)
    assert max(shown["rewards"]) == pytest.approx(rewards[0], abs=1e-3)


def test_words_are_ranked_by_their_share_of_the_samples_times_their_advantage(tmp_path):
    write_run(tmp_path, rows=2, before=0, steps=3, num_samples=4)
    [found] = draws_of(read_folder(tmp_path).runs)
    pushes: dict[str, float] = {}
    for shown in [shown for step in found["steps"] for shown in step["inputs"]]:
        for _, token, count, _, advantage in shown["draws"]:
            pushes[token.strip()] = pushes.get(token.strip(), 0) + count * advantage / 4
    liked = {word: push for word, push, _ in found["words"]["liked"]}
    assert next(iter(liked)) == max(pushes, key=lambda word: pushes[word])
    assert liked == {word: pytest.approx(pushes[word], rel=0.01) for word in liked}
    assert all(push < 0 for _, push, _ in found["words"]["disliked"])


def test_curves_leave_out_what_never_changes_and_put_samples_next_to_validation(tmp_path):
    write_run(tmp_path, rows=2, before=0, steps=10)
    found = curves_of(read_folder(tmp_path).runs)
    charts = {chart["title"]: chart for chart in found["charts"]}
    assert charts["Reward"]["lines"] == [("train", "reward"), ("eval", "eval_reward")]
    assert charts["rouge"]["factor"] == 100
    assert ["Mask rate", 0.4] in found["constant"]
    assert found["charts"][0]["group"] == "Reward"


def test_folders_of_one_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / part / "run", rows=2, before=0, steps=1) for part in "ab"]
    labels = [run.label for folder in named_apart(map(read_folder, runs)) for run in folder.runs]
    assert len(set(labels)) == 2


def test_what_is_missing_or_damaged_leaves_a_part_out(tmp_path, capsys):
    write_run(tmp_path / "log", rows=1, before=0, steps=3)
    (tmp_path / "log" / "predictions.jsonl").unlink()
    (tmp_path / "log" / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "reward": NaN}\n{"step"')
    page = write_report([tmp_path / "log"]).read_text()
    assert "This run has kept no outputs" in page
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        assert main(["report", str(tmp_path / name)]) == 2
    assert main(["report"]) == 2
    assert "no run in" in capsys.readouterr().err


def test_a_page_has_no_reference_to_anything_outside(tmp_path):
    class Links(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]

    write_run(tmp_path, rows=3, before=3, steps=3)
    page = write_report([tmp_path]).read_text()
    parser = Links()
    parser.feed(page)
    assert parser.found
    assert all(link.startswith("#") for link in parser.found)
    assert "@import" not in page
    assert "url(" not in page
    assert "Copyright (c) 2022 Leon Sorokin" in page  # the chart library comes with its licence
    assert "Permission is hereby granted" in page


def test_embedded_json_cannot_end_its_element():
    text = "</script><!--\u2028 &amp; \ud83d"
    shown = str(embed([text]))
    assert not set("<>&\u2028") & set(shown)
    assert json.loads(shown) == [text]
    shown.encode()


def test_what_is_written_by_hand_is_small_and_valid():
    scripts = sorted(STATIC.glob("*.js"))
    assert sum(len(path.read_text().splitlines()) for path in scripts) < 600
    library = [path for path in STATIC.rglob("*") if "uplot" in path.parts and path.is_file()]
    assert sum(path.stat().st_size for path in library) < 500_000
    assert "MIT" in (STATIC / "uplot" / "LICENSE").read_text()
    for path in scripts:
        assert not {"innerHTML", "eval("} & set(re.findall(r"innerHTML|eval\(", path.read_text())), path.name
        try:
            checked = subprocess.run(["node", "--check", path], capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("node is not installed")
        assert checked.returncode == 0, checked.stderr


def test_settings_that_differ_are_named_without_folders(tmp_path):
    config = SemiOfflineConfig(output_dir=str(tmp_path), num_samples=7, use_cpu=True, report_to="none")
    found = changed_settings(DataOptions(task="ads", data_dir=str(tmp_path / "own-data")), config)
    assert found["num_samples"] == 7
    assert found["data_dir"] == "own-data"
    assert set(found) == {"task", "data_dir", "num_samples", "use_cpu"}


def test_seconds_are_told_as_people_do():
    assert [duration(n) for n in (1.26, 754, 7384)] == ["1.3 s", "12 min 34 s", "2 h 3 min"]


@pytest.mark.slow
def test_train_writes_a_report_with_everything(tmp_path, capsys):
    flags = {
        "task": "ads",
        "limit": 12,
        "eval_limit": 4,
        "model": save_model(tmp_path / "model", "bart"),
        "device": "cpu",
    }
    flags |= {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "num_samples": 3}
    flags |= {"output_dir": tmp_path / "run", "max_prompt_length": 24, "max_completion_length": 16}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert main(["train", "semi_offline", *words]) == 0
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in capsys.readouterr().out
    page = tmp_path / "run" / "report.html"
    found = data_of(page)
    assert len(found["outputs"]["runs"][0]["rows"]) == 4
    assert [step["step"] for step in found["draws"][0]["steps"]] == [2, 4]
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    assert about["data"]["train"]["rows"] == 12
    assert about["settings"]["num_samples"] == 3
    assert str(tmp_path) not in json.dumps(about)
    assert about["data"]["train"]["digest"] in page.read_text()


@pytest.mark.slow
def test_a_callback_writes_it_in_python(tmp_path):
    from semioffline import SemiOfflineTrainer
    from semioffline.report.callback import ReportCallback

    rows = build_rows(8)
    config = SemiOfflineConfig(
        output_dir=str(tmp_path / "run"), max_steps=2, logging_steps=1, num_samples=2, use_cpu=True, report_to="none",
        per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = SemiOfflineTrainer(str(save_model(tmp_path / "model", "bart")), "length", config, rows, rows)
    trainer.add_callback(ReportCallback(trainer))
    trainer.train()
    found = data_of(tmp_path / "run" / "report.html")
    rows_shown = found["outputs"]["runs"][0]["rows"]
    assert len(rows_shown) == 8
    assert all(row[1] is not None for row in rows_shown)


def test_the_result_of_a_job_is_the_first_thing_on_the_page(tmp_path):
    """Outputs of every model are next to those of the model that it began with, on the test split."""
    reward = MetricResult(0.6, 0.5, 0.7, 20, "reward|v:1")
    ahead = Difference(0.1, 0.05, 0.15, 0.001)
    labels = {
        "initial": "initial checkpoint",
        "mft": "M-FT",
        "more_mft": "more M-FT",
        "semi_offline": "semi-offline RL",
    }
    for n, name in enumerate(labels):
        write_run(tmp_path / name, rows=20, before=0, steps=2 * bool(n), seed=1)
    models = {
        name: ModelResult(
            label=label, folder=name, metrics={"reward": reward}, seconds=75.0, cost_per_input={"forward_passes": 1.0},
            difference=None if name == "semi_offline" else ahead,
        )
        for name, label in labels.items()
    }  # fmt: skip
    about = Provenance("semioffline run --model m", "abc", {"python": "3"})
    job = JobResult(title="mail to subject", reward="good", sentence="reward 0.5 → 0.6", models=models, about=about)
    (tmp_path / "result.json").write_text(json.dumps(job.to_json()))
    folder = read_folder(tmp_path)
    assert [run.label for run in folder.runs] == list(labels.values())
    assert [len(run.before) for run in folder.runs] == [0, 20, 20, 20]
    assert [run.start for run in folder.runs[1:]] == ["initial checkpoint", "M-FT", "M-FT"]
    assert folder.runs[3].before == folder.runs[1].after
    page = write_report([tmp_path]).read_text()
    for part in ("mail to subject", "+0.100 (+0.050 to +0.150)", "semioffline run --model m", "75.0 s", "reward|v:1"):
        assert part in page
    assert page.index("reward 0.5 → 0.6") < page.index("The mean good")


def test_a_reward_with_a_name_is_shown_once(tmp_path):
    """run writes `reward`, the weighted sum, next to its parts."""
    texts = {"prompt": "a", "prediction": "b"}
    for sums, names in (([0.5, 1.0], ["good"]), ([1.0, 2.0], ["good", "reward"])):
        rows = [texts | {"good": good, "reward": reward} for good, reward in zip([0.5, 1.0], sums, strict=True)]
        assert metric_names(Run("run", tmp_path, after=rows)) == names


def test_warnings_are_those_of_the_diagnostics(tmp_path):
    write_run(tmp_path, rows=3, before=0, steps=10)
    page = write_report([tmp_path]).read_text()
    assert "No signs of reward hacking" in page
    assert 'id="warnings"' not in page
    log = (tmp_path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(log[-1]) | {"eval_length": 60.0, "eval_length_references": 15.0, "eval_rouge": 0.01}
    (tmp_path / "metrics.jsonl").write_text("\n".join([*log[:-1], json.dumps(last)]) + "\n")
    page = write_report([tmp_path]).read_text()
    assert "The outputs went from 15.0 to 60.0 words (references: 15.0)." in page
    assert re.search(r"Rouge fell from \d\d\.\d+ to 1 while the reward rose", page)  # on the scale of tables
    assert "What to try: " in page
    assert "No signs of reward hacking" not in page
