"""The causes of errors, in one line."""

from __future__ import annotations

import pytest

from runtime.causes import cause_of
from runtime.protocol.execution_state import ErrorInfo, FailureKind

PROXY = """[STREAM_FAILED] Query [id = 1] terminated with exception: Reason: Return Message: \
Traceback (most recent call last):
  File "/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: this row is poison
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no reason was given"),
        ("\n  ValueError: no \nmore of it", "ValueError: no"),
        (PROXY, "ValueError: this row is poison"),
    ],
)
def test_an_error_is_told_in_one_line(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_a_failure_names_its_cause() -> None:
    failure = ErrorInfo(FailureKind.USER_CODE, "StreamingQueryException", PROXY)
    assert failure.cause == "ValueError: this row is poison"
    assert ErrorInfo(FailureKind.RUNTIME, "TaskLost", "").cause == "TaskLost"
