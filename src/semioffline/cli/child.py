"""python -m semioffline.cli.child COMMAND ...: run a command that ends when the process that started it ends.

The starting process holds the other end of the standard input and writes nothing. The system closes it however that
process ends.
"""

from __future__ import annotations

import os
import sys
import threading


def end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    from semioffline.cli import main

    sys.exit(main())
