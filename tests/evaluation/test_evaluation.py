"""Generate, score, confidence intervals, signatures."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.toy import KINDS, build_model, build_rows, build_tokenizer, build_uneven_rows, save_model
from semioffline import Policy
from semioffline.cli import main
from semioffline.data.examples import Examples
from semioffline.evaluation.decode import generate_ids
from semioffline.evaluation.metrics import SURFACE, evaluate, measure, score
from semioffline.evaluation.results import Evaluation, write_predictions
from semioffline.evaluation.statistics import bootstrap_interval, corpus_value, paired_difference, paired_p_value
from semioffline.policy.decoding import Decoding
from semioffline.rewards.registry import load_reward
from semioffline.scoring.reward_set import RewardSet

GREEDY = Decoding(max_new_tokens=8)
BEAM = Decoding(num_beams=3, max_new_tokens=8)


def build_policy(kind: str = "bart") -> Policy:
    return Policy(build_model(kind), build_tokenizer(kind))


def build_examples(policy: Policy, number: int = 9) -> Examples:
    return Examples(build_uneven_rows(number), policy, 24, 28, progress=False)


# ---- intervals ----


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    """95 %: of 200 samples of 60 values, between 90 and 99 % of the intervals hold the true mean."""
    rng = np.random.default_rng(0)
    hits = 0
    for n in range(200):
        low, high = bootstrap_interval(rng.exponential(2.0, size=60).tolist(), resamples=200, seed=n)
        hits += low <= 2.0 <= high
    assert 0.90 <= hits / 200 <= 0.99


def test_the_interval_is_that_of_the_normal_distribution_for_many_values() -> None:
    values = np.random.default_rng(1).normal(5.0, 3.0, size=2000)
    low, high = bootstrap_interval(values.tolist(), resamples=2000)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_the_interval_depends_on_the_seed_only() -> None:
    values = np.random.default_rng(2).random(30).tolist()
    assert bootstrap_interval(values, seed=7) == bootstrap_interval(values, seed=7)
    assert bootstrap_interval(values, seed=7) != bootstrap_interval(values, seed=8)


def test_a_single_or_constant_value_has_no_width() -> None:
    assert bootstrap_interval([0.5]) == (0.5, 0.5)
    assert bootstrap_interval([0.25] * 9) == (0.25, 0.25)


def test_results_hold_mean_interval_number_and_signature() -> None:
    evaluation = Evaluation(["a", "b", "c"], {"m": [0.0, 1.0, math.nan]}, {"m": "m|v1"})
    result = evaluation.result(resamples=100, seed=3)["m"]
    assert result.mean == 0.5  # what a metric leaves out is no zero
    assert 0.0 <= result.low <= result.mean <= result.high <= 1.0
    assert result.signature == "m|v1"
    assert result.inputs == 3
    assert result == evaluation.result(resamples=100, seed=3)["m"]


# ---- decoding ----


@pytest.mark.parametrize("decoding", [GREEDY, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_outputs_do_not_depend_on_the_batch_size(kind: str, decoding: Decoding) -> None:
    """Sources of different lengths are sorted and padded inside; outputs come back in the order of the data."""
    policy = build_policy(kind)
    examples = build_examples(policy)
    one_by_one = policy.tokens.decode(generate_ids(policy, examples, decoding, batch_size=1, progress=False))
    assert len(set(one_by_one)) > 1
    for size in (2, 4, 32):
        assert (
            policy.tokens.decode(generate_ids(policy, examples, decoding, batch_size=size, progress=False))
            == one_by_one
        )
    part = policy.tokens.decode(
        generate_ids(policy, examples, decoding, batch_size=2, progress=False, part=slice(1, None, 2))
    )
    assert part == one_by_one[1::2]


def test_the_model_is_left_as_it_was() -> None:
    policy = build_policy()
    policy.train()
    generate_ids(policy, build_examples(policy, 2), GREEDY, progress=False)
    assert policy.model.training
    assert not policy.meter.counts["inputs"]


def test_evaluation_is_not_booked_as_training_cost() -> None:
    policy = build_policy()
    evaluate(policy, build_examples(policy, 3), ["rouge1"], GREEDY, progress=False)
    assert policy.meter.counts["tokens"] == 0


# ---- scores ----


def test_metrics_see_prompts_references_and_columns() -> None:
    seen: dict[str, Any] = {}

    def look(completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns)
        return [float(len(text)) for text in completions]

    policy = build_policy()
    rows = [example.columns for example in build_examples(policy, 3).examples]
    values = score(["x", "yy", "zzz"], rows, RewardSet([look]), [[1], [2], [3]])
    assert values == {"look": [1.0, 2.0, 3.0]}
    assert seen["prompts"] == [row["prompt"] for row in rows]
    assert seen["references"] == [[row["completion"]] for row in rows]
    assert seen["category"] == [row["category"] for row in rows]


def test_an_evaluation_has_values_and_signatures() -> None:
    policy = build_policy()
    examples = build_examples(policy, 5)
    result = evaluate(policy, examples, ["rouge1", "rougeLsum_stem", "click_rate"], BEAM, progress=False)
    assert set(result.values) == {"rouge1", "rougeLsum_stem", "click_rate", *SURFACE}
    assert all(len(values) == 5 for values in result.values.values())
    assert result.signatures.keys() == result.values.keys()
    assert all(BEAM.signature() in signature for signature in result.signatures.values())
    assert len(set(result.signatures.values())) == len(result.signatures)
    assert result.means()["length"] == pytest.approx(np.mean([len(text.split()) for text in result.predictions]))


def test_predictions_are_written_one_a_line(tmp_path: Path) -> None:
    policy = build_policy()
    examples = build_examples(policy, 4)
    evaluation = evaluate(policy, examples, ["click_rate"], GREEDY, progress=False)
    write_predictions(tmp_path / "predictions.jsonl", evaluation, examples)
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["prediction"] for row in rows] == evaluation.predictions
    assert [row["click_rate"] for row in rows] == evaluation.values["click_rate"]
    assert [row["prompt"] for row in rows] == build_uneven_rows(4)["prompt"][:]
    assert [row["references"] for row in rows] == [[text] for text in build_uneven_rows(4)["completion"]]


def test_the_command_writes_result_and_predictions(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = save_model(tmp_path / "model")
    flags = ["--task", "ads", "--model", str(model), "--device", "cpu", "--limit", "6", "--max_completion_length", "8"]
    for name, size in (("a", "2"), ("b", "6")):
        assert main(["evaluate", *flags, "--output_dir", str(tmp_path / name), "--batch_size", size]) == 0
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in "ab"]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert {"click_rate", "facts_right", "rouge", *SURFACE} == results[0]["metrics"].keys()
    for metric in results[0]["metrics"].values():
        assert metric.keys() == {"mean", "low", "high", "inputs", "signature"}
        assert metric["low"] <= metric["mean"] <= metric["high"]
        assert metric["inputs"] == 6
    lines = [(tmp_path / name / "predictions.jsonl").read_text() for name in "ab"]
    assert lines[0] == lines[1]
    assert len(lines[0].splitlines()) == 6
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {"config.yaml", "versions.json"}
    assert "click_rate" in capsys.readouterr().out


def test_an_interrupted_evaluation_continues(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """With the outputs that are there, also from half a line; with other settings, rows or weights it is refused."""
    model, rows = save_model(tmp_path / "model"), tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in build_uneven_rows(9).to_list()))
    flags = ["evaluate", "--test_file", rows, "--model", model, "--device", "cpu", "--max_completion_length", 8]
    flags += ["--metrics", "rouge1", "--batch_size", 2, "--shard_size", 4]

    def evaluate_into(name: str, *more: object) -> int:
        return main(list(map(str, [*flags, "--output_dir", tmp_path / name, *more])))

    assert evaluate_into("whole") == 0
    whole, folder = (tmp_path / "whole" / "predictions.jsonl").read_text(), tmp_path / "part"
    assert evaluate_into("part") == 0
    shards = sorted((folder / "outputs").iterdir())
    assert [path.name for path in shards] == [f"0000{n}-of-00003.json" for n in range(3)]
    for path in (folder / "predictions.jsonl", folder / "result.json", shards[1]):
        path.unlink()
    shards[1].with_name(shards[1].name + ".part").write_text('{"seconds"')
    before = [path.read_bytes() for path in (shards[0], shards[2])]
    assert evaluate_into("part") == 0
    assert (folder / "predictions.jsonl").read_text() == whole
    assert [path.read_bytes() for path in (shards[0], shards[2])] == before
    assert sorted((folder / "outputs").iterdir()) == shards
    assert evaluate_into("part", "--metrics", "rouge2") == 0  # the same outputs
    assert "rouge2" in json.loads((folder / "result.json").read_text())["metrics"]
    capsys.readouterr()
    assert evaluate_into("part", "--num_beams", 2) == 2
    assert "num_beams: 1 before, 2 now" in capsys.readouterr().err
    build_model(seed=1).save_pretrained(model)
    assert evaluate_into("part") == 2
    assert "model_checksum" in capsys.readouterr().err
    build_model().save_pretrained(model)
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[::-1]))
    assert evaluate_into("part") == 2
    assert "the data has been changed" in capsys.readouterr().err


def test_references_may_be_several() -> None:
    """The ground truth alone, unless the data says more."""
    policy = build_policy()
    rows = build_rows(2).add_column("references", [["meet zorvia", "grab zorvia"], []])
    examples = Examples(rows, policy, 24, 28, progress=False)
    assert examples[0].columns["references"] == ["meet zorvia", "grab zorvia"]
    assert examples[1].columns["references"] == [rows[1]["completion"]]


# ---- metrics over the whole set ----

TEXTS = ["the cat sat on the mat", "a dog ran to the park", "birds sing in the old tree", "it rains"]
WANTED = [["the cat sat on a mat"], ["a dog ran in the park", "the dog ran"], ["birds sing in a tree"], ["it rained"]]


def test_a_corpus_metric_has_its_value_over_the_whole_set() -> None:
    """Its mean is not the mean of sentences, and the interval is that of whole sets drawn from the inputs."""
    import sacrebleu

    policy = build_policy()
    rows = build_rows(4).add_column("references", WANTED)
    examples = Examples(rows, policy, 24, 28, progress=False)
    evaluation = measure(TEXTS, examples, ["corpus_bleu", "bleu"], GREEDY, [[]] * 4)
    streams = [[row[0] for row in WANTED], [row[1] if len(row) > 1 else None for row in WANTED]]
    expected = sacrebleu.corpus_bleu(TEXTS, streams).score / 100
    result = evaluation.result(resamples=200)
    assert result["corpus_bleu"].mean == evaluation.means()["corpus_bleu"] == pytest.approx(expected, abs=1e-12)
    assert result["corpus_bleu"].mean != pytest.approx(result["bleu"].mean, abs=0.01)
    assert result["corpus_bleu"].low < expected < result["corpus_bleu"].high
    assert "level:corpus" in result["corpus_bleu"].signature
    assert result["corpus_bleu"].to_json().keys() == result["bleu"].to_json().keys()
    assert evaluation.values["corpus_bleu"] == evaluation.values["bleu"]  # of each input, the sentence form
    assert evaluation.statistics.keys() == {"corpus_bleu"}


def test_the_interval_of_a_sum_of_counts_is_that_of_the_ratio() -> None:
    """With statistics (right, all) and the score right / all: the interval covers the true share as it says."""
    rng = np.random.default_rng(0)
    hits = 0
    for n in range(150):
        sizes = rng.integers(1, 20, size=50)
        counts = np.stack([rng.binomial(sizes, 0.3), sizes], axis=1)
        low, high = bootstrap_interval(counts.tolist(), 200, n, lambda sums: sums[0] / sums[1])
        hits += low <= 0.3 <= high
    assert 0.88 <= hits / 150 <= 0.99


def test_a_paired_test_of_corpus_scores() -> None:
    metric = load_reward("corpus_bleu")[1]
    good = [row[0] for row in WANTED] * 5
    one, other = (metric.statistics(texts, WANTED * 5) for texts in (good, TEXTS * 5))
    assert corpus_value(one, metric.corpus_score) > corpus_value(other, metric.corpus_score)
    assert paired_p_value(one, other, 300, corpus_score=metric.corpus_score) < 0.05
    assert paired_p_value(other, one, 300, corpus_score=metric.corpus_score) < 0.05
    assert paired_p_value(one, one, 300, corpus_score=metric.corpus_score) == 1.0


def test_paired_tests_see_a_small_difference_and_no_difference() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=100)
    assert paired_p_value(values + 0.1 + rng.normal(0, 0.1, 100), values) < 0.01
    assert paired_p_value(values + rng.normal(0, 0.1, 100), values) > 0.05
    assert paired_p_value(values, values) == 1.0
    assert paired_p_value([math.nan, 1.0], [0.0, math.nan]) == 1.0
    assert paired_p_value([0.5], [0.4]) == 1.0  # one input shows nothing
    assert 0 < paired_p_value(values + 1, values) < 0.001


def test_a_metric_given_twice_is_measured_once() -> None:
    calls: list[int] = []

    def look(completions: list[str], **columns: Any) -> list[float]:
        calls.append(len(completions))
        return [0.0] * len(completions)

    policy = build_policy()
    evaluation = measure(["a", "b"], build_examples(policy, 2), [look, "length", look], GREEDY, [[], []])
    assert evaluation.values.keys() == {"look", *SURFACE}
    assert calls == [2]


def test_the_command_takes_corpus_metrics(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    flags = ["--task", "ads", "--model", str(save_model(tmp_path / "model")), "--device", "cpu", "--limit", "5"]
    flags += ["--max_completion_length", "8", "--metrics", "corpus_bleu", "chrf", "--output_dir", str(tmp_path / "run")]
    assert main(["evaluate", *flags]) == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert {"corpus_bleu", "chrf", *SURFACE} == metrics.keys()
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    assert all("corpus_bleu" in json.loads(line) for line in lines)
    assert "corpus_bleu" in capsys.readouterr().out


def test_a_paired_difference_has_an_interval_that_is_narrower_than_that_of_either_mean():
    rng = np.random.default_rng(0)
    values = rng.random(200)
    others = values - 0.05 + rng.normal(0, 0.02, 200)
    found = paired_difference(values, others)
    assert found.low < 0.05 < found.high
    assert found.mean == pytest.approx(np.mean(values - others))
    low, high = bootstrap_interval(values)
    assert found.high - found.low < (high - low) / 4
    assert found.p == paired_p_value(values, others) < 0.01
    mirrored = paired_difference(others, values)
    assert (mirrored.mean, mirrored.low, mirrored.high) == pytest.approx((-found.mean, -found.high, -found.low))
    metric = load_reward("corpus_bleu")[1]
    statistics = metric.statistics(["a b c d e", "f g h i"], [["a b c d e"], ["x y z w"]])
    worse = metric.statistics(["x x x x x", "f g h i"], [["a b c d e"], ["x y z w"]])
    whole = paired_difference(statistics, worse, 200, corpus_score=metric.corpus_score)
    assert whole.mean == pytest.approx(
        corpus_value(statistics, metric.corpus_score) - corpus_value(worse, metric.corpus_score)
    )
    nothing = paired_difference([math.nan], [1.0])
    assert math.isnan(nothing.mean)
    assert nothing.p == 1.0
