"""semioffline env: what a bug report needs."""

import json

from semioffline.cli.options import parse
from semioffline.cli.run_folder import versions
from semioffline.printing import say


def run(argv: list[str]) -> None:
    parse("env", [], argv)
    say(json.dumps(versions(), indent=1))
