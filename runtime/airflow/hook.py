"""Airflow's hook: from a connection to a client of a cluster."""

from __future__ import annotations

from typing import Any

from airflow.exceptions import AirflowException
from airflow.sdk import BaseHook

from runtime.airflow.attached import TaskFailedError, open_cluster, readable_errors
from runtime.airflow.task_jobs import DEFAULT_CONN_ID, Access
from runtime.notebook import Cluster


class UnderstudyHook(BaseHook):
    """Connects to the cluster of an Airflow connection of the type ``understudy``.

    Its fields are described in ``docs/airflow.md``. The password is the token; Airflow masks it in logs.

    Args:
        conn_id: the connection's id.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "understudy"
    hook_name = "Understudy"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.conn_id = conn_id

    def access(self) -> Access:
        """Return how the connection reaches its cluster.

        Raises:
            AirflowException: there is no such connection, or its fields name no cluster.
        """
        found = self.get_connection(self.conn_id)
        try:
            with readable_errors():
                return Access.of(
                    self.conn_id, found.schema, found.host, found.port, found.password, found.extra_dejson or {}
                )
        except TaskFailedError as error:
            raise AirflowException(str(error)) from None

    def get_conn(self) -> Cluster:
        """Return a handle of the cluster, as `understudy.connect` does; close it after use.

        Raises:
            AirflowException: it cannot be reached, or does not accept the token.
        """
        try:
            return open_cluster(self.access())
        except TaskFailedError as error:
            raise AirflowException(str(error)) from None

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the cluster answers, and a line for the web page that says so or why not."""
        try:
            with self.get_conn() as cluster, readable_errors():
                overview = cluster.overview()
                address = cluster.address
        except (AirflowException, TaskFailedError) as error:
            return False, str(error)
        return True, f"{address} answers: {overview.slots} slots"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return how the web page shows the fields of a connection."""
        return {
            "hidden_fields": ["login"],
            "relabeling": {"schema": "Scheme (http, https)", "password": "Token", "host": "Host, or addresses"},
            "placeholders": {
                "host": "host, or https://a:8081,https://b:8081",
                "port": "8081",
                "extra": '{"ca_file": "/etc/understudy/ca.pem", "namespace": "production"}',
            },
        }
