"""Tables of pages come from JSON files, and from nothing else."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import claims, pages
from pages import links_of
from semioffline.errors import UserError
from semioffline.experiments.results import Comparison
from semioffline.report import table

DOCS = Path(__file__).parents[2] / "docs"


def comparison() -> dict:
    def method(mean: float, p: float | None, matched: float | None) -> dict:
        score = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "p": p, "by_seed": [mean - 0.001, mean + 0.001]}
        return {
            "seeds": [0, 1],
            "metrics": {"rouge": score},
            "forward_passes": 1.0,
            "steps": 10.0,
            "seconds": 2.5,
            "peak_mb": None,
            "matched_after": matched,
            "curve": [{"reward": 0.2}, {"reward": mean + 0.02}, {"reward": 0.1}],
        }

    versions = {"python": "3.12", "torch": "2", "transformers": "5", "gpus": [], "cores": 2}
    return {
        "kind": "comparison",
        "metrics": ["rouge"],
        "percent": {"rouge": True},
        "reference": "semi_offline",
        "methods": {"mft": method(0.3, 0.01, 1.5), "semi_offline": method(0.35, None, None)},
        "wall_seconds": 120.0,
        "about": {"command": "semioffline compare --task ads", "commit": "abc", "versions": versions},
    }


def test_a_table_says_what_was_measured_and_how():
    text = pages.RENDERERS["comparison"](comparison(), Path())
    assert "| mft | 2 | 30.00* (29.00–31.00) | 0.3200 | 1 | 10 | – | 2.5 | 1.5 | – |" in text
    assert "| semi_offline | 2 | 35.00 (34.00–36.00) | 0.3700 | 1 | 10 | – | 2.5 | – | – |" in text
    for part in ("semioffline compare --task ads", "commit abc", "2 CPU cores", "torch 2", "seeds 0, 1", "2 minutes"):
        assert part in text


def test_a_table_says_what_was_done_before_the_runs():
    made = comparison() | {"preparation": {"M-FT": 113.4, "candidates": 61.0}}
    assert "seconds before the runs: M-FT 113, candidates 61" in pages.RENDERERS["comparison"](made, Path())


def test_a_table_says_what_settings_methods_had_of_their_own():
    own = {"semi_offline": {"mask_rate": 0.6, "steps": 400}, "mft": {"seeds": [0, 1]}}
    given = comparison() | {"own_settings": own}
    said = "Settings of their own: semi_offline: mask_rate 0.6, steps 400; mft: seeds [0, 1].\n"
    assert said in pages.RENDERERS["comparison"](given, Path())
    given["about"]["command"] += " --settings '{}'"  # said already
    assert said not in pages.RENDERERS["comparison"](given, Path())


def test_report_fills_the_blocks_of_a_page_and_nothing_else(tmp_path, capsys):
    (tmp_path / "one.json").write_text(json.dumps(comparison()))
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- table: one.json -->\nold\n<!-- end -->\nafter\n")
    assert pages.main([str(path)]) == 0
    text = path.read_text()
    assert text.startswith("before\n<!-- table: one.json -->\n| method |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    assert table.markdown(Comparison.from_json(comparison())) in text
    assert pages.fill(path) == text
    assert "1 tables" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "part"), [(None, "cannot read"), ("{", "cannot read"), ('{"kind": "comparson"}', "comparison")]
)
def test_a_result_that_is_not_one(tmp_path, capsys, content, part):
    if content is not None:
        (tmp_path / "one.json").write_text(content)
    (tmp_path / "page.md").write_text("<!-- table: one.json -->\n<!-- end -->\n")
    assert pages.main([str(tmp_path / "page.md")]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    "path",
    pages.pages_of([str(DOCS.parent / "README.md"), str(DOCS)]),
    ids=lambda path: str(path.relative_to(DOCS.parent)),
)
def test_the_tables_in_docs_are_what_the_results_give(path):
    assert path.read_text() == pages.fill(path), "run `make tables`"


def test_every_result_in_docs_is_shown_on_a_page():
    """As a table, or as a link."""
    shown = set()
    for page_path in DOCS.rglob("*.md"):
        text = page_path.read_text()
        named = [match[1] for match in pages.BLOCK.findall(text)] + links_of(text)
        shown |= {(page_path.parent / name).resolve() for name in named}
    assert {path.resolve() for path in (DOCS / "results").glob("*.json")} <= shown


def test_the_table_of_a_campaign_has_a_line_for_each_fault_and_their_sum():
    row = {"what": "train: killed | at random", "tried": 1200, "handled": 1199, "lost": 1, "hung": 0}
    made = {"rows": [row, row | {"what": "signals"}], "date": "2026-11-19", "seconds": 3600}
    text = pages.RENDERERS["campaign"](made | {"about": comparison()["about"]}, Path())
    assert "| train: killed \\| at random | 1,200 | 1,199 | 1 | 0 |" in text
    assert "| **all** | 2,400 | 2,398 | 2 | 0 |" in text
    for part in ("2026-11-19, 60 minutes", "commit abc"):
        assert part in text


def test_a_table_is_filled_in_when_its_result_is_there(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table when run: campaign.json -->\n")
    assert pages.fill(page) == page.read_text()
    made = {"kind": "campaign", "rows": [], "date": "2026-11-19", "seconds": 60, "about": comparison()["about"]}
    (tmp_path / "campaign.json").write_text(json.dumps(made))
    page.write_text(pages.fill(page))
    assert "2026-11-19, 1 minutes" in page.read_text()
    assert pages.fill(page) == page.read_text()


# ---- the overview ----


def test_the_overview_marks_the_best_method_and_names_variants(tmp_path):
    made = comparison()
    made["methods"]["semi_offline@long"] = made["methods"]["semi_offline"]
    made["methods"]["gold"] = made["methods"]["mft"] | {
        "metrics": {"rouge": {"mean": 0.4, "low": 0.3, "high": 0.5, "p": 0.2, "by_seed": [0.4]}}
    }
    (tmp_path / "one.json").write_text(json.dumps(made))
    row = {"on": "ads, tiny", "file": "one.json", "metric": "rouge"}
    given = {"methods": ["mft", "gold", "semi_offline"], "rows": [row]}
    text = pages.RENDERERS["overview"](given, tmp_path)
    assert "| ads, tiny | 30.0\\* | **40.0** | 35.0 |" in text
    assert "variant" not in text
    given["rows"] = [row | {"shown": {"semi_offline": "semi_offline@long"}}]
    assert "`semi_offline@long` on ads." in pages.RENDERERS["overview"](given, tmp_path)


# ---- claims ----


def claim(**changes) -> dict:
    given = {"claim": "RL helps", "paper": "Table 1", "on": "ads", "file": "one.json", "metric": "rouge"}
    return given | {"better": "semi_offline", "worse": "mft", "why": "too few steps"} | changes


@pytest.mark.parametrize(
    ("changes", "p", "verdict"),
    [
        ({}, 0.01, "holds"),
        ({}, 0.2, "unclear: too few steps"),
        ({"better": "mft", "worse": "semi_offline"}, 0.01, "does not hold here: too few steps"),
        ({"file": "none.json"}, 0.01, "not tested yet"),
        ({"share": 0.6}, 0.5, "holds"),
        ({"share": 0.5}, 0.01, "does not hold here: too few steps"),
    ],
)
def test_a_verdict_is_what_the_comparison_says(tmp_path, changes, p, verdict):
    made = comparison()
    made["methods"]["mft"]["metrics"]["rouge"]["p"] = p
    (tmp_path / "one.json").write_text(json.dumps(made))
    (tmp_path / "claims.json").write_text(json.dumps({"kind": "claims", "claims": [claim(**changes)]}))
    (tmp_path / "page.md").write_text("<!-- table: claims.json -->\n<!-- end -->\n")
    text = pages.fill(tmp_path / "page.md")
    assert "Claims: 1; " in text
    assert f"{verdict.split(':')[0]}: 1" in text
    [line] = [line for line in text.splitlines() if line.startswith("| RL helps ")]
    assert line.startswith("| RL helps | ads | ")
    assert line.endswith(f" | {verdict} |")
    assert text.index("### Table 1") < text.index(line)


def test_a_claim_about_time_between_two_evaluations_is_not_measurable(tmp_path):
    """Reached at 1.5 seconds, limit 1.25: an evaluation without the reward at 1.4 seconds makes it false."""
    made = comparison()
    for seconds, verdict in (([0, 1.0, 1.5], "not measurable"), ([0, 1.4, 1.5], "does not hold here")):
        curve = [{"reward": reward, "seconds": each} for reward, each in zip((0.2, 0.3, 0.37), seconds)]
        made["methods"]["semi_offline"]["curve"] = curve
        (tmp_path / "one.json").write_text(json.dumps(made))
        assert claims.judge(claim(share=0.5), tmp_path)[1] == verdict


def test_a_difference_that_seeds_make_too_is_unclear(tmp_path):
    made = comparison()
    (tmp_path / "one.json").write_text(json.dumps(made))
    assert claims.judge(claim(), tmp_path)[1] == "holds"
    made["methods"]["mft"]["metrics"]["rouge"]["by_seed"] = [0.25, 0.35]
    (tmp_path / "one.json").write_text(json.dumps(made))
    figures, verdict = claims.judge(claim(), tmp_path)
    assert verdict == "unclear"
    assert re.search(r"; difference 5\.00, two standard errors over seeds \d+\.\d\d$", figures)


@pytest.mark.parametrize(("changes", "part"), [({"worse": "mtf"}, "mft"), ({"better": "mft"}, "semi_offline")])
def test_a_claim_about_what_was_not_compared(tmp_path, changes, part):
    (tmp_path / "one.json").write_text(json.dumps(comparison()))
    with pytest.raises(UserError, match=part):
        claims.judge(claim(**changes), tmp_path)


def test_a_claim_about_two_methods_neither_of_which_is_the_reference(tmp_path):
    made = comparison()
    made["methods"]["gold"] = json.loads(json.dumps(made["methods"]["mft"]))
    made["methods"]["gold"]["metrics"]["rouge"]["mean"] = 0.4
    for p, verdict in ((0.01, "holds"), (0.3, "unclear")):
        made["methods"]["gold"]["p_by_method"] = {"mft": p, "semi_offline": 0.01}
        (tmp_path / "one.json").write_text(json.dumps(made))
        figures, found = claims.judge(claim(better="gold"), tmp_path)
        assert (found, figures.endswith(f"p = {p}")) == (verdict, True)
    with pytest.raises(UserError, match="knows when semi_offline had a reward"):
        claims.judge(claim(better="gold", share=0.5), tmp_path)
    made["metrics"] = ["click_rate", "rouge"]  # the p above would be of another metric
    (tmp_path / "one.json").write_text(json.dumps(made))
    with pytest.raises(UserError, match="tests methods against semi_offline only"):
        claims.judge(claim(better="gold"), tmp_path)


def test_an_overview_has_a_line_of_each_comparison(tmp_path):
    made = comparison()
    made["methods"]["semi_offline@strong"] = json.loads(json.dumps(made["methods"]["semi_offline"]))
    made["methods"]["semi_offline@strong"]["metrics"]["rouge"]["mean"] = 0.4
    made["methods"]["semi_offline@strong"]["p_by_method"] = {"mft": 0.2}
    (tmp_path / "one.json").write_text(json.dumps(made))
    row = {"on": "ads", "file": "one.json", "metric": "rouge"}
    rows = [row, row | {"shown": {"semi_offline": "semi_offline@strong"}}]
    given = {"kind": "overview", "methods": ["mft", "avg", "semi_offline"], "rows": rows}
    lines = pages.RENDERERS["overview"](given, tmp_path).splitlines()
    assert lines[0] == "|  | `mft` | `avg` | `semi_offline` |"
    assert lines[2:4] == ["| ads | 30.0\\* | – | **35.0** |", "| ads | 30.0 | – | **40.0** |"]
    with pytest.raises(UserError, match=r"cannot read the result .*none\.json"):
        pages.RENDERERS["overview"](given | {"rows": [row | {"file": "none.json"}]}, tmp_path)
    (tmp_path / "one.json").write_text("{")
    for kind in ("overview", "claims"):
        with pytest.raises(UserError, match=r"cannot read the result .*one\.json"):
            pages.RENDERERS[kind](given | {"claims": [claim()]}, tmp_path)


def test_a_claim_about_a_run_that_is_missing_is_open(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(comparison() | {"missing": ["brio:0", "mft:1"]}))
    assert claims.judge(claim(worse="brio"), tmp_path) == ("–", "not tested yet")
    assert claims.judge(claim(), tmp_path)[1] == "holds"  # of mft one seed is there
    assert "Not run: brio:0, mft:1" in table.markdown(
        Comparison.from_json(comparison() | {"missing": ["brio:0", "mft:1"]})
    )
