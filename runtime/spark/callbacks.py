"""Calls of the JVM's into a task process (`foreachBatch`, listeners of queries), which PySpark takes from anybody.

The port at which it takes them is on loopback, where every user of the machine could call the functions that wait
there, `foreachBatch`'s with a batch of his choice. Py4J can ask for a token, and the JVM's side has the task's; but it
loses it (`PythonClient.copyWith`) when PySpark tells it the port, so it is put back.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import java_gateway


def authenticate_callbacks(gateway: Any, secret: str) -> None:
    """Have whoever calls into this process show the secret of the task's own gateway; call it once in a process."""
    gateway.callback_server_parameters.auth_token = secret
    module: Any = java_gateway
    start = module.ensure_callback_server_started

    def ensure_callback_server_started(asked: Any) -> None:
        start(asked)
        client = JavaObject("GATEWAY_SERVER", asked._gateway_client).getCallbackClient()
        field = client.getClass().getSuperclass().getDeclaredField("authToken")
        field.setAccessible(True)
        field.set(client, secret)

    module.ensure_callback_server_started = ensure_callback_server_started
