"""Streaming queries whose operators run Python, on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from tests.waiting import PATIENCE_S

_LATE = "Python worker failed to connect back"


def run_to_its_end(start: Callable[[], StreamingQuery]) -> None:
    """Start a query and wait for its end; start it again where Spark did not wait long enough for a new Python.

    Spark gives up a Python that has not connected after 10 s (`PythonWorkerFactory`), and has no setting for that
    time. A job with such a query is restarted by its restart strategy.

    Raises:
        StreamingQueryException: the query has failed for another reason.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            start().awaitTermination()
        except StreamingQueryException as error:
            if _LATE not in str(error) or time.monotonic() > deadline:
                raise
        else:
            return
