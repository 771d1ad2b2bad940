"""The calls that a Spark Connect endpoint of somebody else's takes from us, blocking, each with its deadline.

PySpark's own client repeats what an endpoint does not answer for ten minutes. Whoever is to notice that it is gone
needs an answer sooner, so these go past it, to the gRPC stub.
"""

from __future__ import annotations

from typing import Any

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from runtime.spark.errors import DriverLostError
from runtime.spark.remote import shown_url
from runtime.spark.spec import CONNECT_USER

CALL_TIMEOUT_S = 10.0


class ConnectService:
    """A channel to an endpoint. Thread-safe.

    Args:
        url: its connection string, without session and user.

    Raises:
        DriverLostError: it is no connection string.
    """

    def __init__(self, url: str) -> None:
        self._shown = shown_url(url)
        try:
            builder = DefaultChannelBuilder(url)
            self._channel: Any = builder.toChannel()
        except PySparkException as error:
            raise DriverLostError(f"spark.remote is no Spark Connect endpoint: {error.getCondition()}") from None
        self._metadata = builder.metadata()
        self._agent = builder.userAgent
        stub: Any = base_pb2_grpc.SparkConnectServiceStub
        self._stub = stub(self._channel)

    def version(self, session_id: str) -> str:
        """Spark's version, as a session sees it; the session comes to be."""
        request = base_pb2.AnalyzePlanRequest(**self._head(session_id))
        request.spark_version.SetInParent()
        return str(self._call(self._stub.AnalyzePlan, request).spark_version.version)

    def interrupt(self, session_id: str) -> None:
        """Interrupt all that a session runs."""
        kind = base_pb2.InterruptRequest.INTERRUPT_TYPE_ALL
        self._call(self._stub.Interrupt, base_pb2.InterruptRequest(**self._head(session_id), interrupt_type=kind))

    def release(self, session_id: str) -> None:
        """End a session with all that it runs; one that never was is no error."""
        self._call(self._stub.ReleaseSession, base_pb2.ReleaseSessionRequest(**self._head(session_id)))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _head(self, session_id: str) -> dict[str, Any]:
        user = base_pb2.UserContext(user_id=CONNECT_USER)
        return {"session_id": session_id, "user_context": user, "client_type": self._agent}

    def _call(self, method: Any, request: Any) -> Any:
        """Raises `DriverLostError`: the endpoint refuses, or does not answer."""
        try:
            return method(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            call: Any = error
            raise DriverLostError(
                f"the Spark Connect endpoint {self._shown} does not answer ({call.code().name}: {call.details()}): "
                "start it, or name another with spark.remote"
            ) from None
