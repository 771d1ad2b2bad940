"""Run the command line, as ``python -m understudy`` does, whatever modules the current directory has."""

from __future__ import annotations

from understudy.__main__ import main
from understudy.imports import forget_top_level

if __name__ == "__main__":
    forget_top_level()  # Python has imported `runtime` and `runtime.cluster` to get here
    main()
