"""What a run shows: in a terminal one live line and one line per evaluation, elsewhere plain lines; and advice."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.toy import build_rows, build_trainer
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from semioffline.printing import activity, end_live_line, say, show_table, track
from semioffline.training.console import Advice, Console, evaluation_figures, training_figures

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that stay when everything is printed: a line that is drawn again replaces itself."""
        text = re.sub(r"(\r\n|\n)\x1b\[\?25h\r\x1b\[1A\x1b\[2K", "\r", self.getvalue())
        lines = [re.split(r"\r(?!\n)", line)[-1] for line in text.split("\n")]
        return [ESCAPE.sub("", line).rstrip("\r") for line in lines]


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Terminal]]:
    """To be called in the test: before it, pytest captures what is printed."""

    def open_terminal() -> Terminal:
        opened = Terminal()
        for name, value in (("COLUMNS", "80"), ("TERM", "xterm")):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", opened)
        return opened

    yield open_terminal
    end_live_line()


def trainer(folder: Path, **settings):
    shared = {"eval_strategy": "steps", "eval_steps": 2, "eval_metrics": ["rouge1"], "disable_tqdm": False}
    return build_trainer(folder, dev=build_rows(4), **(shared | {"max_steps": 4, "logging_steps": 2} | settings))


def test_without_a_terminal_every_log_is_one_plain_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    trainer(tmp_path).train()
    out, err = capsys.readouterr()
    assert not {"\x1b", "\r", "{"} & set(out + err)
    lines = [line for line in out.splitlines() if line]
    assert [line.split()[0] for line in lines[:4]] == ["method", "model", "data", "reward"]
    assert lines[0].endswith("semi_offline: 4 steps of 8 inputs, learning rate 0.1")
    assert lines[2].split(maxsplit=1)[1] == "24 training rows, 4 validation rows"
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split("  ")[0] for line in steps] == ["step 2/4", "step 2/4", "step 4/4", "step 4/4"]
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert f"reward {logged[0]['reward']:.4f}" in steps[0]
    assert "loss mle" in steps[0]
    assert "loss rl" in steps[0]
    assert steps[0].endswith(" left")
    assert steps[1].startswith(f"step 2/4  validation: reward {logged[1]['eval_reward']:.4f}  rouge1 ")


def test_a_terminal_keeps_one_line_per_evaluation(tmp_path: Path, open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    trainer(tmp_path).train()
    lines = terminal.screen()
    screen = [line for line in lines if line and not re.match(r"advice|  \S|    (?!step)\S", line)]
    assert [line.split()[0] for line in screen] == ["method", "model", "data", "reward", "step", "2", "4"]
    assert screen[4].split()[:3] == ["step", "reward", "rouge1"]
    assert len({len(line) for line in screen[4:]}) == 1  # aligned
    drawn = [ESCAPE.sub("", part) for part in re.split("[\r\n]", terminal.getvalue())]
    assert all(len(part) <= 80 for part in drawn)
    assert any(re.match(r"step 4/4  \d+ s left  reward \S+  validation reward \S+  loss mle", part) for part in drawn)
    assert any(re.match(r"step 2/4  generate 0/4", part) for part in drawn)  # in the same line
    assert "{" not in terminal.getvalue()


def test_the_best_evaluation_is_bold(tmp_path: Path, open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    console = Console()
    for step, reward in enumerate((0.1, 0.3, 0.2), 1):
        console._say_row(step, {"reward": reward})
    bold = [line for line in terminal.getvalue().splitlines() if "\x1b[1m" in line]
    assert [ESCAPE.sub("", line).split() for line in bold] == [["1", "0.1000"], ["2", "0.3000"]]


def test_what_a_reward_prints_is_on_a_line_of_its_own(tmp_path: Path, open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()

    def talks(completions, **columns):
        print("from the reward")
        return [0.0 if n % 2 else 1.0 for n in range(len(completions))]

    trainer(tmp_path, reward=talks, eval_strategy="no").train()
    assert terminal.screen().count("from the reward") == 4


def test_an_error_leaves_a_terminal_as_it_was(tmp_path: Path, open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()

    def fails(completions, **columns):
        raise RuntimeError("no")

    with pytest.raises(ValueError, match="raised RuntimeError"):
        trainer(tmp_path, reward=fails, eval_strategy="no").train()
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")
    assert sys.stdout is terminal


def test_verbose_keeps_the_log_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    trainer(tmp_path, verbose=True, disable_tqdm=True).train()
    out = capsys.readouterr().out
    assert "'eval_reward': " in out
    assert "method " not in out


@pytest.mark.parametrize("bars", [True, False])
def test_the_console_replaces_the_callbacks_of_transformers(bars: bool, tmp_path: Path) -> None:
    class Theirs(TrainerCallback):
        pass

    given, other = Console("my data"), Theirs()
    made = trainer(tmp_path, callbacks=[given, other], disable_tqdm=not bars)
    kinds = [type(found) for found in made.callback_handler.callbacks]
    assert made.console is given
    assert kinds.count(Console) == kinds.count(Advice) == 1
    assert Theirs in kinds
    assert not {PrinterCallback, ProgressCallback} & set(kinds)


def test_advice_is_given_once_also_when_a_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def same(completions, **columns):
        return [0.5] * len(completions)

    settings = {"reward": same, "eval_strategy": "no", "logging_steps": 1, "save_strategy": "steps", "save_steps": 4}
    trainer(tmp_path, **settings).train()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("advice, step 3: ")]
    assert len(told) == 1
    assert told[0].endswith("the reward is always 0.5: there is nothing to learn from it")
    trainer(tmp_path, **settings, max_steps=8).train(resume_from_checkpoint=True)
    out = capsys.readouterr().out
    assert "advice" not in out
    assert "resumed  after step 4" in out


def test_figures_of_a_line() -> None:
    assert training_figures({"loss": 2.0, "loss/mle": 1.5, "loss/rl": 0.5, "grad_norm": 1.0, "reward": 0.3}) == {
        "reward": 0.3,
        "loss mle": 1.5,
        "loss rl": 0.5,
    }
    logs = {"eval_rouge": 0.2, "eval_length": 9.0, "eval_bleu": 0.1, "eval_reward": 0.2, "eval_runtime": 3.0}
    assert list(evaluation_figures(logs, ["rouge"])) == ["reward", "bleu", "length"]
    both = evaluation_figures(logs | {"eval_reward": 0.3, "eval_rouge_stderr": 0.1}, ["rouge", "bleu"])
    assert list(both) == ["reward", "rouge", "bleu", "length"]


def test_activities_share_one_line(open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    with activity() as outer:
        outer.show("outer 1/2", "more")
        assert list(track(range(0, 4, 2), 4, "inner")) == [0, 2]
        say("said")
    shown = ESCAPE.sub("", terminal.getvalue())
    assert "outer 1/2  inner 0/4" in shown
    assert "outer 1/2  more" in shown
    assert [line for line in terminal.screen() if line] == ["said"]


def test_a_long_loop_says_something_now_and_then_without_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setattr("semioffline.printing.TOLD", 0.0)
    assert len(list(track(range(0, 4, 2), 4, "generate"))) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["generate 0/4", "generate 2/4", "generate 4/4"]


def test_a_table_fits_into_a_terminal(open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    names = [f"metric {n}" for n in range(9)]
    show_table("title", ["", *names], [["semi_offline", *["0.123"] * 9]], width=200)
    lines = terminal.screen()
    assert max(map(len, lines)) <= 80
    assert any(line.count("0.123") == 9 for line in lines)
