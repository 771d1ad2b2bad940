"""The process that stands for a Spark Connect endpoint of somebody else's: it lives for as long as that answers.

    python -m runtime.spark.remote_monitor [--once]

Everything that watches a driver JVM watches its process. Here that is this one, which asks the endpoint for its
version, in a session of its own, and ends when it has had no answer a few times in a row (Flink's
`heartbeat.rpc-failure-threshold`). The settings are in its environment: the connection string may hold a token. The
first line of its output is the version.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid

from runtime.spark.connect_service import ConnectService
from runtime.spark.errors import DriverLostError
from runtime.spark.remote import FAILURES_VARIABLE, INTERVAL_VARIABLE, REMOTE_VARIABLE


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _log(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)  # noqa: T201  # the driver's log


def main() -> int:
    """Watch the endpoint; returns 1 when it does not answer any more."""
    signal.signal(signal.SIGTERM, _end)
    session = str(uuid.uuid4())
    try:
        service = ConnectService(os.environ[REMOTE_VARIABLE])
        print(service.version(session), flush=True)  # noqa: T201
    except DriverLostError as error:
        print(f"error: {error}", flush=True)  # noqa: T201
        return 1
    try:
        return 0 if "--once" in sys.argv else _watch(service, session)
    finally:
        try:
            service.release(session)
        except DriverLostError:
            _log("its session is left to the endpoint")


def _watch(service: ConnectService, session: str) -> int:
    interval_s, most = float(os.environ[INTERVAL_VARIABLE]), int(os.environ[FAILURES_VARIABLE])
    failures = 0
    while failures < most:
        time.sleep(interval_s)
        try:
            service.version(session)
            failures = 0
        except DriverLostError as error:
            failures += 1
            _log(str(error))
    _log(f"it has not answered {most} times: its tasks are lost")
    return 1


if __name__ == "__main__":
    sys.exit(main())
