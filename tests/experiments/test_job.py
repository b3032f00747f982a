"""A whole job on tiny models: what it plans, what can be overridden, and that it goes on where it was."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from safetensors.torch import load_file
from tests.integration.toy import build_model, build_rows, build_tokenizer, read_log, save_model

import semioffline
from semioffline.cli import main
from semioffline.data.splits import cut_missing
from semioffline.errors import UserError
from semioffline.evaluation.results import MetricResult
from semioffline.evaluation.statistics import Difference
from semioffline.experiments import job_stages, whole_job
from semioffline.experiments.job_options import JobOptions
from semioffline.experiments.job_plan import Speed, eval_interval, learning_rates, plan_stages, wanted_steps
from semioffline.experiments.job_results import ModelResult
from semioffline.experiments.job_text import better_model, fine_tuning
from semioffline.experiments.static_target import TargetProbe, choose_target

SHORT: dict[str, Any] = {"mft_steps": 2, "rl_steps": 3, "more_mft_steps": 2, "batch_size": 4, "num_samples": 4}
SHORT |= {"num_candidates": 2, "validation_inputs": 4, "test_inputs": 6}


def flags(**settings: Any) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def write_data(folder: Path, rows: int = 40, splits: tuple[str, ...] = ("train",)) -> Path:
    folder.mkdir(parents=True)
    for number, split in enumerate(splits):
        build_rows(rows, seed=number).to_json(folder / f"{split}.jsonl")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("bart")))


def run(model: str, data: Path, out: Path, **settings: Any) -> int:
    given = {"model": model, "data_dir": data, "output_dir": out, "device": "cpu", "reward": "rouge1"}
    return main(["run", *flags(**given | SHORT | settings)])


# ---- the plan ----


def test_a_dry_run_prints_the_plan_and_writes_nothing(model: str, tmp_path: Path, capsys: Any) -> None:
    data = write_data(tmp_path / "data", splits=("train", "validation", "test"))
    assert run(model, data, tmp_path / "out", dry_run=True, mft_steps=7, mft_learning_rate=0.25) == 0
    told = capsys.readouterr().out
    assert "rows      train 40, validation 40, test 40; 6 are tested; other columns: name, category" in told
    assert "1. M-FT: 7 steps of 4 inputs, learning rate 0.25: the model does not know its mask token" in told
    assert "2. semi-offline RL: 3 steps of 4 inputs" in told
    assert "static target chosen by a probe" in told
    assert "on this machine: M-FT" in told
    assert not (tmp_path / "out").exists()


def test_missing_splits_are_cut_from_train_and_announced(model: str, tmp_path: Path, capsys: Any) -> None:
    """The same rows whatever the seed, and no input in two splits."""
    data = write_data(tmp_path / "data")
    for seed in (0, 1):
        assert run(model, data, tmp_path / str(seed), dry_run=True, seed=seed) == 0
        assert "train 28, validation 4 (cut from train), test 8 (cut from train)" in capsys.readouterr().out
    found = cut_missing({"train": build_rows(40)})
    prompts = [set(rows["prompt"]) for rows in found.rows.values()]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 40


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"prompt": "a", "completion": "b"}\n' * 30, "train has 1 different prompts: at least 20 are needed"),
        ('{"prompt": "a"}\n' * 30, "no column 'completion'"),
        ('{"prompt": "a", "completion": ""}\n' * 30, "line 1: the completion is missing or empty"),
        ("", "is empty"),
    ],
)
def test_bad_data_are_told_in_one_line(content: str, part: str, model: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "train.jsonl").write_text(content)
    assert run(model, tmp_path, tmp_path / "out") == 2
    assert part in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"reward": "rogue1"}, "Did you mean 'rouge1'?"),
        ({"settings": '{"rl": {}}'}, "unknown stage in --settings 'rl'"),
        ({"settings": '{"semi_offline": {"topp": 0.9}}'}, "Did you mean 'top_p'?"),
        ({"num_samples": 1}, "--num_samples 1 must be at least 2"),
        ({"num_generations": 8}, "unknown option 'num_generations'"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_done(
    settings: dict[str, Any], part: str, model: str, tmp_path: Path, capsys: Any
) -> None:
    assert run(model, tmp_path / "none", tmp_path / "out", **settings) == 2
    assert part in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_steps_follow_data_and_machine() -> None:
    assert wanted_steps(500, 16) == (100, 100)
    assert wanted_steps(2_000, 16) == (375, 125)
    assert wanted_steps(40_000, 16) == (600, 300)
    rows = {"train": 2_000, "validation": 300, "test": 2_000}
    fast, slow = Speed(0.01, 0.02, 0.001), Speed(1.0, 2.0, 0.05)
    mft, rl, tested, validated = plan_stages(JobOptions(), (1e-3, 5e-5), rows, fast, needs_mft=True)
    assert mft is not None
    assert (mft.steps, rl.steps, tested, validated) == (375, 125, 1000, 200)
    assert (mft.learning_rate, rl.learning_rate, mft.eval_steps, rl.eval_steps) == (1e-3, 5e-5, 75, 25)
    mft, rl, tested, validated = plan_stages(JobOptions(minutes=15), (1e-3, 5e-5), rows, slow, needs_mft=True)
    assert mft is not None
    assert 20 <= rl.steps < 125
    assert 20 <= mft.steps < 375
    assert (tested, validated) == (1000, 200)
    assert mft.steps % 5 == rl.steps % 5 == 0
    slower = Speed(1.0, 2.0, 0.2)
    assert plan_stages(JobOptions(minutes=20), (1e-3, 5e-5), rows, slower, needs_mft=True)[2:] == (500, 66)
    costly = Speed(1.0, 2.0, 0.05, candidates=0.5)
    fewer, more = (
        plan_stages(JobOptions(minutes=15, static_target=target), (1e-3, 5e-5), rows, costly, needs_mft=True)[1].steps
        for target in ("auto", "ground_truth")
    )
    assert 20 <= fewer < more == rl.steps
    given = JobOptions(rl_steps=30, mft_steps=0, minutes=1)
    assert plan_stages(given, (1e-3, 5e-5), rows, slow, needs_mft=False)[:2][0] is None
    assert plan_stages(given, (1e-3, 5e-5), rows, slow, needs_mft=False)[1].steps == 30
    assert [eval_interval(steps) for steps in (1, 7, 30, 100)] == [1, 7, 6, 20]


def test_learning_rates_follow_the_model() -> None:
    assert learning_rates(135_000_000, is_t5=False, has_adapter=False) == (2e-4, 1e-5)
    assert learning_rates(77_000_000, is_t5=True, has_adapter=False) == (1e-3, pytest.approx(1.5e-4))
    assert learning_rates(400_000_000, False, False)[0] < 2e-4 < learning_rates(135_000_000, False, True)[0]
    assert learning_rates(1, False, False)[0] == 2e-3


# ---- the static target ----


def test_the_ground_truth_is_masked_where_samples_can_be_better_than_it() -> None:
    better, no_better = TargetProbe(differ=0.9, gain=0.2), TargetProbe(differ=0.9, gain=-0.3)
    assert choose_target(better, better).target == "ground_truth"
    assert choose_target(no_better, better).target == "worst"
    assert choose_target(no_better, no_better).target == "ground_truth"
    assert choose_target(TargetProbe(differ=0.1, gain=0.2), better).target == "worst"
    assert "the best one is -0.3 from the text itself" in choose_target(no_better, better).reason


def test_the_probe_tells_text_overlap_from_other_rewards(model: str, tmp_path: Path) -> None:
    """A reference has the highest overlap with itself; a longer text is always possible."""
    rows = {"train": build_rows(24), "validation": build_rows(4, 1), "test": build_rows(4, 2)}

    def letters(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    for reward, target in (("rouge1", "worst"), (letters, "ground_truth")):
        out = tmp_path / target
        result = semioffline.run(model, rows, reward, out, device="cpu", **SHORT)
        assert result is not None
        choice = json.loads((out / "static_target.json").read_text())
        assert choice["target"] == target
        assert (choice["ground_truth"]["gain"] > 0) is (target == "ground_truth")
        assert (out / "candidates").exists() is (target == "worst")


def test_a_model_that_is_better_than_the_result_is_named() -> None:
    def model(mean: float, low: float = 0.0, high: float = 0.0) -> ModelResult:
        metrics = {"reward": MetricResult(mean, mean, mean, 9, "")}
        difference = Difference((low + high) / 2, low, high, 0.5) if low < high else None
        return ModelResult(label="", folder="", metrics=metrics, seconds=1.0, difference=difference)

    models = {"mft": model(0.4, 0.05, 0.15), "more_mft": model(0.55, -0.1, 0.01), "semi_offline": model(0.5)}
    assert better_model(models) is None  # it may be chance
    assert better_model(models | {"more_mft": model(0.6, -0.15, -0.05)}) == "more_mft"


# ---- the whole job ----


def test_what_the_command_leaves(model: str, tmp_path: Path, capsys: Any) -> None:
    data = write_data(tmp_path / "data", splits=("train", "validation", "test"))
    out = tmp_path / "out"
    assert run(model, data, out) == 0
    told = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert list(result["models"]) == ["initial", "mft", "more_mft", "semi_offline"]
    assert result["sentence"] in told
    assert result["sentence"].endswith("over fine-tuning for the same time")
    assert "semioffline run --model" in result["about"]["command"]
    rewards = {}
    for name, one in result["models"].items():
        lines = [json.loads(line) for line in (out / name / "predictions.jsonl").read_text().splitlines()]
        assert len(lines) == 6
        rewards[name] = sum(line["reward"] for line in lines) / 6
        assert one["metrics"]["reward"]["mean"] == pytest.approx(rewards[name])
        assert {"rouge1", "rouge2", "length", "repetition"} <= one["metrics"].keys()
    for name in ("initial", "mft", "more_mft"):
        difference = result["models"][name]["difference"]
        assert difference["mean"] == pytest.approx(rewards["semi_offline"] - rewards[name])
        assert difference["low"] <= difference["mean"] <= difference["high"]
    for name, start in (("mft", "initial"), ("semi_offline", "mft"), ("more_mft", "mft")):
        assert (out / name / "before.jsonl").read_bytes() == (out / start / "predictions.jsonl").read_bytes()
        assert {"config.yaml", "metrics.jsonl", "model", "trained.json"} <= {p.name for p in (out / name).iterdir()}
        assert not list((out / name).glob("checkpoint-*"))
    steps = {name: read_log(out / name)[-1]["step"] for name in ("mft", "semi_offline", "more_mft")}
    assert steps == {"mft": 2, "semi_offline": 3, "more_mft": 2}
    assert result["models"]["semi_offline"]["cost_per_input"]["forward_passes"] == 1
    assert run(model, data, out) == 0  # again: nothing is left to do
    assert "steps" not in capsys.readouterr().err
    assert json.loads((out / "result.json").read_text())["models"] == result["models"]
    assert run(model, data, out, rl_steps=9) == 2
    assert "rl_steps: 3 before, 9 now" in capsys.readouterr().err
    (data / "test.jsonl").write_text((data / "train.jsonl").read_text())
    assert run(model, data, out) == 2
    assert "the data were changed" in capsys.readouterr().err


def test_a_stopped_run_says_where_it_goes_on(model: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Also where no folder was named."""
    data = write_data(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    given = SHORT | {"more_mft_steps": 0, "reward": "rouge1", "model": model, "data_dir": data, "device": "cpu"}
    with monkeypatch.context() as patched:
        patched.setattr(whole_job, "choose_static_target", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["run", *flags(**given)]) == 130
    out, err = capsys.readouterr()
    [folder] = Path("runs").iterdir()
    assert f"to continue an interrupted run, repeat the command with --output_dir {folder}" in out
    assert err.splitlines()[-1].endswith(f"stopped; to continue, repeat the command with --output_dir {folder}")
    before = (folder / "mft" / "trained.json").stat().st_mtime_ns
    assert main(["run", *flags(**given, output_dir=folder)]) == 0
    assert (folder / "mft" / "trained.json").stat().st_mtime_ns == before
    assert (folder / "result.json").exists()


def test_more_m_ft_takes_as_long_as_rl_with_its_static_targets(model: str, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    given = {name: value for name, value in SHORT.items() if name != "more_mft_steps"} | {"reward": "rouge1"}
    command = ["run", *flags(model=model, data_dir=data, output_dir=out, device="cpu", **given)]
    assert main(command) == 0
    counted = json.loads((out / "steps.json").read_text())
    wanted = (3 * counted["rl_step"] + counted["static_targets"]) / counted["mft_step"]
    assert counted["static_targets"] > 0
    assert counted["steps"] == max(1, round(wanted))
    made = json.loads((out / "more_mft" / "trained.json").read_text())["steps"]
    assert made == -(-counted["steps"] // 5) * 5
    for name in ("result.json", "more_mft/trained.json", "more_mft/tested.json"):  # killed before: counted once
        (out / name).unlink()
    assert main(command) == 0
    assert json.loads((out / "steps.json").read_text()) == counted
    assert json.loads((out / "more_mft" / "trained.json").read_text())["steps"] == made


@pytest.mark.parametrize(("before", "best", "kept"), [(0.5, 0.4, True), (0.5, 0.5, False), (0.5, None, False)])
def test_the_start_is_kept_where_no_step_was_better(before: float, best: float | None, kept: bool) -> None:
    logs = [{"step": 0, "eval_reward": before}, {"step": 2, "eval_reward": best}]
    state = SimpleNamespace(best_metric=best, log_history=logs)
    trainer: Any = SimpleNamespace(state=state, args=SimpleNamespace(metric_for_best_model="eval_reward"))
    assert job_stages._start_was_best(trainer) is kept


def test_a_stage_that_helps_nothing_leaves_the_weights_of_its_start(
    model: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    monkeypatch.setattr(job_stages, "_start_was_best", lambda trainer: trainer.args.load_best_model_at_end)
    assert run(model, data, out) == 0
    start, *after = [
        load_file(out / name / "model" / "model.safetensors") for name in ("mft", "semi_offline", "more_mft")
    ]
    assert all(weights[name].equal(start[name]) for weights in after for name in start)
    assert capsys.readouterr().out.count("that is kept") == 2


def test_the_sentence_says_when_fine_tuning_took_another_time() -> None:
    assert fine_tuning(240.0, 290.0) == fine_tuning(2.0, 6.0) == "fine-tuning for the same time"
    assert fine_tuning(248.0, 408.0) == "fine-tuning for 7 min (RL: 4 min)"
    assert fine_tuning(40.0, 10.0) == "fine-tuning for 10 s (RL: 40 s)"


def test_stages_can_be_left_out_and_set(model: str, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    own = json.dumps({"semi_offline": {"mask_unit": "word", "top_p": 0.9}})
    assert run(model, data, out, mft_steps=0, more_mft_steps=0, static_target="best", settings=own, rl_weight=2) == 0
    result = json.loads((out / "result.json").read_text())
    assert list(result["models"]) == ["initial", "semi_offline"]
    assert result["sentence"].endswith("over the initial checkpoint")
    config = (out / "semi_offline" / "config.yaml").read_text()
    for line in ("mask_unit: word", "top_p: 0.9", "static_target: best", "rl_weight: 2.0", "rl_ratio: null"):
        assert line in config


def test_a_model_that_knows_its_mask_token_is_not_fine_tuned(tmp_path: Path) -> None:
    """Told from its predictions: the demo's model, before and after M-FT."""
    from tests.integration.toy import train

    from semioffline.data.examples import Examples
    from semioffline.policy.policy import Policy
    from semioffline.tasks import ads
    from semioffline.training.mask_token import check_mask_token

    policy = Policy(ads.build_model(0), ads.build_tokenizer())
    rows = ads.build({"train": 600, "test": 32})
    examples = Examples(rows["test"], policy, 32, 32)
    assert not check_mask_token(policy, examples).knows
    schedule = {"max_steps": 120, "per_device_train_batch_size": 32, "learning_rate": 2e-3, "optim": "adamw_torch"}
    train(tmp_path / "ft", method="ft", model=policy, rows=rows["train"], logging_steps=50, **schedule)
    found = check_mask_token(policy, examples)
    assert not found.knows, found
    train(tmp_path / "mft", method="mft", model=policy, rows=rows["train"], logging_steps=50, **schedule)
    found = check_mask_token(policy, examples)
    assert found.knows, found


@pytest.mark.parametrize("as_object", [False, True])
def test_a_decoder_only_model_with_a_chat_template_and_lora(as_object: bool, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("peft")
    tokenizer = build_tokenizer("llama")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} : {{ m.content }} | {% endfor %}"
    seen: list[str] = []

    def look(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.extend(prompts)
        return [float(len(text)) for text in completions]

    given: dict[str, Any] = {"lora_r": 2, "prompt_form": "auto", "seed": 1, **SHORT}
    if as_object:
        given |= {"model": build_model("llama"), "processing_class": tokenizer}
    else:
        build_model("llama").save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        given["model"] = str(tmp_path / "model")
    rows = build_rows(40).select_columns(["prompt", "completion"])
    result = semioffline.run(data=rows, reward=look, output_dir=tmp_path / "out", device="cpu", **given)
    assert result is not None
    assert "chat: the model was trained on conversations" in capsys.readouterr().out
    assert all(prompt.startswith("user : name") for prompt in seen)
    for name in ("mft", "semi_offline", "more_mft"):
        assert (tmp_path / "out" / name / "model" / "adapter_config.json").exists()
    assert result.models["semi_offline"].metrics["reward"].inputs == 6


# ---- from Python ----


def test_rows_in_memory_are_checked(model: str, tmp_path: Path) -> None:
    rows = build_rows(30)
    for data, part in (
        ({"dev": rows}, "data has no train split: it has validation"),
        ({"train": rows, "eval": rows}, "unknown split in data 'eval'"),
        (rows.rename_column("prompt", "text"), "the train rows: the data has no column 'prompt'"),
        ([{"prompt": "a"}], "no column 'completion'"),
        (7, "not int"),
    ):
        with pytest.raises(UserError, match=part.replace("(", r"\(")):
            semioffline.run(model, data, "rouge1", tmp_path / "out", device="cpu")
    with pytest.raises(UserError, match="no reward given"):
        semioffline.run(model, rows, output_dir=tmp_path / "out", device="cpu")


def test_python_leaves_what_the_command_leaves(model: str, tmp_path: Path, capsys: Any) -> None:
    data, out = write_data(tmp_path / "data"), {name: tmp_path / name for name in ("command", "python")}
    assert run(model, data, out["command"], mft_steps=0, more_mft_steps=0, static_target="ground_truth") == 0
    own = SHORT | {"mft_steps": 0, "more_mft_steps": 0, "static_target": "ground_truth"}
    capsys.readouterr()
    result = semioffline.run(model, str(data), "rouge1", out["python"], device="cpu", **own)
    told = capsys.readouterr().out
    assert result is not None
    assert told.strip().endswith(f"Report: {out['python'] / 'report.html'}")
    assert "measur" not in told  # what is timed for the plan has no lines of its own
    assert told.count("\nsemi-offline RL: 3 steps") == 1
    assert "method   " not in told  # what is trained was said in the plan
    files = {n: {str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} for n, f in out.items()}
    assert files["python"] == files["command"]
    texts = {n: json.loads((f / "result.json").read_text())["models"] for n, f in out.items()}
    for one in (one for models in texts.values() for one in models.values()):
        del one["seconds"]
    assert texts["python"] == texts["command"]


def test_several_rewards_are_weighted_as_in_training(model: str, tmp_path: Path) -> None:
    rows = {"train": build_rows(24), "validation": build_rows(4, 1), "test": build_rows(6, 2)}
    given = SHORT | {"mft_steps": 0, "more_mft_steps": 0, "reward_weights": [2.0, 1.0], "static_target": "ground_truth"}
    result = semioffline.run(model, rows, ["rouge1", "length_penalty"], tmp_path / "out", device="cpu", **given)
    assert result is not None
    means = {name: one.mean for name, one in result.models["semi_offline"].metrics.items()}
    assert means["reward"] == pytest.approx(2 * means["rouge1"] + means["length_penalty"])
    assert result.reward == "rouge1 + length_penalty"
    assert Dataset.from_json(str(tmp_path / "out" / "semi_offline" / "predictions.jsonl")).num_rows == 6
