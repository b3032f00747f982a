"""Static targets: generated, scored, sorted best first, and never lost or made twice."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from integration.toy import (
    KINDS,
    build_model,
    build_rows,
    build_tokenizer,
    build_trainer,
    build_uneven_rows,
    run_command,
    save_model,
    start_process,
)
from semioffline import Policy
from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch
from semioffline.cli import main
from semioffline.cli.candidates import CandidateOptions
from semioffline.data.candidates import OUTPUT, write_candidates
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.policy.decoding import Decoding
from semioffline.scoring.reward_set import RewardSet
from semioffline.tasks.ads import click_rate
from semioffline.tasks.reading.rows import load_rows

MANY = 4
DECODINGS = {
    "diverse_beam": Decoding(
        num_beams=MANY, num_beam_groups=MANY, diversity_penalty=1.0, num_return_sequences=MANY, max_new_tokens=8
    ),
    "sampling": Decoding(do_sample=True, top_p=0.95, num_return_sequences=MANY, max_new_tokens=8),
    "beam": Decoding(num_beams=MANY, num_return_sequences=MANY, max_new_tokens=8),
}


def build_policy(kind: str = "bart") -> Policy:
    return Policy(build_model(kind), build_tokenizer(kind))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make(
    folder: Path,
    kind: str = "bart",
    strategy: str = "sampling",
    rows: Dataset | None = None,
    reward: Any = "click_rate",
    policy: Policy | None = None,
    settings: dict[str, Any] | None = None,
    shard_size: int = 4,
    batch_size: int = 2,
    **kwargs: Any,
) -> Path:
    policy = build_policy(kind) if policy is None else policy
    rows = build_uneven_rows(10) if rows is None else rows
    examples = Examples(rows, policy, 24, 28, progress=False)
    given = {"strategy": strategy} if settings is None else settings
    sizes = {"batch_size": batch_size, "shard_size": shard_size}
    rewards, decoding = RewardSet(reward), DECODINGS[strategy]
    return write_candidates(policy, examples, rows, decoding, rewards, folder, given, **sizes, **kwargs)


class Counting:
    """A policy whose `generate` is counted, and which breaks down at a given call."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch, breaks_at: int | None = None):
        self.policy, self.calls, self.real, self.breaks_at = policy, 0, policy.generate, breaks_at
        monkeypatch.setattr(policy, "generate", self.generate)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.breaks_at:
            raise KeyboardInterrupt
        return self.real(*args, **kwargs)


