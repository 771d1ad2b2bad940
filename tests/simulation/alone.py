"""Tests of whole runs, each in a Python process of its own.

What other tests leave in a process (caches of the product, environment variables) must not change a trace.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300.0


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test function, with arguments that `repr` can write, in a process of its own."""

    @functools.wraps(test)
    def in_its_process(*args: object, **kwargs: object) -> None:
        passed = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        program = f"import {test.__module__} as module; module.{test.__name__}.__wrapped__({passed})"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return in_its_process
