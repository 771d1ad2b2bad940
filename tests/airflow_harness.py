"""A real Airflow for tests: its API server, scheduler, DAG processor and triggerer, as processes on loopback.

Airflow is not among the tests' packages. `UNDERSTUDY_AIRFLOW` names the Python of an environment that has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster_harness import ROOT, await_value
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

VARIABLE = "UNDERSTUDY_AIRFLOW"
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")


MISSING = (
    "needs Airflow, which is not among the tests' packages: pip install -e '.[airflow]' into an environment, "
    f"and {VARIABLE}=its bin/python"
)


def find_airflow() -> str:
    """The Python that has Airflow; empty if there is none."""
    named = os.environ.get(VARIABLE, "")
    return named or (sys.executable if importlib.util.find_spec("airflow") else "")


def airflow_python() -> str:
    """The Python that has Airflow; skips the test if there is none."""
    return find_airflow() or pytest.skip(MISSING)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Airflow:
    """An Airflow in a directory.

    Args:
        home: its directory; ``dags`` in it has its DAGs.
        python: the Python that has Airflow.
        rest: the web endpoint of the cluster of the connection ``understudy_default``.
    """

    home: Path
    python: str
    rest: RestClient
    port: int = field(default_factory=free_port)
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        """Variables of its processes."""
        connection = {"conn_type": "understudy", "host": self.rest.url, "password": self.rest.token}
        settings = {
            "core__load_examples": "False",
            "core__dags_are_paused_at_creation": "False",
            "core__executor": "LocalExecutor",
            "core__parallelism": "4",
            "core__execution_api_server_url": f"http://127.0.0.1:{self.port}/execution/",
            "core__simple_auth_manager_all_admins": "True",
            "core__min_serialized_dag_update_interval": "1",
            "api__host": "127.0.0.1",
            "api__port": str(self.port),
            "api__workers": "1",
            "api__secret_key": self._secret,
            "api_auth__jwt_secret": self._secret,
            "dag_processor__refresh_interval": "2",
            "dag_processor__min_file_process_interval": "5",
            "logging__worker_log_server_port": str(free_port()),
            "logging__trigger_log_server_port": str(free_port()),
            "triggerer__job_heartbeat_sec": "1",
            "scheduler__job_heartbeat_sec": "1",
            "scheduler__scheduler_idle_sleep_time": "0.2",
            "scheduler__task_instance_heartbeat_timeout": "15",
            "scheduler__task_instance_heartbeat_timeout_detection_interval": "2",
            "workers__min_heartbeat_interval": "1",
        }
        named = {f"AIRFLOW__{name.upper()}": value for name, value in settings.items()}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "UNDERSTUDY"))}
        return {
            **kept,
            **named,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW_CONN_UNDERSTUDY_DEFAULT": json.dumps(connection),
            "PYTHONPATH": str(ROOT),
        }

    _secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def start(self) -> None:
        """Make its database and start its processes."""
        (self.home / "dags").mkdir(parents=True, exist_ok=True)
        self.run("db", "migrate")
        for name in SERVICES:
            if name != SERVICES[0]:
                await_value(self._is_served)  # tasks that cannot reach it fail
            with (self.home / f"{name}.log").open("wb") as log:
                self.services.append(
                    subprocess.Popen(
                        self._command(name), env=self.environ, stdout=log, stderr=log, start_new_session=True
                    )
                )

    def _is_served(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def run(self, *words: str) -> str:
        """Run one command to its end."""
        done = subprocess.run(
            self._command(*words), env=self.environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _command(self, *words: str) -> list[str]:
        return [self.python, "-m", "airflow", *words]

    def stop(self) -> None:
        """Kill all its processes, also workers whose parent was killed."""
        groups = {service.pid for service in self.services}
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) in groups:
                    process.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        for service in self.services:
            service.wait()

    def logs(self) -> str:
        """The ends of its processes' logs."""
        return "\n".join(
            f"--- {name}\n{(self.home / f'{name}.log').read_text(errors='replace')[-3000:]}" for name in SERVICES
        )

    def add_dag(self, name: str, text: str) -> None:
        """Write a DAG file at once, so that no half of it is read."""
        draft = self.home / f"{name}.draft"
        draft.write_text(text)
        draft.rename(self.home / "dags" / f"{name}.py")

    def rows(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        """Rows of its database."""
        with closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=60)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, arguments)]

    def instances(self, dag_id: str) -> list[dict[str, Any]]:
        """The task instances of a DAG."""
        return self.rows(
            "SELECT task_id, map_index, run_id, state, try_number, pid FROM task_instance WHERE dag_id = ? "
            "ORDER BY task_id, map_index",
            dag_id,
        )

    def await_states(self, dag_id: str, count: int, *states: str) -> list[dict[str, Any]]:
        """Wait until a DAG has this many task instances, all in one of these states."""

        def look() -> list[dict[str, Any]] | None:
            ended = [service.args for service in self.services if service.poll() is not None]
            assert not ended, f"{ended} ended\n{self.logs()}"
            found = self.instances(dag_id)
            wrong = [row for row in found if row["state"] in ("failed", "success") and row["state"] not in states]
            assert not wrong, f"{wrong}\n{self.task_logs(dag_id)[-6000:]}"
            return found if len(found) == count and all(row["state"] in states for row in found) else None

        return list(await_value(look))

    def task_logs(self, dag_id: str) -> str:
        """All task logs of a DAG."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted((self.home / "logs").glob(f"dag_id={dag_id}/**/*.log"))
        )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to its REST API."""
        base = f"http://127.0.0.1:{self.port}"
        with urllib.request.urlopen(f"{base}/auth/token", timeout=PATIENCE_S) as reply:
            token = json.loads(reply.read())["access_token"]
        request = urllib.request.Request(
            f"{base}/api/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return json.loads(reply.read() or b"null")


def processes_of(pid: int) -> tuple[int, int] | None:
    """The process of a task and that of its worker; None if the task has ended."""
    try:
        return pid, psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None


def started_airflow(home: Path, rest: RestClient) -> Iterator[Airflow]:
    """Start an Airflow whose connection is that endpoint, and stop it."""
    airflow = Airflow(home, airflow_python(), rest)
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop()
