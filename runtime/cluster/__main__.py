"""``python -m runtime.cluster``: the command line, whatever modules the current directory or a job's project has."""

from __future__ import annotations

from understudy.__main__ import main
from understudy.imports import forget_top_level

if __name__ == "__main__":
    forget_top_level()  # Python has imported `runtime` and `runtime.cluster` to get here
    main()
