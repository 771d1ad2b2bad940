"""The command line: ``understudy`` and ``python -m understudy``."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Entry point of the console script; Ctrl-C ends it without a traceback, also while it is imported."""
    try:
        importlib.import_module("understudy.runtime.cluster.cli").main()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
