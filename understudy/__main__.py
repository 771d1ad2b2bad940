"""The command line: ``understudy`` and ``python -m understudy``."""

from __future__ import annotations

import importlib


def main() -> None:
    """Entry point of the console script."""
    importlib.import_module("understudy.runtime.cluster.cli").main()


if __name__ == "__main__":
    main()
