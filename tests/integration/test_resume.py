"""A run that was killed at any moment goes on to the same weights, bit for bit, as one that was never interrupted."""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import build_rows, read_log, run_command, save_model, start_process, train, weights
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from semioffline.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, EVERY = 10, 2
SLOW_REWARD = """
import time
from semioffline.tasks.ads import click_rate

def slow_click_rate(**columns):
    time.sleep(0.05)  # so that there is a moment to kill the run in
    return click_rate(**columns)
"""
Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """kind, output folder, more options -> the arguments of a training run; BART has dropout."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "slow_reward.py").write_text(SLOW_REWARD)
    models = {"bart": save_model(folder / "bart", "bart", dropout=0.1), "llama": save_model(folder / "llama", "llama")}
    settings = {
        "task": "ads", "limit": 24, "eval_limit": 4, "device": "cpu", "report_to": "none", "seed": 3,
        "reward": f"{folder}/slow_reward.py:slow_click_rate", "max_prompt_length": 24, "max_completion_length": 28,
        "max_steps": STEPS, "save_steps": EVERY, "logging_steps": 1, "learning_rate": 0.01, "rl_weight": 1,
        "num_samples": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "disable_tqdm": True,
        "save_total_limit": 10,
    }  # fmt: skip
    flags = [text for name, value in settings.items() for text in (f"--{name}", str(value))]

    def build(kind: str, output: Path, *more: str) -> list[str]:
        return ["train", "semi_offline", "--model", str(models[kind]), "--output_dir", str(output), *flags, *more]

    return build


@pytest.fixture(scope="module")
def finished(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run, made once for each kind of model."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            torch.set_num_threads(1)
            made[kind] = tmp_path_factory.mktemp("whole") / kind
            assert main(command(kind, made[kind])) == 0
        return made[kind]

    return get


def kill_after(steps: int, delay: float, argv: list[str], output: Path) -> int:
    """Start a run and send SIGKILL `delay` seconds after it has printed the log of so many steps; its exit code."""
    process = start_process(run_command, argv, str(output))
    deadline = time.monotonic() + 120
    while not (output.exists() and output.read_text().count("  loss mle ") >= steps):
        assert process.is_alive(), output.read_text()
        assert time.monotonic() < deadline, "the run is too slow to be killed"
        time.sleep(0.005)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*"))


def assert_same_run(folder: Path, whole: Path) -> None:
    ours, theirs = load_file(folder / "model/model.safetensors"), load_file(whole / "model/model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    logs = [[line for line in read_log(run) if "loss" in line] for run in (folder, whole)]
    for log in logs:
        assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    for name in ("loss", "grad_norm", "reward", "loss/mle", "loss/rl", "mask_rate"):
        assert [line[name] for line in logs[0]] == [line[name] for line in logs[1]], name
    assert checkpoints(folder) == checkpoints(whole)
    assert (folder / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("bart", 1), ("llama", 2), ("bart", None)])
def test_a_killed_run_goes_on(kind, seed, command: Command, finished, tmp_path: Path) -> None:
    """Killed at a random moment after the first checkpoint, and once more after going on. Seed None is truly random."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print(f"seed of the moments: {seed}")
    moments = random.Random(seed)
    whole, folder = finished(kind), tmp_path / "run"
    code = kill_after(
        moments.randint(EVERY + 1, STEPS // 2), moments.uniform(0, 0.15), command(kind, folder), tmp_path / "1"
    )
    assert code == -signal.SIGKILL
    assert EVERY in checkpoints(folder)
    assert not (folder / "model").exists()
    again = command(kind, folder, "--resume")
    kill_after(
        moments.randint(1, 3), moments.uniform(0, 0.1), again, tmp_path / "2"
    )  # on a slow machine it may be done
    assert main(command(kind, folder, "--resume")) == 0
    assert_same_run(folder, whole)


def test_a_kill_while_saving_leaves_the_last_complete_checkpoint(command: Command, finished, tmp_path: Path) -> None:
    """What such a kill leaves behind: a staging folder with half a file in it. The line of the log may be torn too."""
    whole, folder = finished("bart"), tmp_path / "run"
    shutil.copytree(whole, folder)
    for number in (6, 8, 10):
        shutil.rmtree(folder / f"checkpoint-{number}")
    for path in ("model", "result.json", "predictions.jsonl"):
        shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line, entry in zip(lines, read_log(folder), strict=True) if entry["step"] <= 6]
    (folder / "metrics.jsonl").write_text("".join(kept))
    staging = folder / "incomplete-checkpoint" / "checkpoint-6"
    staging.mkdir(parents=True)
    shutil.copy(folder / "checkpoint-4" / "config.json", staging)
    data = (folder / "checkpoint-4" / "model.safetensors").read_bytes()
    (staging / "model.safetensors").write_bytes(data[: len(data) // 2])

    assert main(command("bart", folder, "--resume")) == 0
    assert_same_run(folder, whole)
    assert not (folder / "incomplete-checkpoint").exists()
    again = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert again[:4] == lines[:4]  # it went on from step 4: what was logged until then is kept as it was


def test_a_torn_line_of_the_log_does_not_stop_a_resume(command: Command, finished, tmp_path: Path) -> None:
    whole, folder = finished("bart"), tmp_path / "run"
    shutil.copytree(whole, folder)
    for number in (6, 8, 10):
        shutil.rmtree(folder / f"checkpoint-{number}")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    assert main(command("bart", folder, "--resume")) == 0
    assert_same_run(folder, whole)


def test_resume_without_a_checkpoint_starts(command: Command, finished, tmp_path: Path) -> None:
    assert main(command("bart", tmp_path / "new", "--resume")) == 0
    assert_same_run(tmp_path / "new", finished("bart"))


def test_a_finished_run_is_not_trained_again(command: Command, finished, tmp_path: Path) -> None:
    """And its result still says what it cost."""
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    assert main(command("bart", folder, "--resume")) == 0
    assert_same_run(folder, finished("bart"))
    now, before = (json.loads((run / "result.json").read_text()) for run in (folder, finished("bart")))
    assert now["cost_per_input"]["forward_passes"] == 1
    assert (now["seconds"], now["cost_per_input"]) == (before["seconds"], before["cost_per_input"])
    assert read_log(folder) == read_log(finished("bart"))  # no second summary


def cut_off(folder: Path, last: int) -> None:
    """What a run leaves that was killed after this checkpoint."""
    for number in checkpoints(folder):
        if number > last:
            shutil.rmtree(folder / f"checkpoint-{number}")
    for path in ("model", "result.json", "predictions.jsonl"):
        shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()


def without_times(lines: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if not any(w in k for w in ("time", "second"))} for line in lines]


def test_the_log_and_the_cost_of_a_resumed_run_are_those_of_the_whole(command: Command, tmp_path: Path) -> None:
    """Logged every 4 steps and resumed between two of them; `train_loss` is over all steps."""
    logging = ["--logging_steps", "4", "--eval_strategy", "steps", "--eval_steps", "5", "--eval_on_start", "true"]
    assert main(command("bart", tmp_path / "whole", *logging)) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    cut_off(tmp_path / "run", 6)
    assert main(command("bart", tmp_path / "run", "--resume", *logging)) == 0
    logs = [without_times(read_log(tmp_path / name)) for name in ("run", "whole")]
    assert logs[0] == logs[1]
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "whole")]
    assert results[0]["cost_per_input"] == results[1]["cost_per_input"]
    assert results[0]["cost_per_input"]["forward_passes"] == 1


