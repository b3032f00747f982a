"""python -m semioffline.cli.child COMMAND ...: a command that ends when the process that started it does.

That process holds the other end of the standard input. It writes nothing, and the system closes it however it ends.
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
