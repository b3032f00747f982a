"""The table, the plots and the page of a comparison."""

from dataclasses import replace

import pytest

from report.comparisons import comparison_of
from semioffline.experiments.results import Comparison, CurvePoint, MetricSummary
from semioffline.report import comparing, plots, table
from semioffline.report.summary import comparison_sentence


def compared(**means: float) -> Comparison:
    """Methods with these means, of which each differs from the next by chance only when it is within 0.02."""
    made = comparison_of(["metric", *means])
    methods = {}
    for name, mean in means.items():
        p_by_method = {
            other: 0.5 if abs(mean - value) < 0.02 else 0.001 for other, value in means.items() if other != name
        }
        score = MetricSummary(mean, mean - 0.01, mean + 0.01, p_by_method.get("semi_offline"))
        methods[name] = replace(made.methods["metric"], metrics={"metric": score}, p_by_method=p_by_method)
    return replace(made, methods=methods, reference="semi_offline", title="data: methods")


def test_a_method_whose_best_checkpoint_is_the_initial_one_says_so():
    made = compared(start=0.2, mft=0.2, semi_offline=0.5)
    best_steps = {"start": [], "mft": [0, 0], "semi_offline": [0, 8]}
    methods = {name: replace(method, best_steps=best_steps[name]) for name, method in made.methods.items()}
    made = replace(made, methods=methods)
    header, lines = table.rows(made)
    tested = header.index("tested step")
    assert [line[tested] for line in lines] == ["–", "initial", "initial, 8"]
    assert "No checkpoint was better than the initial one, which is tested: mft." in table.caption(made)


def test_the_table_explains_its_columns():
    made = compared(mft=0.2, semi_offline=0.5)
    explained = {column.lower() for column, _ in table.explanations(made)}
    assert explained >= {"metrics", "validation", "fp / input", "tested step", "matched after"}
    assert "Times 100: metric" in table.caption(replace(made, percent={"metric": True}))


def test_the_sentence_and_the_matrix_tell_chance_from_difference():
    made = compared(start=0.2, mft=0.49, semi_offline=0.5)
    assert comparison_sentence(made) == (
        "semi_offline has the highest metric on the test inputs: 0.500 (95 % interval 0.490 to 0.510). "
        "The difference from mft may be chance. The initial checkpoint has 0.200."
    )
    kinds = [[cell.kind for cell in row] for row in comparing.view(made).matrix]
    assert kinds == [["none", "worse", "worse"], ["better", "none", "chance"], ["better", "chance", "none"]]


@pytest.mark.parametrize("stderr", [0.0, 0.01, 0.1])
def test_noise_does_not_fill_the_axis(stderr):
    points = [CurvePoint(reward, stderr=stderr) for reward in (0.50, 0.501, 0.502)]
    low, high = comparing.limits(points)
    assert low < 0.50 - 1.96 * stderr
    assert high > 0.502 + 1.96 * stderr
    assert high - low >= 3 * 2 * 1.96 * stderr
    assert high - low >= 0.009  # 2 % of the value


def test_plots_have_a_title_the_initial_checkpoint_and_bands(tmp_path):
    made = compared(start=0.2, semi_offline=0.5)
    curve = [CurvePoint(0.2, stderr=0.01), CurvePoint(0.5, 2, 1.0, 800, 0.01)]
    methods = {name: replace(method, curve=curve) for name, method in made.methods.items()}
    paths = plots.draw(replace(made, methods=methods), tmp_path)
    assert {path.name for path in paths} == {
        f"reward-{cost}.{ending}" for cost in ("seconds", "forward-passes") for ending in ("png", "svg")
    }
    drawing = next(path for path in paths if path.name == "reward-seconds.svg").read_text()
    for part in ("Reward on validation", "data: methods", "initial checkpoint", "reward (95 % interval)", "seconds"):
        assert f"<!-- {part}" in drawing or part in drawing
    assert "FillBetweenPolyCollection" in drawing or "PolyCollection" in drawing
