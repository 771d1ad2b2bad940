"""The causes of errors, for messages and lists of one line each."""

from __future__ import annotations

import re

_EXCEPTION = re.compile(r"[\w.$]*(Error|Exception)(:|$)")


def cause_of(message: str) -> str:
    """Return the line of an error's text that names its cause.

    What Spark says of a failed Python function has the function's traceback in it: its exception is the cause. Of any
    other error it is the first line.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    exceptions = [line for line in lines[1:] if _EXCEPTION.match(line)]
    return exceptions[-1] if exceptions else lines[0] if lines else "no reason was given"
