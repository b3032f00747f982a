"""Files and folders are complete or absent, logs lose no line, and a folder has one process that writes into it."""

import ast
import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import semioffline
from semioffline.errors import UserError
from semioffline.storage.files import (
    append_line,
    find_damage,
    keep_lines,
    lock_folder,
    read_json,
    read_log,
    release_locks,
    replace_folder,
    whole_folder,
    write_atomically,
    write_sums,
)
from semioffline.training.run_folder import open_folder

PACKAGE = Path(semioffline.__file__).parent
WRITERS = {"write_text", "write_bytes", "dump", "to_parquet", "to_csv", "to_pickle", "savefig", "save_pretrained"}
WRITERS |= {"save_file", "save_to_json", "save_to_disk", "write_table", "savetxt", "tofile"}
ALLOWED = {
    ("cli/__init__.py", "open"): "the null device, when a pipe is closed",
    ("engines/processes.py", "open"): "log.txt: what a process prints is added to it",
    ("methods/shared/critic.py", "save_file"): "into a folder that gets its name when it is complete",
    ("methods/shared/frozen.py", "save_file"): "into a folder that gets its name when it is complete",
    ("methods/shared/perturbed.py", "save_file"): "into a folder that gets its name when it is complete",
    ("policy/policy.py", "save_pretrained"): "into a folder that gets its name when it is complete",
    ("report/plots.py", "savefig"): "into memory",
    ("rewards/containment.py", "open"): "the null device, in the place of a stream that is closed",
    ("training/checkpoints.py", "save_to_json"): "into a folder that gets its name when it is complete",
    ("training/run_log.py", "write_table"): "into memory",
}
"""(file, call) -> why it may write without `semioffline.storage.files`"""


@pytest.fixture(autouse=True)
def unlocked() -> Iterator[None]:
    yield
    release_locks()


def writes(path: Path) -> Iterator[str]:
    """The calls of a file that write files: by name, with the mode of `open`; `text.replace(a, b)` does not."""
    for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
        function = call.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        words = [
            node.value for node in [*call.args, *(k.value for k in call.keywords)] if isinstance(node, ast.Constant)
        ]
        modes = [
            word for word in words if isinstance(word, str) and set(word) <= set("rwaxbt+") and set(word) & set("wax+")
        ]
        moves = name in ("rename", "replace") and (
            owner == "os" or (owner and len(call.args) == 1 and not call.keywords)
        )
        saves = name == "save" and owner in ("torch", "np", "numpy", "safetensors.torch")
        opens = name == "open" and (modes or re.search("O_WRONLY|O_RDWR", ast.unparse(call)))
        if opens or moves or saves or name in WRITERS or (name == "to_json" and call.args):
            yield name


def test_nothing_else_writes_files() -> None:
    """So that a kill at any moment and a full disk leave nothing that is half written where it is read again."""
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        if path.name != "files.py"
        for name in writes(path)
    }
    assert found - ALLOWED.keys() == set(), "write it with semioffline.storage.files, or say here why not"
    assert ALLOWED.keys() - found == set(), "these do not write any more"


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    write_atomically(path, "né\nw")
    assert path.read_text(encoding="utf-8") == "né\nw"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"cannot write .*result.json: No space left on device: make space there"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "model") as part:
        (part / "weights").write_text("1")
        assert not (tmp_path / "model").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "weights"]


def test_a_folder_that_is_there_keeps_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "weights").write_text("0")
    with whole_folder(tmp_path) as part:
        (part / "weights").write_text("1")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"notes.txt": "mine", "weights": "1"}


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with whole_folder(tmp_path / "model") as part:
            (part / "weights").write_text("1")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_hides_why_it_cannot_write_is_understood(tmp_path: Path) -> None:
    """safetensors: its error is no OSError, and it removes the file, so that there is space again."""

    def fail() -> None:
        with whole_folder(tmp_path / "model"):
            raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(UserError, match=r"cannot write .*model: No space left on device: make space"):
        fail()


def test_a_folder_is_replaced_by_a_complete_one(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("1")
    replace_folder(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "new"]


def test_a_line_that_is_half_written_is_cut_off_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    for step in range(3):
        append_line(path, f'{{"step": {step}}}')
    with open(path, "a") as file:
        file.write('{"step": 3')
    lines = read_log(path)
    assert [line["step"] for line in lines] == [0, 1, 2]
    keep_lines(path, len(lines))
    append_line(path, '{"step": 3}')
    assert [line["step"] for line in read_log(path)] == [0, 1, 2, 3]
    keep_lines(path, 1)
    assert path.read_text() == '{"step": 0}\n'


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "sums"])
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "weights"
    path.write_bytes(bytes(100))
    assert find_damage(tmp_path) == f"{tmp_path / 'checksums.json'} is missing"
    write_sums(tmp_path)
    assert find_damage(tmp_path) is None
    if damage == "missing":
        path.unlink()
    elif damage == "sums":
        path = tmp_path / "checksums.json"
        path.write_text("{")
    else:
        path.write_bytes(bytes(50) if damage == "cut" else bytes(99) + b"1")
    found = find_damage(tmp_path)
    assert found is not None
    assert str(path) in found


def test_a_folder_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    """Until it has ended, also by SIGKILL and where it has left a forked process. One process may open it twice."""
    script = f"""
import os, time
from pathlib import Path
from semioffline.storage.files import lock_folder
lock_folder(Path({str(tmp_path)!r}))
forked = os.fork()
if forked:
    print(forked, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        forked = int(other.stdout.readline())
        try:
            with pytest.raises(UserError, match=rf"in use by another process \({other.pid}\): wait until it has ended"):
                open_folder(tmp_path)
            other.kill()
            other.wait()
            for _ in range(2):
                assert open_folder(tmp_path) == tmp_path
        finally:
            os.kill(forked, signal.SIGKILL)


def test_where_folders_cannot_be_locked_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock_folder(tmp_path)
    assert "cannot be locked" in caplog.text
    assert "No locks available" in caplog.text


def test_what_is_no_regular_file_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_log):
        with pytest.raises(UserError, match="pipe: it is no regular file"):
            read(tmp_path / "pipe")


def test_a_line_that_is_nested_too_deeply_ends_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"step": 1}\n' + "[" * 100_000 + "\n")
    assert read_log(tmp_path / "log") == [{"step": 1}]
