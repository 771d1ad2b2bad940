"""The command line starts quickly: it imports nothing that only the cluster's own processes need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "pandas", "py4j", "pyspark", "redis", "thespian")


def test_the_command_line_imports_nothing_that_is_the_clusters_own() -> None:
    code = f"import sys, runtime.cluster.commands; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
