"""The examples run, and the pages on rewards say what works."""

import asyncio
import re
import runpy
import sys
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import pytest

from integration.toy import save_model
from pages import blocks, check_commands
from semioffline.cli import main
from semioffline.rewards.registry import FAMILIES, load_reward
from semioffline.scoring.named import reward_names
from semioffline.scoring.reward_set import RewardSet
from semioffline.tasks.reading.rows import load_rows

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "start.py")
PAGE = (ROOT / "docs" / "your-own-reward.md").read_text()
SERVICE = (ROOT / "docs" / "web-service.md").read_text()
NAMES = (ROOT / "docs" / "rewards.md").read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    argv = [str(path), "--start_steps", "2", "--steps", "2", "--output_dir", str(tmp_path)]
    argv += ["--judge_steps", "2"] if path.stem == "model_reward" else []
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.syspath_prepend(str(path.parent))
    sys.modules.pop("start", None)
    runpy.run_path(str(path), run_name="__main__")
    assert re.search(r"reward +-?\d\.\d{3} -> +-?\d\.\d{3}", capsys.readouterr().out)
    assert (tmp_path / "metrics.jsonl").is_file()


def test_the_example_with_own_data_is_what_run_reads(tmp_path, monkeypatch, capsys):
    """The plan of 60 rows, with a tiny model: docs/your-own-data.md shows the whole with 500."""
    examples = ROOT / "examples" / "own_data"
    save_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_rows.py", "data", "60"])
    runpy.run_path(str(examples / "make_rows.py"), run_name="__main__")
    words = f"run --model model --data_dir data --reward {examples}/my_reward.py:good_title --device cpu --dry_run true"
    assert main(words.split()) == 0
    assert "other columns: device, place, fault" in capsys.readouterr().out
    [row] = load_rows(Path("data/train.csv")).select([0]).to_list()
    facts = {name: [row[name]] for name in ("device", "place", "fault")}
    good_title = runpy.run_path(str(examples / "my_reward.py"))["good_title"]
    assert good_title([f"{row['device']}, {row['place']}: {row['fault']}"], **facts) == [1.0]
    assert good_title(["nothing of it"], **facts) == [0.0]


def test_the_page_links_every_example():
    for path in EXAMPLES:
        assert f"examples/{path.name}" in PAGE


def test_the_page_names_every_reward():
    names = set(re.findall(r"`([\w:]+)", NAMES))
    missing = [name for name in reward_names() if name not in names]
    missing += [family for family in FAMILIES if not any(name.startswith(f"{family}:") for name in names)]
    assert not missing


def test_the_code_of_the_page_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(PAGE, "python"):
        exec(code, names)
    rows = {"prompts": ["p", "q"], "completions": ["buy this now", "a lamp"], "references": [["x"], ["a lamp"]]}
    for reward in (names["coverage"], names["distinct_later"], names["Slogan"](["now"])):
        sums, parts = RewardSet(reward)(rows)
        assert len(sums) == 2
        assert all(len(values) == 2 for values in parts.values())
    assert load_reward(names["Slogan"](["now"]))[0] == "slogan"


@pytest.mark.parametrize("page", ["your-own-reward.md", "your-own-data.md"])
def test_the_first_reward_differs_between_samples_of_one_length(page):
    """Samples of semi_offline have the length of the masked text: a reward for length alone would teach nothing."""
    code = blocks((ROOT / "docs" / page).read_text(), "python")[0]
    names: dict = {}
    exec(code.partition("\n\n\nresult = ")[0], names)
    samples = ["a red lamp", "a red table", "no blue table"]
    prompts = ["color : red | thing : lamp"] * 3
    assert names["coverage"](completions=samples, prompts=prompts) == [2 / 6, 1 / 6, 0]


def test_the_code_for_a_web_service_works(monkeypatch):
    """With a function in place of the service, and requests of one text; `Retry` calls it again after an error."""
    names: dict = {}
    with pytest.raises(KeyError, match="SERVICE_KEY"):
        exec(blocks(SERVICE, "python")[0], {})
    monkeypatch.setenv("SERVICE_KEY", "secret")
    for code in blocks(SERVICE, "python"):
        exec(code, names)
    sent: list = []

    def post(completions, prompts):
        sent.append((completions, prompts))
        if len(sent) == 1:
            raise ConnectionError
        return [float(len(text)) for text in completions]

    names["TEXTS"] = 1
    names["send"].function, names["send"].wait = post, 0.0
    rows = {"prompts": ["p", "q"], "completions": ["buy this now", "a lamp"], "references": [["x"], ["a lamp"]]}
    assert RewardSet(names["quality"])(rows)[0] == [12.0, 6.0]
    assert sorted(sent)[0] == (["a lamp"], ["q"])
    assert len(sent) == 3
    gated = asyncio.run(names["send_one"](slice(0, 1), rows["completions"], rows["prompts"]))
    assert gated == [12.0]


@pytest.mark.parametrize(("code", "attempts", "error"), [(401, 1, RuntimeError), (503, 4, HTTPError)])
def test_a_web_service_is_called_again_only_if_that_can_help(monkeypatch, code, attempts, error):
    monkeypatch.setenv("SERVICE_KEY", "secret")
    names: dict = {}
    exec(blocks(SERVICE, "python")[0], names)
    sent: list = []

    def refuse(request, timeout):
        sent.append(request.get_header("Authorization"))
        raise HTTPError(request.full_url, code, "refused", Message(), None)

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    names["send"].wait = 0.0
    with pytest.raises(error):
        names["send"](completions=["a"], prompts=["p"])
    assert sent == ["Bearer secret"] * attempts


def test_the_commands_of_the_page_parse(tmp_path):
    check_commands(PAGE)
    check_commands(SERVICE, least=1)
