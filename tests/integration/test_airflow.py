"""The operator in a real Airflow: workers that are killed, jobs that fail, tasks that are deferred, killed or cleared.

Skipped where Airflow is not installed; `tests/airflow_harness.py` says how to name an environment that has it. The
decisions are shown without Airflow by `unit/test_airflow.py`.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.airflow_harness import Airflow, airflow_python, processes_of, started_airflow
from tests.cluster_harness import ROOT, Cluster, await_value, paths_below
from tests.faults.processes import kill
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.seeds import printed_seed

# Notes that it has begun, in one write, and waits for its gate: the file that its argument names.
GATED = """\
import os, sys, time
from pathlib import Path

gate = Path(sys.argv[1])
with open(f"{gate}.began", "a") as file:
    file.write(f"{os.getpid()}\\n")
print("waits for", gate.name)
while not gate.exists():
    time.sleep(0.1)
print("done:", gate.name)
"""

DAG = """\
from datetime import datetime, timedelta
from airflow.sdk import DAG
from understudy.airflow import UnderstudySubmitOperator

with DAG({dag_id!r}, schedule="@once", start_date=datetime(2026, 1, 1), catchup=False):
    UnderstudySubmitOperator.partial(
        task_id="job", script={script!r}, retries={retries}, retry_delay=timedelta(seconds=0), {arguments}
    ).expand(args={args!r})
"""


@pytest.fixture(scope="module")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """One Airflow for the tests of this file, whose connection is the tests' cluster."""
    airflow_python()  # skips before a cluster is started
    cluster: Cluster = request.getfixturevalue("cluster")
    yield from started_airflow(tmp_path_factory.mktemp("airflow"), RestClient.of(cluster))


def add_dag(airflow: Airflow, dag_id: str, script: Path, args: list[list[str]], retries: int, arguments: str) -> None:
    text = DAG.format(dag_id=dag_id, script=str(script), args=args, retries=retries, arguments=arguments)
    airflow.add_dag(dag_id, text)


def executions(gates: list[Path]) -> list[int]:
    """How often the job of each gate has begun."""
    return [len(began.read_text().splitlines()) if (began := Path(f"{gate}.began")).exists() else 0 for gate in gates]


def running(airflow: Airflow, dag_id: str) -> list[dict[str, Any]]:
    return [row for row in airflow.instances(dag_id) if row["state"] == "running" and row["pid"]]


def kill_workers(airflow: Airflow, dag_id: str, gates: list[Path], kills: int, chance: random.Random) -> Counter[str]:
    """Kill the task or the worker of each task instance, *kills* in all, at moments of chance; open its gate then."""
    killed: Counter[int] = Counter()
    parts: Counter[str] = Counter()
    wanted = Counter(number % len(gates) for number in range(kills))
    lock = threading.Lock()

    def kill_one(row: dict[str, Any]) -> None:
        with lock:
            is_worker, waits, delay_s = chance.random() < 0.4, chance.random() < 0.5, chance.uniform(0.0, 5.0)
        if waits:  # until the job runs: otherwise a worker of a busy machine rarely gets that far
            await_value(lambda: executions([gates[row["map_index"]]]) == [1] or not psutil.pid_exists(row["pid"]))
            delay_s /= 5
        time.sleep(delay_s)  # the moment of the fault, not a wait for something
        found = processes_of(row["pid"])
        if found is None:
            return
        task, worker = found
        is_worker = is_worker and worker > 1 and worker not in services
        moment = "while the job runs" if executions([gates[row["map_index"]]]) == [1] else "before"
        if kill(worker if is_worker else task):
            with lock:
                killed[row["map_index"]] += 1
                parts[f"{'worker' if is_worker else 'task'} {moment}"] += 1

    services = {service.pid for service in airflow.services}
    seen: set[tuple[int, int]] = set()
    threads: list[threading.Thread] = []

    def look() -> bool:
        for row in running(airflow, dag_id):
            number = row["map_index"]
            if (number, row["pid"]) not in seen and killed[number] < wanted[number]:
                seen.add((number, row["pid"]))
                threads.append(threading.Thread(target=kill_one, args=(row,)))
                threads[-1].start()
        for number, gate in enumerate(gates):
            if killed[number] >= wanted[number]:
                gate.touch()
        return killed.total() >= kills

    await_value(look, timeout=3600)
    for thread in threads:
        thread.join()
    for gate in gates:
        gate.touch()
    return parts


def run_killed(airflow: Airflow, tmp_path: Path, tasks: int, kills: int) -> None:
    chance = random.Random(printed_seed())
    dag_id = f"killed_{tasks}_{kills}"
    gates = [tmp_path / f"gate-{number}" for number in range(tasks)]
    script = write_job(tmp_path, GATED, "gated.py")
    add_dag(airflow, dag_id, script, [[str(gate)] for gate in gates], 100, "deferrable=False")
    began = time.monotonic()
    parts = kill_workers(airflow, dag_id, gates, kills, chance)
    rows = airflow.await_states(dag_id, tasks, "success")
    tries = [row["try_number"] for row in rows]
    found = f"{sum(executions(gates))} executions of {tasks} task instances, {sum(tries)} tries"
    sys.stdout.write(f"{kills} kills ({dict(parts)}), {found}, {time.monotonic() - began:.0f} s\n")
    assert executions(gates) == [1] * tasks
    assert sum(tries) >= tasks + kills
    assert airflow.rest.token not in airflow.task_logs(dag_id)


def test_three_workers_are_killed_and_each_job_runs_once(airflow: Airflow, tmp_path: Path) -> None:
    run_killed(airflow, tmp_path, tasks=3, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fifty_workers_are_killed_and_each_job_runs_once(airflow: Airflow, tmp_path: Path) -> None:
    run_killed(airflow, tmp_path, tasks=50, kills=50)


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
