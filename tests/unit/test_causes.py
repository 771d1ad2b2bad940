"""The causes of errors, in one line."""

from __future__ import annotations

import pytest

from runtime.causes import LIMIT, cause_of
from runtime.protocol.execution_state import ErrorInfo, FailureKind

PROXY = """[STREAM_FAILED] Query [id = 1] terminated with exception: Reason: Return Message: \
Traceback (most recent call last):
  File "/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: this row is poison
"""


JAVA = """Py4JJavaError: An error occurred while calling o34.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
\tat org.apache.spark.rdd.RDD.collect(RDD.scala:1045)
Caused by: java.io.IOException: Input path does not exist: file:/none
\tat org.apache.hadoop.mapred.FileInputFormat.singleThreadedListStatus(FileInputFormat.java:304)
\t... 31 more
"""
PYTHON_IN_JAVA = """Py4JJavaError: An error occurred while calling o34.count.
: org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 3, in rate
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
ANALYSIS = """AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found; line 1 pos 14;
'Project [*]
+- 'UnresolvedRelation [t], [], false
"""
SENTENCES = "SparkException: " + "It failed. " * 40


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (JAVA, "java.io.IOException: Input path does not exist: file:/none"),
        ("Py4JError: An error occurred\n: java.lang.Error\n\tat x", "java.lang.Error"),
        (PYTHON_IN_JAVA, "ZeroDivisionError: division by zero"),
        (ANALYSIS, ANALYSIS.splitlines()[0]),
        ("", "no reason was given"),
        ("\n  ValueError: no \nmore of it", "ValueError: no"),
        (PROXY, "ValueError: this row is poison"),
    ],
)
def test_an_error_is_told_in_one_line(text: str, cause: str) -> None:
    assert cause_of(text) == cause


@pytest.mark.parametrize(
    "text", [SENTENCES, "ValueError: " + "word " * 100, "x" * 1000, JAVA.replace("none", "n" * 500)]
)
def test_a_long_cause_is_cut(text: str) -> None:
    assert len(cause_of(text)) <= LIMIT
    assert cause_of(text).endswith(" ...")
    assert cause_of(text).startswith((text[:100], "java.io.IOException: "))
    assert cause_of(SENTENCES).endswith(" It failed. ...")


def test_a_failure_names_its_cause() -> None:
    failure = ErrorInfo(FailureKind.USER_CODE, "StreamingQueryException", PROXY)
    assert failure.cause == "ValueError: this row is poison"
    assert ErrorInfo(FailureKind.RUNTIME, "TaskLost", "").cause == "TaskLost"
