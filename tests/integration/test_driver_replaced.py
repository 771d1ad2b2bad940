"""A driver that can run no jobs is found out and replaced; a script that would end its driver gets one of its own."""

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
