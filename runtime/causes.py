"""The causes of errors, for messages and lists of one line each."""

from __future__ import annotations

import re

LIMIT = 300
"""Largest number of characters of a cause."""

_EXCEPTION = re.compile(r"(?:: |Caused by: )?([\w.$]*(?:Error|Exception)(?::.*|$))")


def cause_of(message: str) -> str:
    """Return the line of an error's text that names its cause, cut to `LIMIT` characters.

    Spark's text for a failed Python function holds the function's traceback, whose exception is the cause. In its text
    for a Java failure, the cause is the last ``Caused by``, without the stack. For any other error it is the first
    line.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    exceptions = [found[1] for line in lines[1:] if (found := _EXCEPTION.match(line))]
    return _cut(exceptions[-1] if exceptions else lines[0] if lines else "no reason was given")


def _cut(line: str) -> str:
    """Cut a long line after its last whole sentence, or word."""
    if len(line) <= LIMIT:
        return line
    begun = line[: LIMIT - 4]
    sentence = begun.rfind(". ") + 1
    end = sentence if sentence > LIMIT // 2 else begun.rfind(" ")
    return f"{begun[: end if end > 0 else None].rstrip()} ..."
