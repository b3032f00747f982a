"""Command lines that people get wrong: one line on stderr that helps, exit code 2, and no traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.toy import build_rows, save_model

import semioffline
from campaign.conftest import Tally
from campaign.processes import set_signals_as_a_shell_does
from semioffline.cli import main

TRAIN = "--model model --train_file good.jsonl --output_dir OUT --reward rewards.py:ok --device cpu --max_steps 1 "
TRAIN += "--num_samples 2 --report_to none --disable_tqdm true"
DATA = "--model model --data_dir data --device cpu --output_dir OUT"
COMPARE = "compare --task ads --device cpu --output_dir OUT --limit 4 --start_steps 1 --methods ft --budget_steps 1"
COMPARE += " --reward click_rate"
JOB = "run --model model --train_file many.jsonl --output_dir OUT --device cpu --reward rewards.py:ok --dry_run"
REWARDS = """
def ok(completions, **columns):
    return [1.0] * len(completions)

def huge(completions, **columns):
    return [1e308] * len(completions)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, rewards, and with files and folders that are none of these."""
    folder = tmp_path_factory.mktemp("inputs")
    save_model(folder / "model")
    rows = "".join(json.dumps(row) + "\n" for row in build_rows(6).to_list())
    (folder / "data").mkdir()
    for place in ("good.jsonl", "data/train.jsonl", "data/validation.jsonl", "data/test.jsonl"):
        (folder / place).write_text(rows, encoding="utf-8")
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    (folder / "empty").mkdir()
    many = "".join(json.dumps(row) + "\n" for row in build_rows(40).to_list())
    (folder / "many.jsonl").write_text(many, encoding="utf-8")
    (folder / "empty.py").write_text("", encoding="utf-8")
    (folder / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (folder / "leaving.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    (folder / "file").write_text("x", encoding="utf-8")
    (folder / "binary.jsonl").write_bytes(bytes(range(256)))
    (folder / "half.jsonl.gz").write_bytes(b"\x1f\x8b")
    (folder / "half.parquet").write_bytes(b"PAR1x")
    (folder / "loop").symlink_to("loop")
    (folder / "list.yaml").write_text("mask_rate: [0.1, 0.2]\n", encoding="utf-8")
    (folder / "tab.yaml").write_text("\tmask_rate: 1\n", encoding="utf-8")
    (folder / "code.yaml").write_text('x: !!python/object/apply:os.system ["touch owned"]\n', encoding="utf-8")
    for name, change in (("cut", {"model.safetensors": b"x"}), ("no-json", {"config.json": b"{"})):
        shutil.copytree(folder / "model", folder / name)
        for part, content in change.items():
            (folder / name / part).write_bytes(content)
    for name, content in (("half", "{"), ("other", '{"a": 1}')):
        (folder / name / "runs/ft-seed0").mkdir(parents=True)
        (folder / name / "runs/ft-seed0/result.json").write_text(content, encoding="utf-8")
        (folder / name / "comparison.json").write_text("[" if name == "half" else "[]", encoding="utf-8")
    return folder


LINES: list[tuple[str, str]] = [
    # (command, what the line must say)
    ("train", "no method given"),
    ("train +", "unknown method ''"),
    ("train ../x", "unknown method '../x'"),
    ("train [/b]", "unknown method '[/b]'"),
    ("train mft --seed", "--seed"),
    ("train mft --seed 1 2", "'2' is not an option"),
    (f"train semi_offline {TRAIN} stray", "'stray' is not an option"),
    (f"train semi_offline {TRAIN} --config", "--config needs the name or the path"),
    (f"train semi_offline {TRAIN} --config a --config b", "--config is given twice"),
    (f"train semi_offline {TRAIN} --config empty", "cannot read the recipe empty: Is a directory"),
    (f"train semi_offline {TRAIN} --config loop", "cannot read the recipe loop: Too many levels"),
    (f"train semi_offline {TRAIN} --config list.yaml", "mask_rate in the recipe must be one value"),
    (f"train semi_offline {TRAIN} --config tab.yaml", "tab.yaml is not YAML"),
    (f"train semi_offline {TRAIN} --config code.yaml", "code.yaml is not YAML"),
    (f"train semi_offline {TRAIN} --resume_from_checkpoint x", "use --resume"),
    (f"train semi_offline {TRAIN} --optim galore_adamw", "optim='galore_adamw'"),
    (f"train semi_offline {TRAIN} --optim_args x", "optim="),
    (f"train semi_offline {TRAIN} --neftune_noise_alpha 5", "neftune_noise_alpha"),
    (f"train semi_offline {TRAIN} --gradient_checkpointing_kwargs " + '{"x":1}', "gradient_checkpointing_kwargs 'x'"),
    (f"train semi_offline {TRAIN} --eval_strategy steps", "eval_strategy='steps' needs"),
    (f"train semi_offline {TRAIN} --logging_steps 1.5", "logging_steps"),
    (f"train semi_offline {TRAIN} --load_best_model_at_end", "load_best_model_at_end needs evaluations"),
    (f"train semi_offline {TRAIN.replace('rewards.py:ok', 'rewards.py:huge')}", "'huge' returned 1e+308"),
    *[
        (f"train semi_offline {TRAIN.replace('good.jsonl', name)}", name)
        for name in ("binary.jsonl", "half.jsonl.gz", "half.parquet", "empty", "loop", "/dev/null", "rewards.py")
    ],
    (f"train semi_offline {TRAIN.replace('good.jsonl', 'https://x.y/z.jsonl')}", "https://x.y/z.jsonl"),
    *[(f"evaluate {DATA.replace('--model model', f'--model {name}')}", name) for name in ("cut", "no-json", "empty")],
    *[(f"evaluate {DATA.replace('--model model', f'--model {name}')}", name) for name in ("file", "loop", "/dev/null")],
    (f"evaluate {DATA.replace('--model model', '--model model/config.json')}", "model/config.json"),
    (f"evaluate {DATA.replace('--model model', '--model https://a.b/c')}", "https://a.b/c"),
    (f"evaluate {DATA} --split ../data/test", "../data/test"),
    (f"evaluate {DATA} --metrics os:system", "'system'"),
    (f"evaluate {DATA} --metrics rewards.py:", "rewards.py"),
    (f"evaluate {DATA} --metrics :x", "':x'"),
    (f"evaluate {DATA} --device cuda:", "--device cuda:"),
    (f"evaluate {DATA} --device cpu:3", "--device cpu:3"),
    (f"evaluate {DATA} --prompt_template {{0}}", "prompt_template '0'"),
    (f"evaluate {DATA.replace('OUT', 'file')}", "--output_dir file is a file"),
    (f"evaluate {DATA.replace('OUT', 'file/x')}", "cannot write in --output_dir file/x: Not a directory"),
    (f"evaluate {DATA.replace('OUT', '/proc/x')}", "cannot write in --output_dir /proc/x"),
    (f"evaluate {DATA.replace('OUT', 'loop/x')}", "cannot write in --output_dir loop/x: Too many levels"),
    (f"evaluate {DATA.replace('OUT', 'data')}", "--output_dir data is not empty"),
    (f"evaluate {DATA.replace('OUT', 's3://bucket')}", "--output_dir 's3://bucket' must be a file or folder"),
    (f"candidates {DATA} --reward rewards.py:ok --num_candidates 3 --num_beam_groups 2", "num_beam_groups=2"),
    (f"{COMPARE} --settings {{", "--settings must be JSON"),
    (f"{COMPARE} --settings " + "[" * 9000, "--settings must be JSON"),
    (f"{COMPARE} --settings " + '{"ft":{},"ft":{}}', "--settings must be JSON: the key 'ft' occurs twice"),
    (f"{COMPARE} --settings " + '{"ft":{"learning_rate":null}}', "learning_rate=None of ft must be a finite number"),
    (f"{COMPARE} --settings " + '{"ft":{"label_smoothing_factor":[1]}}', "label_smoothing_factor=[1] of ft must be"),
    (f"{COMPARE} --settings " + '{"ft":{"seeds":[4294967296]}}', "the seeds of ft"),
    (f"{COMPARE} --settings " + '{"ft":{"steps":1e999}}', "the steps of ft"),
    (f"{COMPARE} --only nope", "unknown run in --only 'nope'"),
    (f"{COMPARE} --beside a=half", "half/comparison.json is not JSON"),
    (f"{COMPARE} --beside a=other", "other/comparison.json must hold a JSON object"),
    (f"{COMPARE.replace('OUT', 'half')} --only table", "half/runs/ft-seed0/result.json cannot be read"),
    (f"{COMPARE.replace('OUT', 'other')} --only table", "other/runs/ft-seed0/result.json cannot be read"),
    (f"{COMPARE.replace('--output_dir OUT', '--output_dir=')}", "output_dir='' must not be empty"),
    (f"{COMPARE} --only", "--only: expected one argument"),
    (f"{COMPARE} --methods ft ft", "--methods has ft twice"),
    (f"{COMPARE} --methods ft@a mft ft@a", "--methods has ft@a twice"),
    (f"{COMPARE} --settings " + '{"ft":{"learning_rate":"1"}}', "learning_rate='1' of ft must be a finite number"),
    (f"{COMPARE} --settings " + '{"ft":{"learning_rate":true}}', "learning_rate=True of ft must be a finite number"),
    (f"{COMPARE} --settings " + '{"ft":{"weight_decay":-1}}', "weight_decay=-1 of ft must be at least 0"),
    (f"{COMPARE} --settings " + '{"ft":{"learning_rate":NaN}}', "learning_rate=nan of ft must be a finite number"),
    (f"{COMPARE} --settings " + '{"start":{"max_grad_norm":-1}}', "max_grad_norm=-1 of start must be at least 0"),
    (f"{JOB} --max_completion_length 99999", "max_completion_length=99999 exceed the model's 64 positions"),
    (f"{JOB} --max_prompt_length 99999", "max_prompt_length=99999"),
    (f"{JOB} --settings " + '{"mft":{"learning_rate":"x"}}', "learning_rate='x' of mft must be a finite number"),
    (f"{JOB} --settings " + '{"mft":{"learning_rate":null}}', "learning_rate=None of mft must be a finite number"),
    (f"{JOB} --settings " + '{"more_mft":{"learning_rate":1e999}}', "learning_rate=inf of more_mft must be a finite"),
    (f"{JOB} --settings " + '{"semi_offline":{"num_samples":4.0}}', "num_samples=4.0 of semi_offline must be a whole"),
    (f"{JOB} --settings " + '{"semi_offline":{"num_samples":true}}', "num_samples=True of semi_offline must be"),
    (f"{JOB} --settings " + '{"mft":{"output_dir":"x"}}', "output_dir of mft must not be given"),
    (f"{JOB} --settings " + '{"mft":{"max_steps":3}}', "max_steps of mft must not be given: use --mft_steps"),
    (f"{JOB} --settings " + '{"nope":{}}', "unknown stage in --settings 'nope'"),
    (f"{JOB} --reward rewards.py:nope", "unknown function in rewards.py 'nope'"),
    (f"{JOB} --reward empty.py:f", "unknown function in empty.py 'f'. There is none."),
    (f"{JOB} --prompt_form chat", "an encoder-decoder model reads one text"),
    (f"{JOB} --columns prompt=nope", "unknown column 'nope'"),
    (
        f"candidates {DATA} --reward rewards.py:ok --strategy sampling --search_beams 4",
        "--search_beams 4 has no effect",
    ),
    (
        f"candidates {DATA} --reward rewards.py:ok --strategy sampling --num_beam_groups 4",
        "--num_beam_groups 4 has no effect",
    ),
    (
        f"candidates {DATA} --reward rewards.py:ok --strategy beam --num_beam_groups 2",
        "--num_beam_groups 2 has no effect",
    ),
    (
        f"candidates {DATA} --reward rewards.py:ok --num_candidates 1",
        "--num_candidates 1 must be at least 2 for --strategy diverse_beam",
    ),
    (f"evaluate {DATA} --against https://a.b/c", "--against ['https://a.b/c'] must be a file or folder"),
    (f"evaluate {DATA} --against empty", "--against empty must be a run folder with predictions.jsonl, or a model"),
    (f"evaluate {DATA} --columns prompt=prompt prompt=completion", "column 'prompt' is mapped twice"),
    (f"evaluate {DATA} --columns =", "cannot read column mapping '='"),
    (f"evaluate {DATA} --prompt_template {{prompt!r}}", "without a format or conversion"),
    (f"evaluate {DATA} --prompt_template plain", "contains no column"),
    (f"evaluate {DATA} --split Test", "Test"),
    (f"evaluate {DATA} --metrics broken.py:f", "cannot import broken.py: SyntaxError"),
    (f"evaluate {DATA} --metrics leaving.py:f", "cannot import leaving.py: SystemExit"),
    (f"evaluate {DATA} --metrics rouge1,rouge2", "unknown reward 'rouge1,rouge2'"),
    (f"train semi_offline {TRAIN} --load_best_model_at_end --save_strategy no", "load_best_model_at_end needs"),
    (f"train semi_offline {TRAIN} --adam_epsilon 0", "adam_epsilon=0.0 must be above 0"),
    (f"train semi_offline {TRAIN} --accelerator_config nope.json", "accelerator_config='nope.json'"),
    (f"train semi_offline {TRAIN} --deepspeed nope.json", "deepspeed='nope.json'"),
    (f"train semi_offline {TRAIN} --fsdp nope", "fsdp"),
    (f"train semi_offline {TRAIN} --", "'--' is not an option"),
    (f"train semi_offline {TRAIN} ---seed 1", "'---seed' is not an option"),
    ("env --x", "unknown option 'x'. There is none."),
    ("recipes x", "takes no options"),
    ("report https://x.y/z", "https://x.y/z must be a folder of this machine"),
    ("rate s3://x/y", "s3://x/y must be a folder of this machine"),
    ("report data --output_file data", "--output_file data is a folder"),
    ("rate data --protocol nope", "--protocol 'nope' must be one of"),
    ("rate --read nope.json", "there is no key.json"),
    ("bench --models nope", "unknown model 'nope'"),
    ("bench --models no/such", "no/such"),
    ("bench --small --steps 0", "--steps 0 must be at least 1"),
    ("bench --small --window 9", "--window 9 must be at most --steps 6"),
    ("bench --small --optim nope", "optim='nope'"),
    ("bench --small --reward nope", "unknown reward 'nope'"),
    ("demo --output_dir file", "--output_dir file is a file"),
]


@pytest.mark.campaign
@pytest.mark.parametrize(("line", "part"), LINES, ids=lambda value: value[:70])
def test_a_wrong_command_line_is_told_in_one_line(
    line: str,
    part: str,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tally: Tally,
) -> None:
    monkeypatch.chdir(inputs)
    code = main(line.replace("OUT", str(tmp_path / "out")).split())
    err = capsys.readouterr().err
    told = [text for text in err.splitlines() if text.startswith("semioffline: error: ")]
    good = code == 2 and len(told) == 1 and part in told[0] and "Traceback" not in err
    tally("wrong command lines", "handled" if good else "lost")
    assert good, (code, err[-1000:])
    assert not (inputs / "owned").exists()


def start(words: list[str], folder: Path, **kwargs: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(Path(semioffline.__file__).parents[1])} | kwargs.pop("variables", {})
    command = [sys.executable, "-m", "semioffline", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
    return subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=set_signals_as_a_shell_does, **pipes)


@pytest.mark.campaign
def test_a_reader_that_goes_away_ends_a_command_quietly(inputs: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(["train", "gold", "--help-all"], inputs, stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=120)[1] == b""
    assert process.returncode == 141


@pytest.mark.campaign
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line(inputs: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start(["env"], inputs, stdout=full)
        err = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 2
    assert err == "semioffline: error: cannot read or write <stdout>: No space left on device\n"


@pytest.mark.campaign
@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}],
    ids=["LC_ALL=C", "ascii", "no UTF-8 at all"],
)
def test_a_terminal_without_utf_8_shows_everything(variables: dict[str, str], inputs: Path, tmp_path: Path) -> None:
    words = f"evaluate {DATA.replace('OUT', str(tmp_path / 'out'))} --metrics rouge1".split()
    process = start(words, inputs, variables=variables)
    out, err = (text.decode() for text in process.communicate(timeout=120))
    assert process.returncode == 0, err
    assert "95 % interval" in out
    process = start(["train", "größe–漢"], inputs, variables=variables)
    err = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 2
    assert len(err.splitlines()) == 1


@pytest.mark.campaign
def test_ctrl_c_ends_training_with_one_line_and_exit_code_130(inputs: Path, tmp_path: Path) -> None:
    words = TRAIN.replace("OUT", str(tmp_path / "out")).replace("--max_steps 1", "--max_steps 100000").split()
    process = start(["train", "semi_offline", *words, "--logging_steps", "1"], inputs)
    log = tmp_path / "out" / "metrics.jsonl"
    until = time.monotonic() + 120
    while not log.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert (
        err.splitlines()[-1]
        == "semioffline: stopped; to continue from the last checkpoint, repeat the command with --resume"
    )
    assert "Traceback" not in err


SURROUNDINGS: dict[str, str] = {
    # what a shell does around a command, which is "$@"
    "no HOME": 'unset HOME; "$@"',
    "a HOME that is not there": 'HOME=/nonexistent "$@"',
    "an empty environment": 'env -i PYTHONPATH="$PYTHONPATH" "$@"',
    "a dumb terminal of one column": 'TERM=dumb COLUMNS=1 "$@"',
    "a terminal of nonsense": 'TERM= COLUMNS=x LINES=y "$@"',
    "an unknown locale": 'LC_ALL=xx_YY "$@"',
    "no PATH": 'PATH= "$@"',
    "no folder for temporary files": 'TMPDIR=/nonexistent "$@"',
    "stdin closed": '"$@" <&-',
    "stdout closed": '"$@" >&-',
    "stderr closed": '"$@" 2>&-',
    "all closed": '"$@" <&- >&- 2>&-',
    "few open files": 'ulimit -n 32; "$@"',
    "warnings are errors": 'PYTHONWARNINGS=error "$@"',
}
REFUSED_SURROUNDINGS: dict[str, tuple[str, str]] = {
    # and what the line must say
    "a RANK that is no number": ('RANK=x "$@"', "RANK='x' must be a whole number"),
    "small files only": ('ulimit -f 1; "$@"', "File too large"),
    "a folder that is gone": ('mkdir gone; cd gone; rmdir ../gone; "$@"', "No such file or directory"),
    "a full disk behind stdout": ('"$@" >/dev/full', "<stdout>: No space left on device"),
}


def run_in_shell(line: str, inputs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    words = f"evaluate --model {inputs / 'model'} --test_file {inputs / 'good.jsonl'} --device cpu --metrics rouge1"
    command = [sys.executable, "-m", "semioffline", *words.split(), "--output_dir", str(folder / "out")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(semioffline.__file__).parents[1])}
    return subprocess.run(
        ["bash", "-c", line, "bash", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=180
    )


@pytest.mark.campaign
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings_that_a_command_does_not_need(name: str, inputs: Path, tmp_path: Path, tally: Tally) -> None:
    ended = run_in_shell(SURROUNDINGS[name], inputs, tmp_path)
    good = ended.returncode == 0 and (tmp_path / "out/result.json").exists()
    tally("odd surroundings", "handled" if good else "lost")
    assert good, ended.stderr[-1000:]


@pytest.mark.campaign
@pytest.mark.parametrize("name", REFUSED_SURROUNDINGS)
def test_surroundings_in_which_a_command_cannot_work(name: str, inputs: Path, tmp_path: Path, tally: Tally) -> None:
    line, part = REFUSED_SURROUNDINGS[name]
    ended = run_in_shell(line, inputs, tmp_path)
    told = [text for text in ended.stderr.splitlines() if "semioffline: error: " in text]
    good = ended.returncode == 2 and len(told) == 1 and part in told[0] and "Traceback" not in ended.stderr
    tally("odd surroundings", "handled" if good else "lost")
    assert good, (ended.returncode, ended.stderr[-1000:])


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A folder with room for 128 kB, where the tests may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.campaign
@pytest.mark.parametrize("kilobytes", [128, 124, 100, 60, 20])
@pytest.mark.parametrize("command", ["train", "evaluate", "candidates", "compare"])
def test_a_full_disk_is_one_line_with_the_path(
    command: str,
    kilobytes: int,
    inputs: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tally: Tally,
) -> None:
    """Whatever is written first: the settings, a checkpoint, the log, predictions."""
    monkeypatch.chdir(inputs)
    (small_disk / "fill").write_bytes(b"0" * kilobytes * 1024)
    out = str(small_disk / "out")
    line = {
        "train": f"train semi_offline {TRAIN} --save_strategy steps --save_steps 1",
        "evaluate": f"evaluate {DATA} --batch_size 1",
        "candidates": f"candidates {DATA} --reward rewards.py:ok --num_candidates 8",
        "compare": COMPARE,
    }[command]
    code = main(line.replace("OUT", out).split())
    err = capsys.readouterr().err
    if code == 0:
        assert kilobytes <= 100, "there was no room for this"
        return
    told = [text for text in err.splitlines() if text.startswith("semioffline: error: ")]
    good = code == 2 and len(told) == 1 and str(small_disk) in told[0] and "Traceback" not in err
    good = good and ("No space left on device" in told[0] or "disk full" in told[0])
    tally("a disk with little space", "handled" if good else "lost")
    assert good, (code, err[-1000:])