@pytest.mark.parametrize("strategy", DECODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_sorted_best_first(kind: str, strategy: str, tmp_path: Path) -> None:
    """Every column stays, rows keep their order, and the rewards are those of the texts."""
    rows = build_uneven_rows(6)
    path = make(tmp_path, kind, strategy, rows)
    assert path == tmp_path / OUTPUT
    written = read(path)
    assert len(written) == len(rows)
    for row, source in zip(written, rows, strict=True):
        assert {name: row[name] for name in source} == source
        assert 1 <= len(row["candidates"]) <= MANY
        assert all(text and text == text.strip() and "<" not in text for text in row["candidates"])
        assert row["candidate_rewards"] == sorted(row["candidate_rewards"], reverse=True)
        again = click_rate(row["candidates"], [row["category"]] * len(row["candidates"]))
        assert row["candidate_rewards"] == pytest.approx(again)
    assert all(len(set(row["candidates"])) > 1 for row in written)
    # what one input's candidates are must not depend on the others
    alone = 0 if strategy == "sampling" else 3  # samples are keyed by the number of the input
    single = make(tmp_path / "one", kind, strategy, rows.select([alone]))
    assert read(single) == written[alone : alone + 1]
    larger = make(tmp_path / "larger", kind, strategy, rows, batch_size=4)
    assert read(larger) == written


def test_the_output_can_be_read_back_and_trained_on(tmp_path: Path) -> None:
    path = make(tmp_path / "candidates")
    rows = load_rows(path)
    assert {"prompt", "completion", "candidates", "candidate_rewards"} <= set(rows.column_names)
    build_trainer(tmp_path / "run", rows=rows, static_target="worst", max_steps=1).train()


def test_rows_without_a_usable_candidate_are_kept(tmp_path: Path) -> None:
    """A reward that scores nothing for some inputs: they have no candidates, and training tells the first of them."""

    def choosy(completions: list[str], prompts: list[str], **kwargs: Any) -> list[float | None]:
        return [None if prompt == prompts[0] else float(len(text)) for prompt, text in zip(prompts, completions)]

    rows = build_rows(4)
    path = make(tmp_path / "candidates", rows=rows, reward=choosy)
    again = load_rows(path)
    assert again["prompt"][:] == rows["prompt"][:]
    empty = [n for n, row in enumerate(again) if not row["candidates"]]
    assert len(empty) == 2
    assert all(len(row["candidates"]) == len(row["candidate_rewards"]) for row in again)
    with pytest.raises(UserError, match=f"row {empty[0]} has no candidates"):
        build_trainer(tmp_path / "run", rows=again, static_target="worst")


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    first = make(tmp_path / "a").read_bytes()
    torch.manual_seed(1234)  # what the program did before does not matter
    assert make(tmp_path / "b").read_bytes() == first
    assert make(tmp_path / "c", seed=1).read_bytes() != first


def test_sampling_leaves_the_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    make(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("strategy", DECODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_model_writes_no_candidates(kind: str, strategy: str, tmp_path: Path) -> None:
    """Weights of NaN: beams would go on with any tokens, and sampling would end in an error of torch's."""
    policy = build_policy(kind)
    with torch.no_grad():
        policy.base.get_output_embeddings().weight.fill_(torch.nan)
    with pytest.raises(UserError, match="weights contain NaN or infinity"):
        make(tmp_path, kind, strategy, policy=policy)
    assert not [*tmp_path.rglob("*.jsonl*")]


def test_tokens_that_a_model_rules_out_are_no_fault(tmp_path: Path) -> None:
    """A logit of -inf is a probability of 0."""
    policy = build_policy("bart")
    policy.base.final_logits_bias[:, 10:20] = -torch.inf
    assert all(row["candidates"] for row in read(make(tmp_path, policy=policy)))


# ---- going on ----


@pytest.mark.parametrize("strategy", ["sampling", "diverse_beam"])
def test_a_broken_run_goes_on(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 rows in shards of 4, batches of 2: five calls. Broken in the third shard, only that one is made again."""
    whole = make(tmp_path / "whole", strategy=strategy).read_bytes()
    folder = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        make(folder, strategy=strategy, policy=Counting(build_policy(), monkeypatch, breaks_at=5).policy)
    shards = sorted((folder / "shards").glob("*.jsonl"))
    assert [path.name for path in shards] == ["00000-of-00003.jsonl", "00001-of-00003.jsonl"]
    assert not (folder / OUTPUT).exists()
    times = [path.stat().st_mtime_ns for path in shards]

    counting = Counting(build_policy(), monkeypatch)
    assert make(folder, strategy=strategy, policy=counting.policy).read_bytes() == whole
    assert counting.calls == 1
    assert [path.stat().st_mtime_ns for path in shards] == times

    counting.calls = 0  # nothing is left to do
    assert make(folder, strategy=strategy, policy=counting.policy).read_bytes() == whole
    assert counting.calls == 0


def test_a_run_with_too_large_batches_goes_on_with_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, policy=Counting(build_policy(), monkeypatch, breaks_at=5).policy)
    before = [path.read_bytes() for path in sorted((tmp_path / "shards").glob("*.jsonl"))]
    counting = Counting(build_policy(), monkeypatch)
    rows = make(tmp_path, policy=counting.policy, batch_size=1).read_bytes().splitlines(keepends=True)
    assert counting.calls == 2
    assert b"".join(rows[:8]) == b"".join(before)
    assert len(rows) == 10


def test_a_half_written_shard_is_made_again(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole").read_bytes()
    folder = tmp_path / "run"
    make(folder)
    shard = folder / "shards" / "00001-of-00003.jsonl"
    half = shard.read_bytes()[:100]
    shard.unlink()
    shard.with_name(shard.name + ".part").write_bytes(half)
    (folder / OUTPUT).unlink()
    assert make(folder).read_bytes() == whole


def test_other_settings_are_refused(tmp_path: Path) -> None:
    """And nothing is changed in the folder."""
    whole = make(tmp_path).read_bytes()
    settings = (tmp_path / "settings.json").read_bytes()
    for change in (
        {"settings": {"strategy": "sampling", "top_p": 0.5}},
        {"shard_size": 5},
        {"rows": build_uneven_rows(9)},
    ):
        with pytest.raises(UserError, match="other settings"):
            make(tmp_path, **change)
    assert (tmp_path / OUTPUT).read_bytes() == whole
    assert (tmp_path / "settings.json").read_bytes() == settings
    make(tmp_path)


@pytest.mark.parametrize("change", [{"seed": 1}, {"strategy": "beam"}], ids=["seed", "decoding"])
def test_shards_of_another_seed_or_decoding_are_not_mixed(change: dict[str, Any], tmp_path: Path) -> None:
    """The function knows its own seed and decoding: it need not be told in `settings`."""
    make(tmp_path, settings={})
    with pytest.raises(UserError, match="other settings"):
        make(tmp_path, settings={}, **change)


def test_settings_of_an_attempt_that_made_nothing_are_replaced(tmp_path: Path) -> None:
    """A reward that raises before the first shard is complete; once there is a part of a shard, others are refused."""

    def broken(completions: list[str], **kwargs: Any) -> list[float]:
        raise ValueError("not yet")

    with pytest.raises(UserError, match="not yet"):
        make(tmp_path, reward=broken, settings={"reward": "broken"})
    assert len(read(make(tmp_path, settings={"reward": "mended"}))) == 10
    assert json.loads((tmp_path / "settings.json").read_text())["reward"] == "mended"

    other = tmp_path / "other"
    with pytest.raises(UserError, match="not yet"):
        make(other, reward=broken, settings={"reward": "broken"})
    (other / "shards" / "00000-of-00003.jsonl.part").write_text("{")
    with pytest.raises(UserError, match="reward: broken before, mended now"):
        make(other, settings={"reward": "mended"})


@pytest.mark.parametrize("column", ["prompt", "completion", "references", "category"])
def test_a_file_that_was_edited_is_refused(column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as before, one of them with another text, in a shard that is made already: of what candidates are
    made from, and of what rewards read."""
    rows = [row | {"references": [row["completion"]]} for row in build_uneven_rows(10).to_list()]
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, rows=Dataset.from_list(rows), policy=Counting(build_policy(), monkeypatch, breaks_at=5).policy)
    edited = [dict(row) for row in rows]
    edited[2][column] = ["another"] if column == "references" else "another"
    for others in (edited, rows[::-1]):
        with pytest.raises(UserError, match="of other rows: the data has been changed"):
            make(tmp_path, rows=Dataset.from_list(others))
    assert len(read(make(tmp_path, rows=Dataset.from_list(rows)))) == 10


def test_a_folder_without_a_digest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an earlier version: nobody knows what its rows said, and nothing is claimed of them."""
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, policy=Counting(build_policy(), monkeypatch, breaks_at=5).policy)
    path = tmp_path / "settings.json"
    settings = json.loads(path.read_text())
    assert settings.pop("digest")
    path.write_text(json.dumps(settings))
    assert len(read(make(tmp_path))) == 10
    assert json.loads(path.read_text()) == settings


def test_columns_that_are_no_text_do_not_stop_a_resumption(tmp_path: Path) -> None:
    """An object prints its place in memory, which is another one in the next process."""
    policy, rows = build_policy(), build_uneven_rows(4)
    pictures = [[object() for _ in rows] for _ in range(2)]
    for attempt in pictures:
        examples = Examples(rows, policy, 24, 28, progress=False)
        for example, picture in zip(examples.examples, attempt, strict=True):
            example.columns["picture"] = picture
        write_candidates(policy, examples, rows, DECODINGS["sampling"], RewardSet("click_rate"), tmp_path, {})
        assert len(read(tmp_path / OUTPUT)) == 4


# ---- the command ----


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """output folder, more options -> arguments of the command; the reward takes its time."""
    folder = tmp_path_factory.mktemp("inputs")
    model = save_model(folder / "model")
    (folder / "slow.py").write_text(
        "import time\nfrom semioffline.tasks.ads import click_rate\n\n\n"
        "def slow(**columns):\n    time.sleep(0.1)\n    return click_rate(**columns)\n"
    )
    flags = ["--task", "ads", "--model", model, "--device", "cpu", "--limit", 16, "--strategy", "sampling"]
    flags += ["--num_candidates", 3, "--max_completion_length", 8, "--batch_size", 2, "--shard_size", 2]
    flags += ["--reward", f"{folder}/slow.py:slow"]
    return lambda output, *more: ["candidates", *map(str, [*flags, "--output_dir", output, *more])]


def one_line(capsys: pytest.CaptureFixture) -> str:
    """The last line that a refused command prints. There is no traceback before it."""
    told = capsys.readouterr().err
    assert "Traceback" not in told
    last = told.strip().splitlines()[-1]
    assert last.startswith("semioffline: error:")
    return last


@pytest.mark.slow
def test_a_killed_command_goes_on(command: Any, tmp_path: Path) -> None:
    """SIGKILL after the second of eight shards; the result is that of a run in one go."""
    folder = tmp_path / "killed"
    process = start_process(run_command, command(folder), str(tmp_path / "out"))
    deadline = time.monotonic() + 120
    while len(list(folder.glob("shards/*.jsonl"))) < 2:
        assert process.is_alive(), (tmp_path / "out").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    shards = list(folder.glob("shards/*.jsonl"))
    assert 2 <= len(shards) < 8
    times = [path.stat().st_mtime_ns for path in shards]

    assert main(command(folder)) == 0
    assert main(command(tmp_path / "whole")) == 0
    assert (folder / OUTPUT).read_bytes() == (tmp_path / "whole" / OUTPUT).read_bytes()
    assert [path.stat().st_mtime_ns for path in shards] == times


def test_the_command_refuses_other_settings(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """One line that names the setting; the folder, its config.yaml too, stays as it was."""
    assert main(command(tmp_path, "--limit", "4")) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(command(tmp_path, "--limit", "4", "--top_p", "0.5")) == 2
    assert "top_p: 0.95 before, 0.5 now" in one_line(capsys)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_command_goes_on_with_a_mended_reward(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The first attempt stops in its first batch: it leaves no candidates, and nothing to refuse others for."""
    (tmp_path / "rewards.py").write_text(
        "def broken(completions, **columns):\n    raise KeyError('price')\n\n\n"
        "def mended(completions, **columns):\n    return [float(len(text)) for text in completions]\n"
    )
    folder = tmp_path / "out"
    assert main(command(folder, "--limit", "4", "--reward", f"{tmp_path}/rewards.py:broken")) == 2
    assert "raised KeyError" in one_line(capsys)
    assert main(command(folder, "--limit", "4", "--reward", f"{tmp_path}/rewards.py:mended")) == 0
    assert len(read(folder / OUTPUT)) == 4


def test_the_command_refuses_a_file_that_was_edited(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The name of the file is the same, and so is the number of its rows."""
    rows, file = build_rows(4).to_list(), tmp_path / "train.jsonl"
    flags = ["--task", "files", "--train_file", file]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(command(tmp_path / "out", *flags)) == 0
    rows[1]["completion"] += " indeed"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(command(tmp_path / "out", *flags)) == 2
    assert "of other rows: the data has been changed" in one_line(capsys)


@pytest.mark.parametrize("strategy", DECODINGS)
def test_the_command_refuses_a_broken_model(
    command: Any, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    model.save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    assert main(command(tmp_path / "out", "--model", tmp_path / "model", "--strategy", strategy)) == 2
    assert "the model's weights contain NaN" in one_line(capsys)
    assert not (tmp_path / "out" / OUTPUT).exists()


def test_one_candidate_has_no_diverse_beams(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The default strategy with one candidate: the message names what was given and what to change."""
    one = ["--num_candidates", "1", "--limit", "2"]
    assert main(command(tmp_path, *one, "--strategy", "diverse_beam")) == 2
    told = one_line(capsys)
    assert "--num_candidates 1 must be at least 2 for --strategy diverse_beam" in told
    assert "--strategy sampling or beam" in told
    assert "num_beam_groups" not in told
    for strategy in ("sampling", "beam"):
        assert main(command(tmp_path / strategy, *one, "--strategy", strategy)) == 0
        assert all(len(row["candidates"]) <= 1 for row in read(tmp_path / strategy / OUTPUT))


# ---- choosing the static target ----


def rows_with_candidates(number: int = 6) -> Dataset:
    """Row n has 1 + n % 4 candidates, not sorted; the reward of candidate c is (c * 3 + 1) % 4."""
    rows = build_rows(number).to_list()
    for n, row in enumerate(rows):
        words = row["completion"].split()
        row["candidates"] = [" ".join(words[c:]) for c in range(1 + n % 4)]
        row["candidate_rewards"] = [float((c * 3 + 1) % 4) for c in range(1 + n % 4)]
    return Dataset.from_list(rows)


def batch_of(rows: Dataset, static_target: str, policy: Policy, chosen: list[int] | None = None) -> Batch:
    examples = Examples(rows, policy, 24, 28, static_target=static_target, progress=False)
    return Collator(policy.tokens.pad_id)([examples[n] for n in (range(len(rows)) if chosen is None else chosen)])


@pytest.mark.parametrize("kind", KINDS)
def test_worst_and_best_pick_by_reward(kind: str) -> None:
    policy, rows = build_policy(kind), rows_with_candidates()
    for name, choose in (("worst", min), ("best", max)):
        texts = policy.tokens.decode(batch_of(rows, name, policy).static.ids.tolist())
        expected = [choose(zip(row["candidate_rewards"], row["candidates"]))[1] for row in rows]
        assert texts == expected
    assert policy.tokens.decode(batch_of(rows, "ground_truth", policy).static.ids.tolist()) == rows["completion"][:]


def draw_static(rows: Dataset, policy: Policy, step: int, chosen: list[int]) -> list[str]:
    """The static targets that a step uses, as the method takes them."""
    from semioffline.data.examples import choose_static

    static = choose_static(batch_of(rows, "random", policy, chosen), Randomness(0, step))
    return policy.tokens.decode(static.ids.tolist())


def test_random_is_keyed_by_step_and_example() -> None:
    """The same at the same step in any batch; another at other steps; in the long run each as often as the others."""
    policy, rows = build_policy(), rows_with_candidates(8)
    everyone = list(range(8))
    counts: dict[str, int] = {}
    seen = set()
    for step in range(60):
        together = draw_static(rows, policy, step, everyone)
        assert together == draw_static(rows, policy, step, everyone)
        seen.add(tuple(together))
        if step < 10:
            assert together == [draw_static(rows, policy, step, [n])[0] for n in everyone]
            assert together[::-1] == draw_static(rows, policy, step, everyone[::-1])
        for n, text in enumerate(together):
            assert text in rows[n]["candidates"]
            counts[text] = counts.get(text, 0) + 1
    assert len(seen) > 50
    for row in rows:
        shares = [counts.get(text, 0) / 60 for text in row["candidates"]]
        assert all(abs(share - 1 / len(shares)) < 0.25 for share in shares)


def test_more_beams_than_candidates_keep_one_of_each_group():
    """BRIO's setting for XSum: 128 beams in 16 groups, 16 candidates."""
    options = CandidateOptions(num_candidates=16, search_beams=128, num_beam_groups=16, diversity_penalty=0.1)
    decoding = options.decoding(64)
    assert (decoding.num_beams, decoding.num_beam_groups, decoding.num_return_sequences) == (128, 16, 16)
    assert CandidateOptions(num_candidates=8).decoding(64).num_beams == 8
    with pytest.raises(UserError, match="above num_beams=4"):
        CandidateOptions(num_candidates=8, search_beams=4).decoding(64)