def test_early_stopping_counts_on_after_a_resume(tmp_path: Path) -> None:
    """With a learning rate of 0 no evaluation is better than the first: a run stops after two more."""
    settings = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 9}
    settings |= {"learning_rate": 0.0, "early_stopping_patience": 2, "load_best_model_at_end": True}
    rows = build_rows(8)
    whole = train(tmp_path / "run", dev=rows.select(range(2)), rows=rows, **settings)
    assert whole.state.global_step == 3
    for last in (2, 3):
        for step in range(last + 1, 4):
            shutil.rmtree(tmp_path / f"run/checkpoint-{step}")
        resumed = train(tmp_path / "run", resume=True, dev=rows.select(range(2)), rows=rows, **settings)
        assert resumed.state.global_step == 3


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_that_would_go_on_to_other_weights_is_refused(
    name: str, command: Command, finished, tmp_path: Path, capsys
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    (folder / f"checkpoint-{STEPS}" / name).unlink()
    assert main(command("bart", folder, "--resume")) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"checkpoint-{STEPS} has no {name}" in error
    assert "remove this checkpoint" in error


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json", "checksums.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    name: str, command: Command, finished, tmp_path: Path, caplog
) -> None:
    whole, folder = finished("bart"), tmp_path / "run"
    shutil.copytree(whole, folder)
    cut_off(folder, 8)
    data = (folder / "checkpoint-8" / name).read_bytes()
    (folder / "checkpoint-8" / name).write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    assert main(command("bart", folder, "--resume")) == 0
    assert f"checkpoint-8/{name} is damaged" in caplog.text
    assert f"going on from {folder}/checkpoint-6" in caplog.text
    assert_same_run(folder, whole)


