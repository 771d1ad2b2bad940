"""The operator in a real Airflow: workers that are killed, jobs that fail, tasks that are deferred, killed or cleared.

Skipped where Airflow is not installed; `tests/airflow_harness.py` says how to name an environment that has it. The
decisions are shown without Airflow by `unit/test_airflow.py`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.airflow_harness import Airflow, airflow_python, started_airflow
from tests.airflow_kills import GATED, executions, run_killed
from tests.cluster_harness import ROOT, Cluster, await_value, paths_below
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.seeds import printed_seed


@pytest.fixture(scope="module")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """One Airflow for the tests of this file, whose connection is the tests' cluster."""
    airflow_python()  # skips before a cluster is started
    cluster: Cluster = request.getfixturevalue("cluster")
    yield from started_airflow(tmp_path_factory.mktemp("airflow"), RestClient.of(cluster))


def check_killed(airflow: Airflow, directory: Path, tasks: int, kills: int) -> None:
    killed = run_killed(airflow, directory, tasks, kills, random.Random(printed_seed()))
    sys.stdout.write(f"{killed}\n")
    assert killed.executions == [1] * tasks
    assert killed.tries >= tasks + kills
    assert airflow.rest.token not in airflow.task_logs(killed.dag_id)


def test_three_workers_are_killed_and_each_job_runs_once(airflow: Airflow, tmp_path: Path) -> None:
    check_killed(airflow, tmp_path, tasks=3, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fifty_workers_are_killed_and_each_job_runs_once(airflow: Airflow, tmp_path: Path) -> None:
    check_killed(airflow, tmp_path, tasks=50, kills=50)


KINDS = """\
from datetime import datetime, timedelta
from airflow.sdk import DAG
from understudy.airflow import UnderstudySubmitOperator

with DAG("kinds", schedule="@once", start_date=datetime(2026, 1, 1), catchup=False):
    gated = {{"script": {gated!r}, "retries": 0, "poll_interval": 0.5}}
    UnderstudySubmitOperator(task_id="deferred", args=[{gate!r} + "-d"], deferrable=True, **gated)
    UnderstudySubmitOperator(task_id="not_awaited", args=[{gate!r} + "-n"], wait=False, **gated)
    UnderstudySubmitOperator(task_id="killed", args=["{{{{ ds }}}}"], **gated)
    UnderstudySubmitOperator(task_id="killed_deferred", args=["never"], deferrable=True, **gated)
    UnderstudySubmitOperator(
        task_id="late", args=["never"], deferrable=True, execution_timeout=timedelta(seconds=20), **gated
    )
    UnderstudySubmitOperator(
        task_id="failing", script={failing!r}, retries=1, retry_delay=timedelta(seconds=0), name="fails {{{{ ds }}}}"
    )
"""
FAILING = "print('before the failure')\n1 / 0\n"


def test_tasks_that_are_deferred_killed_cleared_or_whose_job_fails(
    airflow: Airflow, cluster: Cluster, tmp_path: Path
) -> None:
    gates = [tmp_path / "gate-d", tmp_path / "gate-n"]
    gated, failing = write_job(tmp_path, GATED, "gated.py"), write_job(tmp_path, FAILING, "failing.py")
    airflow.add_dag("kinds", KINDS.format(gated=str(gated), failing=str(failing), gate=str(tmp_path / "gate")))

    def states() -> dict[str, str]:
        return {row["task_id"]: row["state"] for row in airflow.instances("kinds")}

    def jobs(task_id: str) -> list[tuple[str, str]]:
        with cluster.client() as client:
            found = [job for job in client.list_jobs() if job.name in (f"kinds.{task_id}", f"{task_id} 2026-01-01")]
        return [(str(job.job_id), job.status.value) for job in found]

    def xcoms(task_id: str) -> dict[str, Any]:
        rows = airflow.rows("SELECT key, value FROM xcom WHERE dag_id = 'kinds' AND task_id = ?", task_id)
        return {row["key"]: json.loads(row["value"]) for row in rows}

    reached = {"deferred": "deferred", "killed_deferred": "deferred", "not_awaited": "success", "killed": "running"}
    await_value(lambda: reached.items() <= states().items() and jobs("killed"))
    run_id = airflow.instances("kinds")[0]["run_id"]
    for task_id in ("killed", "killed_deferred"):
        path = f"dags/kinds/dagRuns/{quote(run_id)}/taskInstances/{task_id}"
        airflow.ask("PATCH", path, {"new_state": "failed"})
        await_value(lambda: [status for _, status in jobs(task_id)] == ["CANCELED"])  # noqa: B023

    for gate in gates:
        gate.touch()
    await_value(lambda: states()["deferred"] == "success" and states()["failing"] == "failed")
    [(job_id, status)] = jobs("deferred")
    assert (status, xcoms("deferred")["return_value"]) == ("FINISHED", job_id)
    assert xcoms("deferred")["_link_UnderstudyJobLink"] == f"{airflow.rest.url}/#/jobs/{job_id}"
    assert xcoms("not_awaited")["return_value"] == jobs("not_awaited")[0][0]
    assert [status for _, status in jobs("fails")] == ["FAILED"] * 2
    await_value(lambda: states()["late"] == "failed")
    await_value(lambda: [status for _, status in jobs("late")] == ["CANCELED"])
    logs = airflow.task_logs("kinds")
    assert "[kinds.deferred] done: gate-d" in logs
    assert re.search(r"job \w+ \(fails 2026-01-01\) is FAILED in task .*: ZeroDivisionError: division by zero", logs)

    # Airflow loses a task that is cleared while it ends the run.
    await_value(lambda: airflow.rows("SELECT state FROM dag_run WHERE dag_id = 'kinds'") == [{"state": "failed"}])
    body = {"dry_run": False, "task_ids": ["deferred"], "dag_run_id": run_id, "only_failed": False}
    airflow.ask("POST", "dags/kinds/clearTaskInstances", body)
    await_value(lambda: len(jobs("deferred")) == 2 and states()["deferred"] == "success")
    assert executions(gates[:1]) == [2]
    files = [path for path in paths_below(airflow.home) if path.is_file()]
    assert not [path for path in files if airflow.rest.token.encode() in path.read_bytes()]


def test_the_example_runs(airflow: Airflow, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "airflow_dag.py").read_text()
    for former, own in (("/opt/jobs", ROOT / "examples"), ("/data", tmp_path), ("@daily", "@once")):
        assert f'"{former}"' in text
        text = text.replace(f'"{former}"', f'"{own}"')
    airflow.add_dag("airflow_dag", text)
    airflow.await_states("understudy_nightly", 2, "success")
    assert "4 x and" in airflow.task_logs("understudy_nightly")
    assert (tmp_path / "delays" / "2026-01-01" / "by_carrier").is_dir()
