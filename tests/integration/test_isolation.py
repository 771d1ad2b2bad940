"""What one job breaks is its own: its neighbours, the TaskExecutor and Spark go on."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import Cluster, await_value, started
from tests.integration.test_scripts import EXAMPLES, TEXT
from tests.job_files import STUBBORN, TRIVIAL, write_job
from tests.processes import lives
from tests.waiting import PATIENCE_S

# Waits beside the others, on none of Spark's cores, and then shows that its Spark is still what it was.
NEIGHBOUR = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.range(7).createOrReplaceTempView("mine")
Path(sys.argv[1] + ".began").touch()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("mine", spark.table("mine").count(), spark.sparkContext.parallelize(range(4)).map(str).collect())
"""

# Everything that a program may do to its process and to "its" Spark, and still end well.
RUDE = """\
import builtins, gc, os, sys
from pyspark.sql import DataFrame, SparkSession

os.environ["UNDERSTUDY_RUDE"] = "yes"
os.environ["PATH"] = ""
builtins.print = lambda *values, **options: None
DataFrame.count = lambda frame: -1
SparkSession.range = None
os.chdir("/")
os.umask(0o777)
sys.setrecursionlimit(50)
gc.disable()
spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "1")
spark.sql("CREATE TEMPORARY VIEW rude AS SELECT 1")
spark.sparkContext.setLogLevel("ERROR")
spark.sparkContext.cancelAllJobs()
spark.stop()
leak = bytearray(64 << 20)
"""

CURIOUS = """\
import os
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print(os.environ.get("UNDERSTUDY_RUDE"), bool(os.environ["PATH"]), spark.range(3).count())
views = [table.name for table in spark.catalog.listTables() if table.isTemporary]
print(spark.conf.get("spark.sql.shuffle.partitions"), views)
"""

# Ends in another way each time that it is started, and well the fourth time.
CRASHING = """\
import ctypes, os, signal, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
with open(sys.argv[1], "a+") as file:
    file.write("x")
    file.seek(0)
    times = len(file.read())
if times == 1:
    ctypes.string_at(0)
if times == 2:
    os._exit(7)
if times == 3:
    os.kill(os.getpid(), signal.SIGKILL)
print("survived", spark.range(3).count())
"""


def registered(cluster: Cluster) -> dict[str, Any]:
    """The first TaskExecutor, without what changes while it lives; it registers again at a new ResourceManager."""
    changing = ("free_slots", "last_heartbeat_ms", "instance_id", "start_ms")
    executors = await_value(lambda: cluster.json("status")["task_executors"])
    return {name: value for name, value in executors[0].items() if name not in changing}


def test_what_a_job_breaks_is_its_own(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    neighbour = cluster.submit(write_job(tmp_path, NEIGHBOUR, "neighbour.py"), str(gate))
    await_value(Path(f"{gate}.began").exists)
    registration = registered(cluster)
    cluster.run("job", "run", str(write_job(tmp_path, RUDE, "rude.py")))
    crashing = cluster.submit(write_job(tmp_path, CRASHING, "crashing.py"), str(tmp_path / "starts"))
    attempts = cluster.await_status(crashing, "FINISHED")["tasks"][0]["attempts"]
    assert [attempt["exit_status"] for attempt in attempts] == [-signal.SIGSEGV, 7, -signal.SIGKILL, 0]
    assert {attempt["error"]["kind"] for attempt in attempts[:-1]} == {"task-process-lost"}
    assert "survived 3" in cluster.run("job", "logs", crashing).stdout
    done = cluster.run("job", "run", str(write_job(tmp_path, CURIOUS, "curious.py")))
    assert done.stdout == "None True 3\n2 []\n"
    gate.touch()
    assert cluster.await_status(neighbour, "FINISHED")["restarts"] == 0
    assert "mine 7 ['0', '1', '2', '3']" in cluster.run("job", "logs", neighbour).stdout
    assert registered(cluster) == registration


LIMITS = (
    "taskmanager.task.memory.limit=256mb",
    "taskmanager.task.cpu-time.limit=5s",
    "task.cancellation.timeout=10s",
    "restart-strategy.type=none",
)

HUNGRY = """\
def eat():
    return bytearray(1 << 30)

print("begins", flush=True)
eat()
"""

SPINNING = """\
def spin():
    while True:
        pass

spin()
"""

# A thread of the JVM that heeds no interrupt, as those of some libraries do not: it looks for a very large prime.
ENDLESS_IN_THE_JVM = """\
import sys
from pathlib import Path
from pyspark.sql import SparkSession

jvm = SparkSession.builder.getOrCreate()._jvm
Path(sys.argv[1]).touch()
jvm.java.math.BigInteger.probablePrime(200_000, jvm.java.util.Random(1))
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose tasks may not take much."""
    yield from started(tmp_path_factory.mktemp("limited"), *LIMITS)


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        (HUNGRY, "MemoryError: the task has reached taskmanager.task.memory.limit (256 MB)", "line 2, in eat"),
        (SPINNING, "TaskLimitError: the task has reached taskmanager.task.cpu-time.limit (5 s)", "in spin"),
    ],
)
def test_a_task_over_its_limit_fails_and_says_why(
    limited: Cluster, tmp_path: Path, text: str, error: str, line: str
) -> None:
    done = limited.run("job", "run", str(write_job(tmp_path, text)), check=False)
    assert done.returncode == 1
    assert error in done.stderr
    assert line in done.stderr
    assert limited.run("job", "run", str(write_job(tmp_path, "print('next')\n", "next.py"))).stdout == "next\n"