def test_without_an_undamaged_checkpoint_nothing_is_trained(command: Command, finished, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    for path in folder.glob("checkpoint-*/model.safetensors"):
        path.write_bytes(b"")
    assert main(command("bart", folder, "--resume")) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"checkpoint-{STEPS}/model.safetensors is damaged" in error
    assert "there is no other checkpoint" in error
    assert "(save_total_limit=2 keeps the one before the last, too)" in error


def test_a_run_folder_in_use_is_refused(command: Command, tmp_path: Path) -> None:
    """Until the process that trains in it has ended, which may be by SIGKILL. The log has each step once."""
    folder = tmp_path / "run"
    first = start_process(run_command, command("bart", folder, "--max_steps", "100000"), str(tmp_path / "first"))
    while not (folder / "metrics.jsonl").exists():
        assert first.is_alive(), (tmp_path / "first").read_text()
        time.sleep(0.01)
    second = start_process(run_command, command("bart", folder, "--resume"), str(tmp_path / "second"))
    second.join()
    assert second.exitcode == 2
    assert f"is in use by another process ({first.pid})" in (tmp_path / "second").read_text()
    first.kill()
    first.join()
    steps = [line["step"] for line in read_log(folder) if "loss" in line]
    assert steps == list(range(1, len(steps) + 1))
    assert main(command("bart", folder, "--resume", "--max_steps", str(steps[-1] + 1))) == 0


def test_seconds_are_those_of_all_parts(command: Command, finished, tmp_path: Path) -> None:
    """Here the first part is said to have taken 1,000 seconds."""
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    for path in folder.glob("checkpoint-*"):
        if path.name != f"checkpoint-{EVERY}":
            shutil.rmtree(path)
    lines = [line | {"time/train": line["time/train"] + 1000.0} for line in read_log(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(command("bart", folder, "--resume")) == 0
    times = [line["time/train"] for line in read_log(folder)]
    assert times == sorted(times)
    assert 1000 < times[0] < times[-1] < 1200
    assert 1000 < json.loads((folder / "result.json").read_text())["seconds"] < 1200


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--mask_rate", "0.3"], "mask_rate: 0.4 before, 0.3 now"),
        (["--learning_rate", "0.5"], "learning_rate: "),
        (["--seed", "5"], "seed: "),
        (["--lora_r", "2"], "lora_r: None before, 2 now"),
        (["--lr_scheduler_type", "cosine"], "lr_scheduler_type: linear before, cosine now"),
        (["--train_file", "elsewhere.jsonl"], "train_file: "),
    ],
)
def test_another_run_is_not_gone_on_with(flags, told, command: Command, finished, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    kept = (folder / "config.yaml").read_text()
    assert main(command("bart", folder, "--resume", *flags)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "is a run with other settings" in error
    assert told in error
    assert (folder / "config.yaml").read_text() == kept


def test_a_finished_run_may_be_looked_at_in_another_way(command: Command, finished, tmp_path: Path) -> None:
    """Beams are no part of what was trained; a path that says the same in other words is no other path."""
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    argv = command("bart", folder, "--resume", "--num_beams", "2", "--save_total_limit", "9")
    model = Path(argv[argv.index("--model") + 1])
    argv[argv.index("--model") + 1] = str(model.parent / "." / ".." / model.parent.name / model.name)
    assert main(argv) == 0


def test_settings_that_a_kill_has_emptied_do_not_stop_a_resume(command: Command, finished, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished("bart"), folder)
    (folder / "config.yaml").write_text("")
    assert main(command("bart", folder, "--resume", "--logging_steps", "2")) == 0
    assert "mask_rate: 0.4" in (folder / "config.yaml").read_text()


def test_a_folder_that_is_not_empty_is_refused(command: Command, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert main(command("bart", folder)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("semioffline: error:")
    assert "not empty" in error
    assert "--resume" in error
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("kind", "auto"), [("bart", AutoModelForSeq2SeqLM), ("llama", AutoModelForCausalLM)])
def test_checkpoints_load_without_this_library(kind, auto, finished) -> None:
    whole = finished(kind)
    for folder in (whole / f"checkpoint-{STEPS}", whole / "model"):
        model, info = auto.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert AutoTokenizer.from_pretrained(folder).mask_token == "<mask>"
        stored = load_file(folder / "model.safetensors")
        loaded = model.state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in stored.items())


@pytest.mark.parametrize("order", ["random", "group_by_length"])
def test_resume_in_python(order: str, tmp_path: Path) -> None:
    """resume_from_checkpoint=True on a new folder starts; on a run stopped in the middle, here of its second epoch, it
    goes on, AdamW included."""
    settings = {"rows": build_rows(24), "optim": "adamw_torch", "learning_rate": 0.01, "lr_scheduler_type": "linear"}
    settings |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 7}
    settings |= {"train_sampling_strategy": order, "max_completion_length": 16}
    whole = train(tmp_path / "whole", resume=True, **settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    for step in (6, 7):
        shutil.rmtree(tmp_path / "part" / f"checkpoint-{step}", ignore_errors=True)
    resumed = train(tmp_path / "part", resume=True, **settings)
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed).values(), weights(whole).values(), strict=True))
