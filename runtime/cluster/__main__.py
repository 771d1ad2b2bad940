"""Run the command line, as ``python -m understudy`` does, whichever modules are in the current directory."""

from __future__ import annotations

from understudy.__main__ import main
from understudy.imports import forget_top_level

if __name__ == "__main__":
    forget_top_level()  # Python has imported `runtime` and `runtime.cluster` to find this module
    main()
