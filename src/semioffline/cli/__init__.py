"""The command line: one thin file per command."""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import os
import select
import sys
from collections.abc import Callable
from typing import IO

from semioffline.cli.help import print_known_help, wants_help
from semioffline.cli.process import count_early_end_as_error, end_soon
from semioffline.cli.recipes import announce_code, take_recipe
from semioffline.errors import UserError, unknown
from semioffline.printing import end_live_line, one_line, plain, prepare_streams, say
from semioffline.storage.files import opened_folder, release_locks

COMMANDS = {
    "run": "the whole job: from your data, a model and a reward to a better model and one table",
    "demo": "the whole job on a small synthetic task, with a tiny model: about a minute",
    "train": "train a model with one method: semioffline train METHOD --model ... --data_dir ...",
    "candidates": "generate, score and sort static targets",
    "evaluate": "decode a test set and score it, with confidence intervals",
    "compare": "train several methods from one start for the same budget, and print one table",
    "report": "write one HTML page about runs: semioffline report RUN [RUN ...]",
    "explain": "show what each word of a text does for its reward, by trying others in its place",
    "rate": "blind human ratings of outputs: semioffline rate RUN_A RUN_B ...",
    "recipes": "list the recipes in the package, for --config NAME",
    "bench": "measure what a step of every method costs on this machine",
    "env": "print versions and devices",
}
CONTINUED = ("run", "demo", "candidates", "evaluate", "compare")
"""Commands that continue where they stopped when they are repeated."""


def _be_quiet() -> None:
    """Turn off progress bars for loading weights and warnings for developers."""
    import warnings

    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging as hf_logging

    warnings.filterwarnings("ignore", category=UserWarning, module="torch.utils.data")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if logging.lastResort is not None:  # which prints our warnings
        logging.lastResort.setFormatter(_PlainFormatter())


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code. Errors for users and of the operating system are one line on stderr, with
    exit code 2.

    argv: The words of the command line; None: those of this process, which ends with the command.
    """
    if argv is not None:
        return _guarded(argv)
    count_early_end_as_error()
    code = _guarded(sys.argv[1:])
    end_soon(code)
    return code


def _guarded(argv: list[str]) -> int:
    prepare_streams()
    try:
        return _told(argv)
    except BrokenPipeError:  # of the line that says what is wrong
        if not _is_closed(sys.stderr):
            raise
        return 141
    finally:
        release_locks()


def _told(argv: list[str]) -> int:
    try:
        _run(argv)
    except UserError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        _end_bars()
        say(f"semioffline: stopped{_how_to_go_on(argv)}", error=True)
        return 130
    except Exception as error:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _is_closed(stream)]
        if closed and isinstance(error, BrokenPipeError):
            return 141  # `semioffline train gold --help | head`
        problem = _system_problem(error, str(opened_folder() or os.curdir))
        if problem is None:
            raise
        return _refuse(problem)
    return 0


def _how_to_go_on(argv: list[str]) -> str:
    if argv[0] == "train":
        return "; to continue from the last checkpoint, repeat the command with --resume"
    if argv[0] not in CONTINUED:
        return ""
    is_named = any(word.split("=")[0] == "--output_dir" for word in argv)
    folder = "" if is_named or opened_folder() is None else f" with --output_dir {opened_folder()}"
    return f"; to continue, repeat the command{folder}"


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        say("usage: semioffline COMMAND [options]\n")
        say("\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items()))
        say("\nsemioffline COMMAND --help lists a command's options.")
        return
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    if wants_help(argv):
        if print_known_help(argv):
            raise SystemExit(0)
    else:
        announce_code(*take_recipe(argv[1:]))
    command(argv[0])(argv[1:])


def command(name: str) -> Callable[[list[str]], None]:
    """Return the function that runs a command.

    The garbage collector is off while torch and Transformers are imported: it would find nothing, and take a fifth of
    the time. Afterwards it skips the imported objects: each full collection (Transformers' trainer makes some) would
    take a quarter of a second.
    """
    module, was_enabled = f"semioffline.cli.{name}", gc.isenabled()
    is_new = module not in sys.modules
    gc.disable()
    try:
        _be_quiet()
        return importlib.import_module(module).run
    finally:
        if is_new:
            gc.freeze()
        if was_enabled:
            gc.enable()


def _end_bars() -> None:
    """Close progress bars that an error has left open, so that the error has a line of its own."""
    from tqdm import tqdm

    end_live_line()
    for bar in list(getattr(tqdm, "_instances", ())):  # of other libraries
        bar.close()


def _refuse(message: str) -> int:
    _end_bars()
    try:
        say(f"semioffline: error: {one_line(message)}", error=True)
    except BrokenPipeError:
        raise
    except OSError:  # stderr is on a full disk, too
        pass
    return 2


def _is_closed(stream: IO[str]) -> bool:
    """Return whether this is a pipe that nobody reads any more. Output that is not yet written is then dropped."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not a file, as in tests and notebooks
        return False
    pipe = select.poll()
    pipe.register(descriptor, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in pipe.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return True


_PROGRAMMING = {errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ESPIPE, errno.ECHILD, errno.ENOTTY}
"""Errors of the operating system that mean a bug in the program."""
_IN_LIBRARIES = {
    "No space left on device": "No space left on device",
    "Disk quota exceeded": "Disk quota exceeded",
    "PytorchStreamWriter failed": "the file could not be written: is the disk full?",
    "unexpected pos": "the file could not be written: is the disk full?",
}
"""Messages of C++ and Rust libraries about a full disk -> the message to print."""


def _system_problem(error: Exception, folder: str) -> str | None:
    """Return the line to print for an error of the operating system: path and reason; None for any other error. folder:
    named if the error has no path."""
    if not isinstance(error, OSError):
        reason = next((told for part, told in _IN_LIBRARIES.items() if part in str(error)), None)
        return None if reason is None else f"cannot write in {folder}: {reason}"
    if error.errno is None:  # of a library, such as a model that cannot be downloaded
        return str(error) if str(error) and not isinstance(error, TimeoutError) else None
    if error.errno in _PROGRAMMING:
        return None
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, (str, bytes))]
    return f"cannot read or write {' and '.join(paths) or folder}: {error.strerror or error}"
