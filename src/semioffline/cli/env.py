"""semioffline env: print versions and devices, for a bug report."""

import json

from semioffline.cli.options import parse
from semioffline.printing import say
from semioffline.training.run_folder import versions


def run(argv: list[str]) -> None:
    parse("env", [], argv)
    say(json.dumps(versions(), indent=1))
