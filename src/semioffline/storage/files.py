"""Write files and folders that are complete or absent, even if the process is killed or the machine stops.

Every file that is read again is written by `write_atomically`, a log by `append_line`, a folder of files inside
`whole_folder`. A failed write (a full disk, a quota, a read-only folder) is a `UserError`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from semioffline.errors import UserError

LOCK = ".lock"
PART = ".part"
"""Suffix of the names of incomplete files and folders."""
_WAIT = 2.0
"""Seconds to wait for a lock: a process that was just killed may still be ending."""
_IN_USE = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_HELD: dict[str, int] = {}
"""folder -> descriptor of its lock file, for the folders that this process has locked"""
logger = logging.getLogger(__name__)
_OPENED: list[Path] = []


def opened_folder() -> Path | None:
    """Return the output folder of this command; None before it is opened."""
    return _OPENED[-1] if _OPENED else None


def open_for_writing(folder: Path) -> None:
    """Make a folder and test that it is writable, so that an error comes now and not after hours of work."""
    probe = folder / f".write-test-{os.getpid()}{PART}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"0" * 4096)
    except OSError as error:
        raise UserError(f"cannot write in --output_dir {folder}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # it was never made
            probe.unlink()
    _OPENED[:] = [folder]


def read_content(path: Path) -> bytes:
    """Read a regular file. Pipes and devices are rejected, because reading them could wait forever."""
    if path.exists() and not path.is_file():
        raise UserError(f"cannot read {path}: it is no regular file")
    return path.read_bytes()


def _parse_int(digits: str) -> float:
    """Convert a number in JSON. Numbers that no float can hold become infinite, with and without an exponent."""
    return int(digits) if len(digits) < 300 else float(digits)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file."""
    try:
        found = json.loads(read_content(path).decode("utf-8"), parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(found).__name__}")
    return found


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file: readers see the old content or the new one, never a part of it."""
    temporary = path.with_name(path.name + PART)
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # gives the space back where the disk is full
                temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a log. A kill can leave the last line half written: see `read_log`."""
    with writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def sync_file(path: Path) -> None:
    """Make the appended lines of a log durable, if there is a log."""
    if path.exists():
        with writing(path):
            _sync(path)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a log of JSON objects, up to a line that a kill has left half written."""
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    for line in read_content(path).split(b"\n")[:-1]:  # after the last line end: nothing, or a part of a line
        try:
            entry = json.loads(line, parse_int=_parse_int)
        except (ValueError, RecursionError):
            break
        if not isinstance(entry, dict):
            break
        found.append(entry)
    return found


def keep_lines(path: Path, number: int) -> None:
    """Truncate a log after its first lines, in one step, so that a kill cannot lose any of them."""
    with writing(path):
        size = sum(len(line) + 1 for line in path.read_bytes().split(b"\n")[:number])
        if size < path.stat().st_size:
            os.truncate(path, size)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write into. It gets its final name when the block ends without an error.

    If a folder of this name exists, its files of the same names are replaced, each as a whole.
    """
    part = path.with_name(path.name + PART)
    with writing(path, part):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        _sync_tree(part)
        if path.is_dir():
            _move_files(part, path)
        else:
            os.rename(part, path)
        _sync(path.parent)


def replace_folder(new: Path, path: Path) -> None:
    """Rename a complete folder to the name of another one, which is removed. A kill leaves the old, the new or
    neither."""
    _sync_tree(new)
    old = new.with_name(new.name + "-old")
    if path.exists():
        os.rename(path, old)
    os.rename(new, path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def make_folder(path: Path) -> None:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path, part: Path | None = None) -> Iterator[None]:
    """Report a failed write in one line, with path and reason. part: a folder to remove after an error."""
    try:
        try:
            yield
        except Exception as error:
            if part is not None and not isinstance(error, (OSError, UserError)):
                _raise_reason(error, part)
            raise
        finally:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)  # gives the space back where the disk is full
    except OSError as error:
        space = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = ": make space there, then start again: what is complete stays" if space else ""
        raise UserError(f"cannot write {path}: {error.strerror or error}{hint}") from error


def _raise_reason(error: Exception, folder: Path) -> None:
    """Raise the OSError behind an error of a library that wrote into this folder: safetensors has its number in the
    message, torch does not report it."""
    if number := re.search(r"\(os error (\d+)\)", str(error)):
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    if not folder.is_dir():
        return
    probe = folder / f"probe{PART}"
    with open(probe, "wb") as file:
        file.write(bytes(2**20))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()


def _move_files(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_dir():
            shutil.rmtree(target / path.name, ignore_errors=True)
        os.replace(path, target / path.name)
    source.rmdir()


def _sync_tree(folder: Path) -> None:
    """Make all files of a folder durable."""
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable. Windows cannot open folders."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- checksums of a folder ----

SUMS = "checksums.json"


def write_sums(folder: Path) -> None:
    """Write checksums.json: size and CRC-32 of each file, which `find_damage` compares."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    sums = {path.relative_to(folder).as_posix(): [path.stat().st_size, checksum(path)] for path in paths}
    write_atomically(folder / SUMS, json.dumps(sums, indent=1))


def find_damage(folder: Path) -> str | None:
    """Return the damage in a folder with checksums; None if there is none."""
    if not (folder / SUMS).is_file():
        return f"{folder / SUMS} is missing"
    try:
        sums: dict[str, Any] = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        for name, (size, crc) in sums.items():
            path = folder / name
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_size != size or checksum(path) != crc:
                return f"{path} is damaged: it is not what was written"
    except (ValueError, TypeError, AttributeError, RecursionError):
        return f"{folder / SUMS} is damaged: it is not what was written"
    return None


def checksum(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(2**22):
            crc = zlib.crc32(block, crc)
    return crc


# ---- one process in a folder ----


def lock_folder(folder: Path) -> None:
    """Lock a folder. If another process writes into it, raise an error. The lock ends with this process, or with
    `release_locks`."""
    name = os.path.realpath(folder)
    if name in _HELD:
        return
    with writing(folder):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor)
    except (OSError, ImportError) as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace") if hasattr(os, "pread") else ""
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno in _IN_USE:
            raise UserError(
                f"{folder} is in use by another process{f' ({holder})' if holder else ''}: "
                "wait until it has ended, or name another folder"
            ) from error
        logger.warning("%s cannot be locked (%s): make sure that no other process writes into it", folder, error)
        return
    with suppress(OSError):  # a full disk: the number is for the message alone
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    _HELD[name] = descriptor


def _take(descriptor: int) -> None:
    import fcntl  # not on Windows

    deadline = time.monotonic() + _WAIT
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _IN_USE or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def is_unused(folder: Path) -> bool:
    """Return whether a folder is empty, or has only files of a command that was killed at its start."""
    return all(path.name == LOCK or path.name.endswith(PART) for path in folder.iterdir())


def release_locks() -> None:
    """Release the locks of all folders that this process has locked."""
    for descriptor in _HELD.values():
        os.close(descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):  # a forked process would hold the locks after this one has ended
    os.register_at_fork(after_in_child=release_locks)
