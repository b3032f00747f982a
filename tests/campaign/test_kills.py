"""Killed at any moment, and at every file that is written, a command continues to what an undisturbed one makes."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from campaign import faults
from campaign.commands import Command, build_commands
from campaign.conftest import Tally
from integration.toy import start_process
from semioffline.storage.files import find_damage

NAMES = ("train", "train actor_critic", "candidates", "evaluate", "compare", "run")
SEEDS = dict.fromkeys(NAMES, 10) | {"compare": 4, "run": 4}
"""How often a command is killed at random moments: less often where it takes long."""
PATIENCE = 180.0
"""Seconds until a command counts as hung."""
SEED = 24
ALIKE = re.compile(r"\d+|(?<=/)(mft|semi_offline|more_mft)(?=/)|(?<=/runs/)\w+(?=-seed)")
"""Parts of the paths of files that are written by the same code."""


@dataclass
class Undisturbed:
    """A command that nothing has happened to."""

    command: Command
    result: Any
    writes: list[tuple[str, str]]
    seconds: float
    kilobytes: int
    folder: Path

    def place(self, at: int, folder: Path) -> faults.Place:
        """The write with this number, as a process in another folder knows it that has gone on."""
        name, path = self.writes[at]
        return name, str(folder) + path.removeprefix(str(self.folder))


class Hung(Exception):
    pass


Hit = tuple[int, str]
"""The number of a write, and the moment."""
IN_A_ROW = 6
"""Hits of one command before it may go on to its end."""


def start(argv: list[str], output: Path, *fault: Any) -> int:
    """The exit code of a command in a process of its own."""
    process = start_process(faults.run, argv, str(output), *fault)
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise Hung(output.read_text())
    return process.exitcode


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("campaign")
    commands, made = build_commands(folder), {}
    start(["env"], folder / "output")  # which is not timed: the server of processes imports the library

    def get(name: str) -> Undisturbed:
        if name not in made:
            whole, seen = folder / name / "whole", folder / f"{name}.writes"
            began = time.monotonic()
            code = start(commands[name].argv(whole), folder / "output", -1, "before", seen)
            assert code == 0, (folder / "output").read_text()
            writes = [tuple(json.loads(line)) for line in seen.read_text().splitlines()]
            seconds = time.monotonic() - began
            size = sum(path.stat().st_size for path in whole.rglob("*")) // 1024
            made[name] = Undisturbed(commands[name], commands[name].result(whole), writes, seconds, size, whole)
        return made[name]

    return get


def continue_to_the_end(one: Undisturbed, folder: Path) -> str:
    """The same command again; what is wrong with its result, or nothing."""
    output = folder.with_suffix(".output")
    code = start(one.command.argv(folder, again=True), output)
    if code != 0:
        return f"exit code {code}: {output.read_text()[-2000:]}"
    found = one.command.result(folder)
    if found == one.result:
        return ""
    if isinstance(found, dict):
        return f"another result: {[name for name in found if found[name] != one.result[name]]}"
    return "another result"


def outcome(one: Undisturbed, folder: Path, hits: list[Hit]) -> tuple[int, str, str]:
    """Hit a command, hit what continues it at the next write, and so on; then continue it to the end.

    Returns:
        How many of the hits there were, until the command was done; "handled" | "lost" | "hung"; what is wrong.
    """
    done, problem = 0, ""
    try:
        for at, moment in hits:
            argv = one.command.argv(folder, again=done > 0)
            place = one.place(at, folder) if done else at
            code = start(argv, folder.with_suffix(".output"), place, moment)
            printed = folder.with_suffix(".output").read_text()
            if code == 0:
                break
            done += 1
            if moment == faults.FULL:
                problem = check_full(code, printed)
            elif code != -signal.SIGKILL:
                problem = f"exit code {code}: {printed[-2000:]}"
            if problem:
                break
        problem = problem or continue_to_the_end(one, folder)
    except Hung as error:
        return done, "hung", str(error)
    shutil.rmtree(folder, ignore_errors=True)
    return done, "lost" if problem else "handled", problem


def check_full(code: int, printed: str) -> str:
    """Of a full disk: one line, and exit code 2."""
    errors = [line for line in printed.splitlines() if line.startswith("semioffline: error:")]
    good = code == 2 and len(errors) == 1 and "No space left on device" in errors[0] and "Traceback" not in printed
    return "" if good else f"exit code {code} where the disk is full: {printed[-2000:]}"


def every_write(one: Undisturbed, moments: tuple[str, ...]) -> Iterator[Hit]:
    """One of each kind of write and file: a file of one checkpoint, shard, step, stage or run stands for those of all
    others. What comes after one write comes before the next: only what gives a file its name is also hit after it."""
    alike: dict[tuple[str, str], list[int]] = {}
    for at, (name, path) in enumerate(one.writes):
        alike.setdefault((name, ALIKE.sub("0", path)), []).append(at)
    for (name, path), places in alike.items():
        at = random.Random(f"{SEED} {name} {path}").choice(places)
        for moment in moments:
            named = {"before": True, "during": name in ("fsync", "append"), "after": name in ("replace", "rename")}
            if named.get(moment, name in ("fsync", "append") and not Path(path).is_dir()):
                yield at, moment


def hit_all(one: Undisturbed, what: str, hits: list[Hit], folder: Path, tally: Tally) -> None:
    """In the order of the writes, several in a row. Where something is wrong, each of them alone says at which."""
    problems: list[str] = []
    left = sorted(hits)
    while left:
        row = left[:IN_A_ROW]
        done, result, problem = outcome(one, folder / f"row-{row[0][0]}", row)
        if problem:
            problems.append(f"{row}: {result}: {problem}")
            for at, moment in row if len(row) > 1 else ():
                _, result_of_one, problem = outcome(one, folder / f"{at}-{moment}", [(at, moment)])
                if problem:
                    problems.append(f"{moment} write {at} {one.writes[at]}: {result_of_one}: {problem}")
        if done:
            tally(what, result, done)
        left = left[max(done, 1) :]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", NAMES[2:4])
def test_some_kills_at_files_that_are_written(name: str, undisturbed: Any, tmp_path: Path, tally: Tally) -> None:
    """Those of the two quick commands; `make campaign` hits every write of all."""
    one = undisturbed(name)
    hits = random.Random(SEED).sample(list(every_write(one, faults.MOMENTS)), 2)
    hit_all(one, f"{name}: killed at a write", hits, tmp_path, tally)


def test_a_kill_while_a_checkpoint_is_written(undisturbed: Any, tmp_path: Path, tally: Tally) -> None:
    """With half of a file, and before the folder gets its name."""
    one = undisturbed("train")
    named = [n for n, (name, path) in enumerate(one.writes) if name == "rename" and path.endswith("/checkpoint-4")]
    weights = [n for n, (_, path) in enumerate(one.writes) if path.endswith("checkpoint-4/model.safetensors")]
    hits = [(weights[0], "during"), (named[0], "before")]
    hit_all(one, "train: killed at a write", hits, tmp_path, tally)


@pytest.mark.campaign
@pytest.mark.parametrize("moment", faults.MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_every_file_that_is_written(
    name: str, moment: str, undisturbed: Any, tmp_path: Path, tally: Tally
) -> None:
    one = undisturbed(name)
    hit_all(one, f"{name}: killed {moment} a write", list(every_write(one, (moment,))), tmp_path, tally)


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_at_every_file_that_is_written(name: str, undisturbed: Any, tmp_path: Path, tally: Tally) -> None:
    one = undisturbed(name)
    hit_all(one, f"{name}: disk full at a write", list(every_write(one, (faults.FULL,))), tmp_path, tally)


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in NAMES for seed in range(SEEDS[name])])
def test_kills_at_random_moments(name: str, seed: int, undisturbed: Any, tmp_path: Path, tally: Tally) -> None:
    """SIGKILL from outside, up to three times in a row."""
    one, folder = undisturbed(name), tmp_path / "run"
    moments = random.Random(f"{SEED} {name} {seed}")
    for attempt in range(moments.randint(1, 3)):
        argv = one.command.argv(folder, again=attempt > 0)
        process = start_process(faults.run, argv, str(tmp_path / "output"))
        process.join(moments.uniform(0, one.seconds))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        problem = continue_to_the_end(one, folder) if process.exitcode == 0 else ""
        assert process.exitcode in (0, -signal.SIGKILL), (tmp_path / "output").read_text()
        assert not problem
    problem = continue_to_the_end(one, folder)
    tally(f"{name}: killed at random moments", "lost" if problem else "handled")
    assert not problem


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "stage"), [("train", "."), ("run", "mft"), ("run", "semi_offline")])
def test_a_newest_checkpoint_that_is_damaged_after_a_kill(
    name: str, stage: str, undisturbed: Any, tmp_path: Path, tally: Tally
) -> None:
    """It is named. The one before is taken where there is one; else one line says to remove it. `run` keeps the one
    before only where it is the best (M-FT takes the last weights)."""
    one, folder, output = undisturbed(name), tmp_path / "run", tmp_path / "output"
    made = [at for at, (what, path) in enumerate(one.writes) if what == "rename" and is_checkpoint(path, stage)]
    later = next(at for at in range(made[1] + 1, len(one.writes)) if "checkpoint" not in one.writes[at][1])
    assert start(one.command.argv(folder), output, later + 1, "before") == -signal.SIGKILL
    newest = folder / stage / Path(one.writes[made[1]][1]).name
    only = len(list(newest.parent.glob("checkpoint-*"))) == 1
    assert only or stage != "mft"
    with open(newest / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    code = start(one.command.argv(folder, again=True), output)
    told = [line for line in output.read_text().splitlines() if str(newest) in line and "model.safetensors" in line]
    assert len(told) == 1, output.read_text()
    assert ("there is no other checkpoint: remove" if only else "going on from") in told[0]
    assert code == (2 if only else 0)
    if only:
        shutil.rmtree(newest)
    problem = continue_to_the_end(one, folder)
    tally(f"{name}: damaged checkpoint", "lost" if problem else "handled")
    assert not problem


def is_checkpoint(path: str, stage: str) -> bool:
    return bool(re.search(rf"{'' if stage == '.' else f'/{stage}'}/checkpoint-\d+$", path))


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(2))
def test_a_process_that_is_stopped_for_a_while_goes_on(
    name: str, seed: int, undisturbed: Any, tmp_path: Path, tally: Tally
) -> None:
    """SIGSTOP and SIGCONT, as Ctrl-Z and fg in a shell."""
    one, folder = undisturbed(name), tmp_path / "run"
    moments = random.Random(f"{SEED} stop {name} {seed}")
    process = start_process(faults.run, one.command.argv(folder), str(tmp_path / "output"))
    for _ in range(3):
        process.join(moments.uniform(0, one.seconds / 3))
        if process.is_alive():
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(process.pid, signal.SIGCONT)
    process.join(PATIENCE)
    hung = process.is_alive()
    process.kill()
    process.join()
    same = process.exitcode == 0 and one.command.result(folder) == one.result
    tally(f"{name}: stopped and continued", "hung" if hung else "handled" if same else "lost")
    assert same, (tmp_path / "output").read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """kB -> a file system of this size, which grows when it is asked for another one."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    place = tmp_path / "disk"
    place.mkdir()

    def resize(size: int) -> Path:
        words = ["-o", f"size={size}k,remount"] if os.path.ismount(place) else ["-t", "tmpfs", "-o", f"size={size}k"]
        if subprocess.run(["mount", *words, "tmpfs", str(place)], capture_output=True).returncode != 0:
            pytest.skip("no file system can be mounted here")
        return place

    yield resize
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_disk_that_is_too_small(
    name: str, share: float, undisturbed: Any, small_disk: Callable[[int], Path], tmp_path: Path, tally: Tally
) -> None:
    """One line and exit code 2; checkpoints that have their names are whole; with space it continues."""
    one = undisturbed(name)
    folder = small_disk(max(int(share * one.kilobytes), 8)) / "run"
    code = start(one.command.argv(folder), tmp_path / "output")
    problem = check_full(code, (tmp_path / "output").read_text())
    problem = problem or next((found for path in folder.glob("checkpoint-*") if (found := find_damage(path))), "")
    small_disk(100_000)
    problem = problem or continue_to_the_end(one, folder)
    tally(f"{name}: small disk", "lost" if problem else "handled")
    assert not problem
