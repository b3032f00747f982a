"""How the error of gradient estimates is measured, and what the tables of it say."""

import json

import pytest
import torch
from benchmarks.gradient_error import Problem, Tally, measure, summarise

from benchmarks import call_tables, estimators, gradient_error
from semioffline.experiments.results import Comparison

REPEATS = 4000


def tally_of(estimate, reference, noise=0.0, repeats=REPEATS):
    """Repeated estimates with noise of this standard deviation; the reference is known without noise."""
    generator = torch.Generator().manual_seed(0)
    tally = Tally((reference, reference), torch.zeros(len(reference), dtype=torch.long), 1)
    for _ in range(repeats):
        tally.add(estimate + noise * torch.randn(estimate.shape, generator=generator))
    return summarise([tally])


def test_an_estimate_that_is_a_multiple_of_the_gradient_has_no_error():
    found = tally_of(3 * torch.tensor([[1.0, -2.0], [0.5, 0.5]]), torch.tensor([[1.0, -2.0], [0.5, 0.5]]), repeats=4)
    assert found["error"] == pytest.approx(0, abs=1e-6)
    assert found["scale"] == pytest.approx(3)
    assert found["bias"] == pytest.approx(0, abs=1e-6)
    assert found["variance"] == pytest.approx(0, abs=1e-6)


def test_bias_and_variance_are_those_of_the_scaled_estimate():
    """r = (1, 0), E g = (2, 1), noise s in both: scaled by 1/2, the bias is (0, 1/2) and the variance 2 s^2 / 4."""
    found = tally_of(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0.0]]), noise=0.3)
    assert found["scale"] == pytest.approx(2, rel=0.01)
    assert found["bias"] == pytest.approx(0.25, rel=0.03)
    assert found["variance"] == pytest.approx(2 * 0.3**2 / 4, rel=0.05)
    assert 0.2 < found["error"] < 0.22  # 1 - cos^2 of (2, 1) and (1, 0), and the noise


def test_an_estimate_of_zero_has_the_error_of_an_unrelated_direction():
    found = tally_of(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1e-9]]), repeats=2)
    assert found["error"] == pytest.approx(1)


@pytest.fixture
def tiny_problem(tiny_policy, tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_error, "CHUNK", 64)
    monkeypatch.setattr(gradient_error, "AGREEMENT", -1.0)
    policy = tiny_policy("bart")
    policy.save(tmp_path / "model")
    gradient_error.prepare.cache_clear()
    yield Problem("ads", str(tmp_path / "model"), None, "cpu", inputs=16, chunks=2)
    gradient_error.prepare.cache_clear()


def test_both_estimators_are_measured_on_the_same_gradients(tiny_problem):
    for name, settings in (("REINFORCE", {}), ("counterfactual", estimators.COUNTERFACTUAL)):
        row = measure(tiny_problem, 4, settings, 2)
        assert (row["inputs"], row["repeats"]) == (16, 2), name
        assert 1 <= row["calls"] <= 4
        assert row["input"]["groups"] == 16
        assert row["batch"]["groups"] == 1
        assert 0 < row["input"]["error"] < 2


def test_what_was_measured_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["estimators", "--tasks", "ads"])
    options = estimators.argparse.Namespace(output_dir=str(tmp_path), chunks=2)
    path, rows = estimators.errors_of("ads", options)
    assert rows == []
    row = {"variant": "REINFORCE", "num_samples": 2, "calls": 2.0, "input": error_row(), "batch": error_row()}
    path.parent.mkdir()
    estimators.write("ads", [row], options, path)
    assert estimators.errors_of("ads", options)[1] == [row]
    text = call_tables.errors_markdown(json.loads(path.read_text()))
    assert "| 2 | 0.500 (0.10, 0.20) |" in text


def error_row():
    return {"error": 0.5, "low": 0.4, "high": 0.6, "groups": 16, "scale": 1.0, "bias": 0.1, "variance": 0.2}


def comparison():
    """REINFORCE with 16 samples is as good as with 64, with 8 it is worse."""

    def method(mean, p, calls):
        score = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "p": p, "by_seed": [mean]}
        costs = {"seconds": 5.0, "steps": 100, "peak_mb": None, "forward_passes": 1.0, "matched_after": None}
        cost_per_input = {"reward_calls": calls} if calls else {}
        return costs | {"seeds": [0], "metrics": {"rouge": score}, "curve": [], "cost_per_input": cost_per_input}

    methods = {
        "start": method(0.3, 0.001, 0),
        "semi_offline": method(0.42, None, 60.0),
        "semi_offline@reinforce-16": method(0.419, 0.3, 15.0),
        "semi_offline@reinforce-8": method(0.40, 0.01, 8.0),
        "semi_offline@reinforce-4": method(0.41, 0.2, 4.0),
    }
    about = {"command": "-", "commit": "abc", "versions": {}}
    percent = {"percent": {"rouge": True}, "metrics": ["rouge"]}
    return (
        {"kind": "comparison", "reference": "semi_offline", "methods": methods, "wall_seconds": 1.0}
        | percent
        | {"about": about}
    )


def test_the_smallest_number_is_the_one_from_which_on_none_is_worse():
    given = Comparison.from_json(comparison())
    runs = call_tables.runs_of(given, "semi_offline")
    assert [run.samples for run in runs] == [4, 8, 16, 64]
    found = call_tables.fewest(runs, given, "semi_offline", "rouge")
    assert found is not None
    assert found.samples == 16


def test_seconds_are_calls_times_the_time_of_a_call_and_what_is_not_measured_is_said(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(comparison()))
    rows = [{"on": "one", "file": "one.json", "metric": "rouge", "batch": 16}]
    rows.append({"on": "two", "file": "two.json", "metric": "rouge", "batch": 16})
    result = {"kind": "calls", "seconds_per_call": 0.02, "reference": "semi_offline", "rows": rows}
    text = call_tables.markdown(result, tmp_path)
    assert "| one | **16** (15.0 calls) | not measured |" in text
    assert "| two | not measured | not measured |" in text
    assert f"| 64 | 42.00 (41.00–43.00) | 60.0 | {100 * 16 * 60 * 0.02 + 5:,.0f} | not measured |" in text
    assert "two: not measured." in text
