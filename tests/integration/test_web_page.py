"""What the web page asks beside Flink's API, of a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster_harness import Cluster, await_value
from tests.rest_client import Reply, RestClient

TALKING = b"""\
import sys, time
from pathlib import Path

print("the beginning", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("the end")
"""


def test_a_log_is_read_on_while_it_is_written_and_when_it_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    rest, gate = RestClient.of(cluster), tmp_path / "gate"
    job_id = rest.submit(TALKING, "talking.py", str(gate))

    def stdout() -> dict[str, Any] | None:
        logs = rest.get(f"/jobs/{job_id}/logs")["logs"]
        return next((log for log in logs if log["name"] == "stdout"), None)

    path = f"/jobs/{job_id}/logs/{await_value(stdout)['attempt-id']}/stdout"
    first = await_value(lambda: rest.ask("GET", path).body)
    assert first == b"the beginning\n"
    attempt = next(log["attempt-id"] for log in rest.get(f"/jobs/{job_id}/logs")["logs"])
    profiles = "/taskmanagers/taskmanager-0/flamegraph?samples=5&interval=1"
    task, executor = rest.get(f"{profiles}&attempt={attempt}"), rest.get(profiles)
    assert "talking.py" in str(task["root"])
    assert executor["pid"] == cluster.pid_of("tm:taskmanager-0") != task["pid"]
    assert rest.ask("GET", f"{path}?offset={len(first)}") == Reply(200, b"")
    gate.touch()
    cluster.await_status(job_id, "FINISHED")
    assert await_value(lambda: rest.ask("GET", f"{path}?offset={len(first)}").body) == b"the end\n"
    await_value(lambda: "spark" in {log["name"] for log in rest.get(f"/jobs/{job_id}/logs")["logs"]})
    assert rest.ask("GET", path).body == b"the beginning\nthe end\n"
    assert rest.ask("GET", f"{path}?offset=1000").body == b""


COUNTING = b"""\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print(spark.sparkContext.parallelize(range(6), 3).map(lambda n: (n % 2, n)).reduceByKey(max).collect())
"""


def test_the_stages_of_a_script_are_told_one_by_one(cluster: Cluster) -> None:
    rest = RestClient.of(cluster)
    job_id = rest.submit(COUNTING, "counting.py")
    cluster.await_status(job_id, "FINISHED")
    (told,) = rest.get(f"/jobs/{job_id}")["spark"].values()
    stages = told["latest-stages"]
    assert [(stage["state"], stage["tasks"], stage["tasks-completed"]) for stage in stages] == [("COMPLETE", 3, 3)] * 2
    assert stages[0]["name"].startswith("reduceByKey at ")
    assert stages[1]["name"].startswith("collect at ")
    assert [stage["parents"] for stage in stages] == [[], [stages[0]["id"]]]
    assert rest.get(f"/jobs/{job_id}/queries") == {"queries": []}
    assert rest.get(f"/jobs/{job_id}")["kind"] == "script"


def test_the_page_is_served_and_told_who_leads(cluster: Cluster) -> None:
    rest = RestClient.of(cluster)
    stranger = RestClient(rest.url, "")
    assert b"<title>Understudy</title>" in stranger.ask("GET", "/").body
    assert stranger.ask("GET", "/events").status == stranger.ask("GET", "/processes").status == 401
    told = {process["name"]: process for process in rest.get("/processes")["processes"]}
    assert {"master", "dispatcher", "resourcemanager", "rest"} <= told.keys()
    assert told["dispatcher"]["leadership"] == "leader"
    assert told["dispatcher"]["pid"] == cluster.pid_of("dispatcher")
    assert told["dispatcher"]["epoch"] > 0
