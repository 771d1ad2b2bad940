"""The exit status of a script is the one that plain Python gives it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runtime.spark.errors import ScriptExitError
from runtime.spark.task.program import _check_exit


@pytest.mark.parametrize(
    "code", ["", "None", "0", "3", "True", "False", "-1", "255", "256", "259", "2**70", "0.0", "'no input'", "()"]
)
def test_a_script_ends_as_with_plain_python(code: str) -> None:
    plain = subprocess.run([sys.executable, "-c", f"import sys; sys.exit({code})"], capture_output=True, text=True)
    leaving = SystemExit(*([eval(code)] if code else []))
    ended: ScriptExitError | None = None
    try:
        _check_exit(leaving, "job.py")
    except ScriptExitError as error:
        ended = error
    status, text = (0, "") if ended is None else (ended.status, ended.text and f"{ended.text}\n")
    assert (status, text) == (plain.returncode, plain.stderr)
    if ended is not None and not text:
        assert str(ended) == f"job.py ended with exit status {status}"
