"""semioffline env: what a bug report needs."""

import json

from semioffline.cli.options import parse
from semioffline.cli.run_folder import versions


def run(argv: list[str]) -> None:
    parse("env", [], argv)
    print(json.dumps(versions(), indent=1))
