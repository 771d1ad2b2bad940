"""A client by HTTP alone: it has the token, reads no file of the cluster, and reaches no port but the web endpoint's.

An audit hook in the client's process sees to that: it refuses every other connection and every file of the cluster's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster_harness import ROOT, Cluster
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

GUARD = """\
import os, sys

port, directory = int(os.environ["ONLY_PORT"]), os.environ["NO_FILE_BELOW"]

def audit(event, arguments):
    if event == "socket.connect" and (not isinstance(arguments[1], tuple) or arguments[1][1] != port):
        raise PermissionError(f"the client connects to {arguments[1]}")
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(directory):
        raise PermissionError(f"the client reads {arguments[0]}")

sys.addaudithook(audit)
"""

WORDS = """\
import sys
from pyspark.sql import SparkSession
from wording import greet

print(greet(sys.argv[1]), SparkSession.builder.getOrCreate().range(5).count())
"""

STREAM = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
writer = rows.writeStream.queryName("rates").format("parquet").trigger(processingTime="200 milliseconds")
writer.option("checkpointLocation", sys.argv[2]).start(sys.argv[1]).awaitTermination()
"""

CLIENT = """\
import json, sys, time
from pathlib import Path
from understudy import connect

directory = Path(sys.argv[1])
told = {}
with connect() as cluster:
    told["workers"] = cluster.overview().task_managers
    job = cluster.options(py_files=[directory / "wording.zip"]).submit(directory / "words.py", "world")
    job.progress()
    told["words"] = job.logs("stdout")
    told["status"] = job.status.value

    def add(spark, number):
        return {"sum": spark.range(number).count() + 1}

    told["function"] = cluster.submit(add, number=41).result()

    def fail():
        return 1 / 0

    try:
        cluster.submit(fail).result()
    except ZeroDivisionError as error:
        told["failure"] = [str(error.__cause__), error.__cause__.details]

    stream = cluster.submit(directory / "stream.py", str(directory / "out"), str(directory / "live"))
    while not list(directory.glob("out/*.parquet")):
        time.sleep(0.1)
    told["checkpoint"] = str(stream.checkpoint())
    told["savepoint"] = str(stream.savepoint(directory / "savepoints"))
    told["stopped"] = str(stream.stop(directory / "savepoints"))
    told["stream"] = stream.status.value
    resumed = cluster.options(from_savepoint=told["stopped"])
    again = resumed.submit(directory / "stream.py", str(directory / "out"), str(directory / "live"))
    while again.status.value != "RUNNING":
        time.sleep(0.1)
    told["cancelled"] = again.cancel().value
    told["jobs"] = {item.id: item.status.value for item in cluster.jobs()}
    told["mine"] = [job.id, stream.id, again.id]
    (worker,) = cluster.client.task_managers()
    logs = cluster.client.task_executor_logs(worker.registration.resource_id)
    told["logs"] = {log.name: len(content) for log, content in logs}
    told["threads"] = len(cluster.client.thread_dump(worker.registration.resource_id).threads)
    told["processes"] = sorted(process.name for process in cluster.client.status().processes)
    told["pools"] = len(cluster.client.task_pools())
    told["diagnostics"] = sorted(cluster.client.diagnostics())
print(json.dumps(told))
"""


@pytest.fixture
def apart(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of a client that knows the endpoint and the token, and is kept from all else."""
    rest = RestClient.of(cluster)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(GUARD)
    own = {name: text for name, text in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    return {
        **own,
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": f"{site}:{ROOT}",
        "ONLY_PORT": str(urlsplit(rest.url).port),
        "NO_FILE_BELOW": str(cluster.directory),
        "UNDERSTUDY_URL": rest.url,
        "UNDERSTUDY_TOKEN": rest.token,
    }


def run(environment: dict[str, str], *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False
    )
    assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def library(directory: Path) -> Path:
    """A library of more than travels in a job's graph."""
    import zipfile

    path = directory / "wording.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("wording.py", "def greet(name):\n    return f'hello, {name}'\n")
        archive.writestr("wording-data", bytes(range(256)) * 400)
    return path


def test_the_guard_holds(apart: dict[str, str], cluster: Cluster) -> None:
    """What the other tests show depends on it."""
    address = urlsplit(str(cluster.json("status")["cluster"]["address"]))
    for attempt in (
        f"import socket; socket.create_connection(('127.0.0.1', {address.port}))",
        f"open({str(cluster.directory / 'secret')!r})",
        f"import socket; socket.socket(socket.AF_UNIX).connect({str(cluster.directory / 'run')!r})",
    ):
        assert "the client" in run(apart, "-c", attempt, check=False).stderr


def test_a_client_has_everything_by_http_alone(cluster: Cluster, apart: dict[str, str], tmp_path: Path) -> None:
    write_job(tmp_path, WORDS, "words.py")
    write_job(tmp_path, STREAM, "stream.py")
    write_job(tmp_path, CLIENT, "client.py")
    library(tmp_path)
    done = run(apart, str(tmp_path / "client.py"), str(tmp_path))
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["workers"] == 1
    assert (told["words"], told["status"]) == ("hello, world 5\n", "FINISHED")
    assert told["function"] == {"sum": 42}
    message, trace = told["failure"]
    assert "ZeroDivisionError: division by zero" in message
    assert "return 1 / 0" in trace
    assert Path(told["checkpoint"]).name.startswith("chk-")
    for savepoint in (told["savepoint"], told["stopped"]):
        assert (Path(savepoint) / "_metadata").exists() or list(Path(savepoint).iterdir())
    assert (told["stream"], told["cancelled"]) == ("FINISHED", "CANCELED")
    assert set(told["mine"]) <= told["jobs"].keys()
    assert told["logs"]["taskexecutor"] > 0
    assert told["threads"] > 1
    assert len(set(told["processes"])) == len(told["processes"])
    assert {"master", "dispatcher", "resourcemanager"} <= set(told["processes"])
    assert told["pools"] == 1
    assert {"master", "dispatcher"} <= set(told["diagnostics"])


def test_the_command_line_needs_no_more(cluster: Cluster, apart: dict[str, str], tmp_path: Path) -> None:
    write_job(tmp_path, WORDS, "words.py")
    understudy = ("-m", "understudy")
    ran = run(
        apart, *understudy, "job", "run", "--py-files", str(library(tmp_path)), str(tmp_path / "words.py"), "--", "you"
    )
    assert ran.stdout == "hello, you 5\n"
    jobs = json.loads(run(apart, *understudy, "job", "list", "--json").stdout)
    job_id = next(job["job_id"] for job in jobs if job["name"] == "words")
    assert "hello, you 5" in run(apart, *understudy, "job", "logs", job_id).stdout
    assert apart["UNDERSTUDY_URL"] in run(apart, *understudy, "status").stdout
    wrong = run({**apart, "UNDERSTUDY_TOKEN": "wrong"}, *understudy, "job", "list", check=False)
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") <= 3
    assert "UNDERSTUDY_TOKEN" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_what_is_of_this_machine_does_not_follow_the_url(
    apart: dict[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    """`stop` with UNDERSTUDY_URL in the environment stops no cluster but that of the runtime directory."""
    away = f"cluster.runtime-dir={tmp_path / 'runtime'}"
    stopped = run(apart, "-m", "understudy", "stop", "-D", away, check=False)
    assert stopped.returncode == 69
    assert "no cluster runs" in stopped.stderr
    assert cluster.json("status")["cluster"]["cluster_id"] == "default"
