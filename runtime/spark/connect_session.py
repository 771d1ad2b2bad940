"""A session of PySpark's Connect client in a process that may have a classic Spark of its own, such as a notebook."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runtime.spark.errors import DriverLostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from runtime.spark.driver.jvm_driver import JvmDriver

CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""Variable that PySpark sets with its first Connect session, and leaves: its functions make Connect's columns then."""

_lock = threading.Lock()
_open = 0
_before: str | None = None


@contextlib.contextmanager
def connect_session(url: str, driver: JvmDriver) -> Iterator[SparkSession]:
    """Open a session at a Connect endpoint for the length of a `with`; afterwards the process is as it was before.

    Args:
        url: connection string of the endpoint.
        driver: serves it. PySpark's client repeats its calls for minutes, in case a server comes back; the port of a
            driver that has ended does not.

    Raises:
        DriverLostError: the driver has ended, so that the body failed.
    """
    from pyspark.sql import SparkSession

    with _connect_mode():
        spark: Any = SparkSession.builder.remote(url).create()
        spark.client.set_retry_policies([_while_alive(driver)])
        try:
            yield spark
        except Exception as error:
            if driver.alive:
                raise
            raise DriverLostError(driver.loss) from error
        finally:
            spark.stop()


def _while_alive(driver: JvmDriver) -> Any:
    """Return PySpark's own policy for repeated calls, which gives up once the driver has ended."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    class WhileAlive(DefaultPolicy):
        def can_retry(self, e: BaseException) -> bool:
            return driver.alive and super().can_retry(e)

    return WhileAlive()


@contextlib.contextmanager
def _connect_mode() -> Iterator[None]:
    """Restore `CONNECT_MODE` when the last of several sessions has ended."""
    global _open, _before
    with _lock:
        if _open == 0:
            _before = os.environ.get(CONNECT_MODE)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0 and _before is None:
                os.environ.pop(CONNECT_MODE, None)
            elif _open == 0 and _before is not None:
                os.environ[CONNECT_MODE] = _before
