"""Calls and watches an external Spark Connect endpoint, in a process that lives for as long as the endpoint answers.

    python -m runtime.spark.driver.connect_endpoint [--once]

PySpark's own client repeats an unanswered call for ten minutes. To notice a lost endpoint sooner, `ConnectService`
calls the gRPC stub directly: blocking calls, each with a deadline.

The runtime watches a driver JVM by its process. For an external endpoint it watches this process instead, which
requests the endpoint's version in a session of its own. The process ends after a few unanswered requests in a row
(Flink's `heartbeat.rpc-failure-threshold`). Its settings are in its environment, since the connection string may hold
a token. The first line of its output is the version.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from typing import Any

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from runtime.spark.driver.remote import FAILURES_VARIABLE, INTERVAL_VARIABLE, REMOTE_VARIABLE, shown_url
from runtime.spark.errors import DriverLostError
from runtime.spark.spec import CONNECT_USER

CALL_TIMEOUT_S = 10.0


class ConnectService:
    """A channel to an endpoint. Thread-safe.

    Args:
        url: its connection string, without session and user.

    Raises:
        DriverLostError: *url* is not a valid connection string.
    """

    def __init__(self, url: str) -> None:
        self._shown = shown_url(url)
        try:
            builder = DefaultChannelBuilder(url)
            self._channel: Any = builder.toChannel()
        except PySparkException as error:
            raise DriverLostError(f"spark.remote is not a Spark Connect endpoint: {error.getCondition()}") from None
        self._metadata = builder.metadata()
        self._agent = builder.userAgent
        stub: Any = base_pb2_grpc.SparkConnectServiceStub
        self._stub = stub(self._channel)

    def version(self, session_id: str) -> str:
        """Return Spark's version from within a session, which the call creates if necessary."""
        request = base_pb2.AnalyzePlanRequest(**self._head(session_id))
        request.spark_version.SetInParent()
        return str(self._call(self._stub.AnalyzePlan, request).spark_version.version)

    def interrupt(self, session_id: str) -> None:
        """Interrupt all operations of a session."""
        kind = base_pb2.InterruptRequest.INTERRUPT_TYPE_ALL
        self._call(self._stub.Interrupt, base_pb2.InterruptRequest(**self._head(session_id), interrupt_type=kind))

    def release(self, session_id: str) -> None:
        """End a session with all its operations; an unknown session is not an error."""
        self._call(self._stub.ReleaseSession, base_pb2.ReleaseSessionRequest(**self._head(session_id)))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _head(self, session_id: str) -> dict[str, Any]:
        user = base_pb2.UserContext(user_id=CONNECT_USER)
        return {"session_id": session_id, "user_context": user, "client_type": self._agent}

    def _call(self, method: Any, request: Any) -> Any:
        """Call the stub; raises `DriverLostError` if the endpoint rejects the call or does not answer."""
        try:
            return method(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            call: Any = error
            raise DriverLostError(
                f"the Spark Connect endpoint {self._shown} does not answer ({call.code().name}: {call.details()}): "
                "start it, or name another with spark.remote"
            ) from None


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _log(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)  # noqa: T201  # the driver's log


def main() -> int:
    """Watch the endpoint; return 1 when it does not answer any more."""
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
