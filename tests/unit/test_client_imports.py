"""The command line starts quickly: it imports nothing that only the cluster's own processes need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "pandas", "py4j", "pyspark", "redis", "thespian")


def test_the_command_line_imports_nothing_that_is_the_clusters_own() -> None:
    modules = "runtime.cluster.cli, runtime.cluster.deployment, runtime.cluster.logs, runtime.job_file"
    code = f"import sys, {modules}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_and_completion_load_no_client() -> None:
    unneeded = "actors", "blob", "rich", "runtime.client", "runtime.cluster.views", "tempfile"
    code = f"import sys, runtime.cluster.cli; print(*(name for name in {unneeded!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
