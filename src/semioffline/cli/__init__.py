"""The command line: one file for each command, thin."""

from __future__ import annotations

import importlib
import os
import sys

from semioffline.cli.recipes import announce_code, take_recipe
from semioffline.errors import UserError, unknown
from semioffline.files import release_locks

COMMANDS = {
    "demo": "train and compare M-FT and semi-offline RL on a small synthetic task",
    "train": "train a model with one method: semioffline train METHOD --model ... --data_dir ...",
    "candidates": "generate, score and sort static targets",
    "evaluate": "decode a test set and score it, with confidence intervals",
    "compare": "train several methods from one start for the same budget, and print one table",
    "bench": "measure what a step of every method costs on this machine",
    "env": "print versions and devices",
}
HELP = {"-h", "--help", "--help-all"}
GOES_ON = {"train": "; --resume goes on from the last checkpoint"}
GOES_ON |= dict.fromkeys(("candidates", "evaluate", "compare"), "; the same command again goes on where it was")


def _be_quiet() -> None:
    """Only what the user asked for: no bars for loading weights, no notes to developers."""
    import warnings

    from transformers.utils import logging

    warnings.filterwarnings("ignore", category=UserWarning, module="torch.utils.data")
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main(argv: list[str] | None = None) -> int:
    """Errors meant for the user are one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if not argv or argv[0] in ("-h", "--help"):
            print("usage: semioffline COMMAND [options]\n")
            print("\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items()))
            print("\nsemioffline COMMAND --help lists a command's options.")
            return 0
        if argv[0] not in COMMANDS:
            raise unknown("command", argv[0], COMMANDS)
        if not HELP & set(argv):
            announce_code(*take_recipe(argv[1:]))
        _be_quiet()
        importlib.import_module(f"semioffline.cli.{argv[0]}").run(argv[1:])
    except UserError as error:
        print(f"semioffline: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `semioffline train gold --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print(f"semioffline: stopped{GOES_ON.get(argv[0], '')}", file=sys.stderr)
        return 130
    finally:
        release_locks()
    return 0
