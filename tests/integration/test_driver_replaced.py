"""What scripts of a driver do to each other, as docs/isolation.md says: one ends it, one leaves traces in its workers.

A driver that can run no jobs is found out and replaced. A script that would end its driver gets one of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, await_value
from tests.integration.test_shared_driver import BEGIN, SHARED, driver_of
from tests.job_files import TRIVIAL, write_job


def test_a_script_that_says_so_has_a_driver_to_itself(cluster: Cluster, tmp_path: Path) -> None:
    shared = driver_of(cluster)
    file = write_job(tmp_path, BEGIN + "print('own')\njvm.java.lang.System.exit(0)\n")
    options = ("-D", "restart-strategy.type=none")
    job_id = cluster.submit(file, options=options)
    job = cluster.await_status(job_id, "FAILED")
    assert job["failure"]["kind"] == "spark-lost"
    assert "it runs on a Spark driver of its own" in cluster.run("job", "logs", job_id).stderr
    assert driver_of(cluster) == shared


ONCE = """
if Path(sys.argv[1]).exists():  # it was restarted with the driver
    sys.exit(0)
Path(sys.argv[1]).touch()
"""
POISON = {
    "stopped": """
bus = getattr(getattr(jvm, "org.apache.spark.scheduler.LiveListenerBus$"), "MODULE$")
getattr(bus.withinListenerThread(), "value_$eq")(False)
sc._jsc.sc().dagScheduler().sc().stop()
os._exit(0)
""",
    "does not match contents": """
Path("config.txt").write_text("one")
sc._jsc.sc().dagScheduler().sc().addFile(str(Path("config.txt").resolve()))
Path("config.txt").write_text("two")
os._exit(0)
""",
}


@pytest.mark.parametrize("why", ["stopped", pytest.param("does not match contents", marks=pytest.mark.slow)])
def test_a_driver_that_runs_no_jobs_is_replaced_and_its_tasks_restarted(
    cluster: Cluster, tmp_path: Path, why: str
) -> None:
    shared = driver_of(cluster)
    poison = write_job(tmp_path, BEGIN + ONCE + POISON[why], "poison.py")
    cluster.submit(poison, str(tmp_path / "once"), options=SHARED)
    await_value((tmp_path / "once").exists)
    victim = cluster.submit(write_job(tmp_path, TRIVIAL, "victim.py"))
    cluster.await_status(victim, "FINISHED")
    assert "sum 499500" in cluster.run("job", "logs", victim).stdout
    failures = [item["error"] for item in cluster.job(victim)["tasks"][0]["attempts"] if item["error"]]
    assert {failure["kind"] for failure in failures} <= {"spark-lost", "task-executor-lost"}, failures

    def replaced() -> str:
        managers = cluster.json("status")["task_executors"]
        registration = managers[0] if managers else {"spark_pid": shared}
        return "" if registration["spark_pid"] == shared else str(registration["spark_loss"])

    assert why in await_value(replaced)
    assert "its Spark driver was replaced" in cluster.run("status").stdout
    found = json.loads(cluster.run("doctor", "--json", check=False).stdout)
    checks = {check["name"]: check["detail"] for check in found["checks"]}
    assert why in checks["cluster"]


def test_a_script_that_ends_the_jvm_costs_others_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    """A job beside it is restarted with the next driver, and a third job runs there."""
    began, once, gate = (tmp_path / name for name in ("began", "once", "gate"))
    wait = "Path(sys.argv[1]).touch()\nwhile not Path(sys.argv[2]).exists():\n    time.sleep(0.05)\n"
    work = "print(spark.range(1000).count())\n"
    file = write_job(tmp_path, BEGIN + wait + work, "victim.py")
    victim = cluster.submit(file, str(began), str(gate), options=SHARED)
    await_value(began.exists)
    shared = driver_of(cluster)
    text = "getattr(jvm.java.lang.System, 'exit')(3)\n"
    bully = cluster.submit(write_job(tmp_path, BEGIN + ONCE + text, "bully.py"), str(once), options=SHARED)
    cluster.await_status(bully, "FINISHED")
    gate.touch()
    ended = cluster.await_status(victim, "FINISHED")
    for job in (ended, cluster.job(bully)):
        failures = [item["error"]["kind"] for item in job["tasks"][0]["attempts"] if item["error"]]
        assert failures, "it was restarted"
        assert set(failures) <= {"spark-lost", "task-executor-lost"}
    after = write_job(tmp_path, BEGIN + work, "after.py")
    assert cluster.run("job", "run", *SHARED, str(after)).stdout == "1000\n"
    assert driver_of(cluster) != shared


LEAVES = """
def leave(_):
    import json
    os.environ["BULLY"], json.bully = "hunter2", True
while not Path(sys.argv[1]).exists():
    sc.parallelize(range(8), 8).foreach(leave)
    time.sleep(0.05)
"""
FINDS = """
def find(_):
    import json
    return os.environ.get("BULLY"), hasattr(json, "bully")
def found():
    return ("hunter2", True) in sc.parallelize(range(8), 8).map(find).collect()
"""


def test_what_a_function_leaves_in_a_python_worker_is_found_by_others(cluster: Cluster, tmp_path: Path) -> None:
    """As docs/isolation.md says: by a job beside it, and by one after it; but not by one with its own workers."""
    gate, last, seen = (tmp_path / name for name in ("gate", "last", "seen"))
    bully = cluster.submit(write_job(tmp_path, BEGIN + LEAVES, "bully.py"), str(gate), options=SHARED)
    finds = (
        "while not found():\n    time.sleep(0.05)\nPath(sys.argv[2]).touch()\n"
        # Workers end that nobody has used for a minute.
        "while not Path(sys.argv[1]).exists():\n    found()\n    time.sleep(0.05)\n"
    )
    victim = cluster.submit(
        write_job(tmp_path, BEGIN + FINDS + finds, "victim.py"), str(last), str(seen), options=SHARED
    )
    await_value(seen.exists)
    gate.touch()
    cluster.await_status(bully, "FINISHED")
    after = str(write_job(tmp_path, BEGIN + FINDS + "print(found())", "after.py"))
    assert cluster.run("job", "run", *SHARED, after).stdout == "True\n"
    assert cluster.run("job", "run", *SHARED, "--env", "OWN=workers", after).stdout == "False\n"
    last.touch()
    cluster.await_status(victim, "FINISHED")