def test_a_task_that_ignores_its_cancellation_is_ended_by_force(limited: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "never"
    job_id = limited.submit(write_job(tmp_path, STUBBORN), str(gate))
    await_value(Path(f"{gate}.began").exists)
    (task,) = limited.tasks_of(job_id)
    limited.run("job", "cancel", job_id)
    assert not Path(f"/proc/{task}").exists()
    (attempt,) = limited.job(job_id)["tasks"][0]["attempts"]
    assert (attempt["state"], attempt["exit_status"]) == ("CANCELED", -signal.SIGKILL)


@pytest.mark.slow
def test_what_cannot_be_ended_in_spark_ends_with_its_driver(limited: Cluster, tmp_path: Path) -> None:
    began = tmp_path / "began"
    spark = await_value(lambda: limited.json("status")["task_executors"])[0]["spark_pid"]
    job_id = limited.submit(write_job(tmp_path, ENDLESS_IN_THE_JVM), str(began))
    await_value(began.exists)
    limited.run("job", "cancel", job_id)
    assert limited.job(job_id)["state"] == "CANCELED"
    assert not lives(spark), "nothing of it runs any more"
    done = limited.run("job", "run", str(write_job(tmp_path, TRIVIAL, "next.py")))
    assert done.stdout == "sum 499500\n"


def test_pysparks_own_streaming_word_count_is_seen_and_ends_with_its_job(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        script = EXAMPLES / "sql" / "streaming" / "structured_network_wordcount.py"
        host, port = server.getsockname()
        job_id = cluster.submit(script, host, str(port), options=("-D", "spark.sql.shuffle.partitions=2"))
        connections = [server.accept()[0]]  # Spark first looks what there is, then reads
        connections[0].sendall(TEXT.encode())

        def batch() -> dict[str, Any] | None:
            queries = cluster.job(job_id)["tasks"][0]["attempts"][-1]["queries"]
            return queries[0] if queries and queries[0]["batch"] is not None else None

        query = await_value(batch)
        assert len(query["id"]) == len(query["run_id"]) == 36
        page = cluster.run("job", "info", job_id).stdout
        assert query["id"] in page
        assert query["run_id"] in page
        await_value(lambda: "question|    1" in cluster.run("job", "logs", job_id).stdout)
        cluster.run("job", "cancel", job_id)
        assert cluster.job(job_id)["state"] == "CANCELED"
        connections[0].settimeout(0)  # that is: now, for the query has ended with its job
        assert connections[0].recv(1) == b""


# Its Python function holds a file open for as long as it runs, which is for ever.
HOLDING_SCRIPT = """\
import sys, time
from pyspark.sql import SparkSession

path = sys.argv[1]

def hold(rows):
    with open(path, "a") as file:
        file.write("x")
        file.flush()
        while True:
            time.sleep(0.05)
    yield from rows

SparkSession.builder.getOrCreate().sparkContext.parallelize(range(2), 2).mapPartitions(hold).count()
"""

HOLDING_PIPELINE = """\
import time
from pyspark.sql import functions as F
from runtime.api import Pipeline

def held(path):
    with open(path, "a") as file:
        file.write("x")
        file.flush()
        while True:
            time.sleep(0.05)

def hold(ctx):
    ctx.spark.range(0, 2, 1, 2).select(F.udf(held)(F.lit(ctx.parameters["path"]))).collect()

def pipeline(argv):
    p = Pipeline("holding", parameters={"path": argv[0]})
    p.sink("hold", hold)
    return p
"""


@pytest.mark.parametrize(
    "text",
    [pytest.param(HOLDING_SCRIPT, id="script"), pytest.param(HOLDING_PIPELINE, id="pipeline", marks=pytest.mark.slow)],
)
def test_of_a_cancelled_job_no_python_worker_runs_on(cluster: Cluster, tmp_path: Path, text: str) -> None:
    held = tmp_path / "held"
    held.touch()
    job_id = cluster.submit(write_job(tmp_path, text), str(held))
    await_value(held.read_text)
    assert holders(held)
    cluster.run("job", "cancel", job_id)
    assert cluster.job(job_id)["state"] == "CANCELED"
    assert holders(held) == []


def holders(path: Path) -> list[int]:
    """The processes that have a file open."""
    found = []
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            links = [link.readlink() for link in descriptors.iterdir()]
        except OSError:
            continue  # it has ended
        if path in links:
            found.append(int(descriptors.parent.name))
    return found
