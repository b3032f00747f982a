"""semioffline bench, with models that take no time."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy import build_rows, save_model

from benchmarks import claims, pages, sample_tables
from semioffline.bench.measure import METHODS, Clock, with_ratios
from semioffline.bench.models import MODELS, SHAPES, Texts, build_policy, build_tokenizer, words
from semioffline.bench.results import BenchResult, Case, CaseResult, Measured
from semioffline.cli import compare, main
from semioffline.cli.compare_options import read_command
from semioffline.cli.options import as_flags
from semioffline.cli.run_folder import shown_command
from semioffline.data.examples import Examples
from semioffline.errors import UserError

QUICK = "--small --steps 2 --warmup 1 --window 1 --batch_size 2 --candidates 2 --on_policy_samples 2".split()


def bench(folder: Path, *flags: str) -> dict[str, Any]:
    assert main(["bench", *QUICK, "--device", "cpu", "--output_dir", str(folder), *flags]) == 0
    return json.loads((folder / "bench.json").read_text())


def test_every_method_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    result = bench(tmp_path, "--num_samples", "2", "4", "--models", "bart-tiny")
    rows = result["rows"]
    assert [r["method"] for r in rows] == [*METHODS[:5], "semi_offline", *METHODS[5:]]
    assert not [row for row in rows if "error" in row]
    for row in rows:
        assert row["seconds"] > 0
        assert row["tokens_per_second"] == pytest.approx(2 * (48 + 16) / row["seconds"])
        assert row["peak_mb"] > 10
    base = next(row for row in rows if row["method"] == "ft")
    for row in rows:
        assert row["to_ft"] == pytest.approx(row["seconds"] / base["seconds"])
    assert [row["seconds_reward"] is not None for row in rows if row["method"] == "semi_offline"] == [True, True]
    assert capsys.readouterr().out.count(" ms ") >= len(rows)
    assert (tmp_path / "cost-samples.png").stat().st_size > 1000
    assert "gpus" in result["about"]["versions"]
    page = tmp_path / "page.md"
    page.write_text("<!-- table: bench.json -->\n<!-- end -->\n")
    table = [line for line in pages.fill(page).splitlines() if line.startswith("| ")]
    assert len(table) == 2 + len(rows)  # a head and a line
    assert {line.count("|") for line in table} == {table[0].count("|")}


@pytest.mark.parametrize("threads", [None, "2"])
def test_the_command_says_what_makes_a_difference(
    threads: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    command = bench(tmp_path / "mine", "--methods", "ft", "--models", "llama-tiny")["about"]["command"]
    assert command.startswith("OMP_NUM_THREADS=2 semioffline bench " if threads else "semioffline bench ")
    assert command.endswith("--output_dir runs/mine --methods ft --models llama-tiny")


def test_a_command_is_shown_without_the_folders_of_a_machine():
    words = ["--output_dir=/home/me/x", "--reward", "/home/me/r.py:f", "rouge", "--train_file", "/home/me/t.jsonl"]
    shown = shown_command("train", [*words, "--model", "/home/me/out/first/start/model"])
    wanted = "--output_dir runs/x --reward r.py:f rouge --train_file t.jsonl --model runs/first/start/model"
    assert shown.endswith(f"semioffline train {wanted}")


def test_a_case_that_fails_does_not_cost_the_others(tmp_path: Path) -> None:
    rows = bench(tmp_path, "--methods", "ft", "--models", "llama-tiny", "--settings", "graphs", "plain")["rows"]
    assert "cuda_graphs needs one CUDA device" in rows[0]["error"]
    assert rows[1]["seconds"] > 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--shapes", "samsun"], "Did you mean 'samsum'"),
        (["--methods", "semi_ofline"], "Did you mean 'semi_offline'"),
        (["--settings", "graph"], "Did you mean 'graphs'"),
    ],
)
def test_names_that_do_not_exist(flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", *QUICK, "--device", "cpu", "--output_dir", str(tmp_path), *flags]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("model", ["bart-tiny", "llama-tiny"])
def test_texts_have_the_lengths_of_the_shape(model: str) -> None:
    policy, shape = build_policy(model, torch.device("cpu")), SHAPES["tiny"]
    examples = Examples(Texts(5, shape, words(500), 3), policy, *shape, with_candidates=True, progress=False)
    for example in examples.examples:
        assert len(example.source.ids) == shape.source
        assert len(example.target.ids) == shape.target
        assert [len(tokens.ids) for tokens in example.candidates] == [shape.target] * 3
    assert len({example.columns["prompt"] for example in examples.examples}) == 5


def test_tokenizers_have_as_many_words_as_the_model() -> None:
    assert len(set(words(100_000))) == 100_000
    assert len(build_tokenizer(50_265, True)) == MODELS["bart-large"][1]["vocab_size"]


def test_the_clock_looks_at_windows_after_the_warmup() -> None:
    class State:
        global_step = 0

    clock, state = Clock(warmup=2, window=3, device="cpu"), State()
    for step in range(2 + 3 * 4):
        state.global_step = step
        clock.on_step_begin(None, state, None)
        state.global_step = step + 1
        clock.on_step_end(None, state, None)
    assert len(clock.seconds) == 4


def test_what_the_gradient_pushes_up() -> None:
    """Of one input both positions are hidden, and the samples with token 7 are better by one standard deviation each
    way; of the other all samples are alike. A token counts in every place where it was drawn."""
    kept = load_benchmark("samples").Kept(None)
    kept.samples = SimpleNamespace(
        hidden=torch.tensor([[True, True], [False, True]]),
        draws=torch.tensor([[7, 7, 5, 5], [7, 4, 4, 4], [7, 5, 7, 5]]),
    )
    kept.scores = SimpleNamespace(rewards=torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]]))
    one = 0.5 / (torch.tensor([1.0, 1.0, 0.0, 0.0]).std().item() + 1e-6)  # as the loss divides
    pushes = kept.pushes(10)
    assert pushes.shape == (10,)
    assert pushes[7] == pytest.approx(3 * one / 4)
    assert pushes[5] == pytest.approx(-2 * one / 4)
    assert pushes[4] == pytest.approx(-one / 4)


@pytest.fixture(scope="module")
def peer() -> Any:
    """benchmarks/trl_grpo.py: what it does with its measurements needs no TRL."""
    return load_benchmark("trl_grpo")


def load_benchmark(name: str) -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def test_what_samples_are_like(tmp_path: Path, monkeypatch) -> None:
    """benchmarks/samples.py: with everything hidden the static target does not matter; K samples beat one at least."""
    rows = build_rows(5).to_list()
    for row in rows:
        words = row["completion"].split()
        row["candidates"] = [" ".join(words), " ".join(words[::-1])]
        row["candidate_rewards"] = [0.5, 0.1]
    path, output = tmp_path / "rows.jsonl", tmp_path / "samples.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = save_model(tmp_path / "model")
    flags = ["--model", model, "--rows", path, "--reward", "click_rate", "--num_samples", "6", "--output", output]
    monkeypatch.setattr(sys, "argv", ["samples.py", *map(str, flags), "--mask_rates", "0.5", "1", "--batch_size", "2"])
    load_benchmark("samples").main()
    result = json.loads(output.read_text())
    assert result["inputs"] == 5
    assert len(result["rows"]) == 8
    hidden = [sample_tables.row_of(result, target, 1.0) for target in ("worst", "best")]  # of equal length
    assert [row["reward"] for row in hidden] == pytest.approx([hidden[0]["reward"]] * 2)
    for row in result["rows"]:
        assert row["best_reward"] >= row["reward"]
        assert all(0 <= row["wins"][what]["mean"] <= 1 for what in ("fill", "output"))
        assert row["examples"][0]["sample"]
        pushes = [push for _, push in row["pushed"]]
        assert pushes == sorted(pushes, reverse=True)
    text = pages.RENDERERS["samples"](result, tmp_path)
    assert text.count("| worst |") == 4
    assert text.count("| best |") == 2
    assert "pushed up most" in text
    older = {"rows": [{k: v for k, v in row.items() if k != "pushed"} for row in result["rows"]]}
    assert "pushed up most" not in pages.RENDERERS["samples"](result | older, tmp_path)
    claim = {"claim": "", "file": output.name, "metric": "fill", "mask_rate": 1.0, "better": "worst", "worse": "best"}
    assert claims.judge(claim, tmp_path)[1] == "unclear"
    with pytest.raises(UserError, match="does not have both"):
        claims.judge(claim | {"mask_rate": 0.7}, tmp_path)


@pytest.fixture(scope="module")
def every_comparison() -> Any:
    """benchmarks/results.py"""
    return load_benchmark("results")


def test_every_comparison_of_the_results_has_a_command_that_is_understood(every_comparison: Any, tmp_path) -> None:
    """It is read as `compare` reads it: recipes, methods and settings are there, also of methods that have changed."""
    where = Namespace(data=tmp_path / "data", models=tmp_path / "models", out=tmp_path / "out", more=[])
    for name, (_, model, data, *_) in every_comparison.COMPARISONS.items():
        words = every_comparison.command(where, name, None)[4:]
        found = read_command([*words, *as_flags(compare.ANYWHERE)], {})
        assert found[-1].keys() >= set(found[2].methods), name
        made = model in every_comparison.COMPARISONS
        assert made == str(found[1].model).endswith("start/model"), name
        assert found[0].data_dir == str((where.out if data == every_comparison.LIKE_TEST else where.data) / data), name


def test_inputs_like_those_of_the_test_split(every_comparison: Any, tmp_path: Path) -> None:
    published, folder = tmp_path / "e2e", tmp_path / "like"
    published.mkdir()
    facts = ["name[A], near[B]", "name[A], eatType[pub], near[B]", "eatType[pub]"]
    for split in ("train", "validation", "test"):
        rows = [{"input": text, "target": "a place"} for text in facts]
        (published / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    every_comparison.choose_like_test(published, folder)
    for split, kept in (("train", facts[1:2]), ("validation", facts[1:2]), ("test", facts)):
        assert [json.loads(line)["input"] for line in (folder / f"{split}.jsonl").read_text().splitlines()] == kept


def test_samples_of_candidates_that_have_the_columns_of_their_task(tmp_path: Path, monkeypatch) -> None:
    """As `semioffline candidates --task` writes them."""
    row = {"input": "dog ball", "target": "a dog has a ball", "references": ["a dog has a ball"]}
    row |= {"candidates": ["a dog", "a ball has"], "candidate_rewards": [0.5, 0.1]}
    path, output = tmp_path / "rows.jsonl", tmp_path / "samples.json"
    path.write_text((json.dumps(row) + "\n") * 2)
    flags = ["--model", save_model(tmp_path / "model"), "--task", "commongen", "--rows", path, "--output", output]
    flags += ["--reward", "rouge", "--num_samples", "4", "--mask_rates", "0.5"]
    monkeypatch.setattr(sys, "argv", ["samples.py", *map(str, flags)])
    load_benchmark("samples").main()
    assert [row["static_target"] for row in json.loads(output.read_text())["rows"]][:2] == ["worst", "random"]


def curve(*points: tuple[float, float]) -> list[dict[str, float]]:
    return [{"step": n, "seconds": seconds, "reward": reward} for n, (seconds, reward) in enumerate(points)]


def test_time_to_a_reward(peer: Any, tmp_path: Path) -> None:
    """In a straight line between two looks; the reward is the highest that all reach."""
    assert peer.time_to(curve((0, 0.1), (10, 0.3), (20, 0.2)), 0.2) == pytest.approx(5)
    assert peer.time_to(curve((0, 0.1), (10, 0.3)), 0.1) == 0
    assert peer.time_to(curve((0, 0.1), (10, 0.3)), 0.4) is None
    results = [
        {
            "trainer": "semi_offline",
            "steps": 40,
            "samples_per_step": 64,
            "seconds_per_step": 0.2,
            "curve": curve((0, 0.1), (8, 0.5)),
        },
        {
            "trainer": "grpo",
            "steps": 3,
            "samples_per_step": 8,
            "seconds_per_step": 3.0,
            "curve": curve((0, 0.1), (9, 0.3)),
        },
    ]
    summary = peer.summarise(results, None)
    assert summary["reward"] == 0.3
    assert [r["seconds_to_reward"] for r in summary["trainers"]] == pytest.approx([4, 9])
    assert [r["step_ratio"] for r in summary["trainers"]] == pytest.approx([1, 15])
    versions = {"python": "3", "torch": "2", "transformers": "5", "gpus": [], "cores": 2}
    about = {"command": "x", "commit": "abc", "versions": versions}
    (tmp_path / "peer.json").write_text(json.dumps(summary | {"kind": "peer", "about": about}))
    (tmp_path / "page.md").write_text("<!-- table: peer.json -->\n<!-- end -->\n")
    assert "| grpo | 3 | 8 | 3000 | 15.0 | 0.1000 (0 s), 0.3000 (9 s) |" in pages.fill(tmp_path / "page.md")


def test_ratios_are_of_the_same_model_shape_and_setting() -> None:
    def row(setting: str, method: str, seconds: float, mb: float) -> CaseResult:
        measured = Measured(seconds, seconds, seconds, 1, 1, 1, 1.0, peak_mb=mb)
        return CaseResult(Case("m", "s", 4, setting, method, 0), 1, 1, measured)

    rows = [
        row("plain", "ft", 1.0, 10),
        row("plain", "x", 3.0, 15),
        row("graphs", "ft", 0.5, 8),
        row("graphs", "x", 1, 8),
    ]
    rows = with_ratios(rows)
    assert [r.ratios["to_ft"] for r in rows] == [1, 3, 1, 2]
    assert [r.ratios["memory_to_ft"] for r in rows] == [1, 1.5, 1, 1]


def test_a_result_is_read_as_it_was_written() -> None:
    """Also those of earlier versions, in docs/results."""
    for path in sorted((Path(__file__).parents[2] / "docs" / "results").glob("bench-*.json")):
        found = json.loads(path.read_text())
        assert BenchResult.from_json(found).to_json() == found
    failed = CaseResult(Case("m", "s", 4, "plain", "ft", 0), 1, 1, error="OSError: no")
    assert CaseResult.from_json(failed.to_json()) == failed
    assert failed.to_json()["error"] == "OSError: no"
