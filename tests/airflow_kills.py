"""Kills tasks and workers of an Airflow, while each of its task instances runs a job; counts the jobs' executions."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.airflow_harness import Airflow, processes_of
from tests.cluster_harness import await_value
from tests.faults.processes import kill
from tests.job_files import write_job

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
        task_id="job", script={script!r}, retries=100, retry_delay=timedelta(seconds=0), deferrable=False
    ).expand(args={args!r})
"""


def executions(gates: list[Path]) -> list[int]:
    """How often the job of each gate has begun."""
    return [len(began.read_text().splitlines()) if (began := Path(f"{gate}.began")).exists() else 0 for gate in gates]


def _running(airflow: Airflow, dag_id: str) -> list[dict[str, Any]]:
    return [row for row in airflow.instances(dag_id) if row["state"] == "running" and row["pid"]]


def _kill_workers(airflow: Airflow, dag_id: str, gates: list[Path], kills: int, chance: random.Random) -> Counter[str]:
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
        for row in _running(airflow, dag_id):
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


@dataclass(frozen=True)
class Killed:
    """The outcome of jobs whose tasks and workers were killed.

    Args:
        dag_id: of their DAG.
        executions: of each job.
        tries: of all task instances.
        parts: how often a task or a worker was killed, and when.
        seconds: what it took.
    """

    dag_id: str
    executions: list[int]
    tries: int
    parts: Counter[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.parts.total()} kills ({dict(self.parts)}), {sum(self.executions)} executions of "
            f"{len(self.executions)} task instances, {self.tries} tries, {self.seconds:.0f} s"
        )


def run_killed(airflow: Airflow, directory: Path, tasks: int, kills: int, chance: random.Random) -> Killed:
    """Run a DAG of that many task instances to its end, and kill that many of their processes."""
    dag_id = f"killed_{tasks}_{kills}"
    gates = [directory / f"gate-{number}" for number in range(tasks)]
    script = write_job(directory, GATED, "gated.py")
    airflow.add_dag(dag_id, DAG.format(dag_id=dag_id, script=str(script), args=[[str(gate)] for gate in gates]))
    began = time.monotonic()
    parts = _kill_workers(airflow, dag_id, gates, kills, chance)
    rows = airflow.await_states(dag_id, tasks, "success")
    tries = sum(row["try_number"] for row in rows)
    return Killed(dag_id, executions(gates), tries, parts, time.monotonic() - began)
