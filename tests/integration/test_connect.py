"""Spark Connect clients of two users at a real cluster with two masters: PySpark's own client, unchanged.

Functions have their type as an object, and say that they use no Arrow: PySpark asks the active session otherwise, which
may be the session of an earlier test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect import functions as F  # noqa: N812  # as PySpark's users name it
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import IntegerType

from runtime.spark.driver.api import DriverInfo, info_file
from tests import connect_client
from tests.cluster_harness import Cluster, await_value, started
from tests.connect_doctests import differences, run_in_child
from tests.fakes.sshd import unused_port
from tests.waiting import PATIENCE_S

HELPER = """\
def doubled(number):
    return 2 * number
"""


class Door:
    """A cluster with the users ada and bob, and eve who may only look."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.cluster = cluster
        self.port = port
        self.tokens = {"nobody": "understudy_0123456789abcdef_" + "0" * 64}
        for user, role in (("ada", "user"), ("bob", "user"), ("eve", "viewer")):
            cluster.run("user", "add", user, f"--role={role}")
            self.tokens[user] = cluster.json("token", "add", user)["token"]

    def url(self, user: str, more: str = "") -> str:
        return f"sc://localhost:{self.port}/;token={self.tokens[user]}{more}"

    def session(self, user: str, more: str = "") -> Any:
        """A session of a user's, which nothing of this process shares."""
        return SparkSession.builder.remote(self.url(user, more)).create()

    def jobs(self, user: str) -> list[Any]:
        """The running sessions of a user, as jobs."""
        with self.cluster.client() as client:
            found = [job for job in client.list_jobs() if job.owner == user]
        return [job for job in found if not job.status.is_globally_terminal]

    def job(self, user: str) -> str:
        (job,) = self.jobs(user)
        return str(job.job_id)

    def driver(self, job_id: str) -> str:
        """The TaskExecutor of a session."""
        (task,) = self.cluster.job(job_id)["tasks"]
        return str(task["attempts"][-1]["task_executor"])


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    port = unused_port()
    settings = (
        "connect.enabled=true",
        f"connect.port={port}",
        "taskmanager.count=2",
        "high-availability.lease=5s",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        for made in started(tmp_path_factory.mktemp("d"), *settings, masters=2):
            yield Door(made, port)


def refused(session: Any) -> str:
    """Return what a session says that is refused."""
    with pytest.raises(PySparkException) as caught:
        session.range(1).count()
    return str(caught.value)


def test_a_session_is_a_job_from_its_first_call_until_it_is_stopped(door: Door, tmp_path: Path) -> None:
    spark = door.session("ada")
    assert door.jobs("ada") == [], "nothing has been asked of Spark"
    assert spark.range(1000).where("id % 2 = 0").agg(F.sum("id")).collect()[0][0] == 249_500
    job_id = door.job("ada")
    shown = door.cluster.run("job", "list").stdout
    assert f"Spark Connect session {spark.session_id[:8]}" in shown
    assert door.cluster.job(job_id)["state"] == "RUNNING"
    assert "ada" in door.cluster.run("job", "info", job_id).stdout

    helper = tmp_path / "door_helper.py"
    helper.write_text(HELPER)
    spark.addArtifacts(str(helper), pyfile=True)

    def twice(number: int) -> int:
        from door_helper import doubled  # type: ignore[import-not-found]

        return int(doubled(number))

    rows = spark.range(3).select(F.udf(twice, IntegerType(), useArrow=False)("id").alias("twice")).collect()
    assert [row.twice for row in rows] == [0, 2, 4]

    ended: list[BaseException] = []

    endless = spark.range(1).select(F.udf(lambda _: time.sleep(600), IntegerType(), useArrow=False)("id"))

    def sleep() -> None:
        try:
            endless.collect()
        except PySparkException as error:
            ended.append(error)

    sleeping = threading.Thread(target=sleep)
    sleeping.start()
    await_value(spark.interruptAll)
    sleeping.join()
    assert "OPERATION_CANCELED" in str(ended[0])
    assert spark.range(2).count() == 2

    spark.stop()
    assert door.cluster.await_status(job_id, "FINISHED")["restarts"] == 0


def test_doctests_of_pyspark_pass_through_the_gateway_as_they_do_at_a_driver(door: Door, tmp_path: Path) -> None:
    """The long form for all modules is in `test_connect_doctests.py`."""
    file = info_file(next(door.cluster.directory.glob("tm-*")) / "spark")
    await_value(file.exists)
    driver = DriverInfo.read(file)
    direct_url = f"sc://localhost:{driver.connect_port}/;token={driver.connect_token}"
    module = "pyspark.sql.connect.conf"
    directly = run_in_child(module, direct_url, tmp_path / "directly", PATIENCE_S)
    through = run_in_child(module, door.url("ada"), tmp_path / "through", PATIENCE_S)
    assert differences(directly, through) == []
    assert through.passed == len(through.examples) > 10
    await_value(lambda: not door.jobs("ada"))


@pytest.mark.slow
@pytest.mark.parametrize("release", ["4.0.4", "4.1.3", "4.2.0"])
def test_clients_of_former_releases_of_pyspark_work_unchanged(door: Door, tmp_path: Path, release: str) -> None:
    """The clients are `pyspark-client` of PyPI: Spark promises that a server serves older ones."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "client")]
    if subprocess.run([*install, f"pyspark-client=={release}"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip(f"pyspark-client {release} cannot be had here: there is no way to PyPI")
    program = subprocess.run(
        [sys.executable, "-W", "ignore", connect_client.__file__, door.url("ada"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "client")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert program.returncode == 0, program.stderr
    assert json.loads(program.stdout.splitlines()[-1]) == {
        "client": release,
        "server": pyspark.__version__,
        "sum": 249_500,
        "groups": [{"g": 0, "count": 334}, {"g": 1, "count": 333}, {"g": 2, "count": 333}],
        "function": [0, 2, 4],
        "arrow function": [1, 2, 3],
        "SQL": [4, 6],
        "pandas": 10,
        "streamed": 10,
        "error": "TABLE_OR_VIEW_NOT_FOUND",
        "interrupted": True,
        "after it": 2,
    }
    await_value(lambda: not door.jobs("ada"))


def test_nobody_acts_as_another(door: Door) -> None:
    for user, what in (("nobody", "in a URL: sc://HOST:PORT/;token=TOKEN"), ("eve", "needs the role user")):
        assert what in refused(door.session(user))
    bare = SparkSession.builder.remote(f"sc://localhost:{door.port}").create()
    assert "show a token" in refused(bare)
    assert door.jobs("eve") == []

    ada = door.session("ada", ";user_id=root")
    ada.range(7).createOrReplaceTempView("payroll")
    assert ada.table("payroll").count() == 7
    # Bob knows the id of her session, and says that he is she.
    bob = door.session("bob", f";user_id=ada;session_id={ada.session_id}")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        bob.table("payroll").count()
    assert door.driver(door.job("bob")) != door.driver(door.job("ada"))
    bob.stop()
    assert ada.table("payroll").count() == 7, "he has ended his own session"
    ada.stop()
    await_value(lambda: not door.jobs("ada") and not door.jobs("bob"))


def test_a_cancelled_session_says_what_has_happened_and_what_to_do(door: Door) -> None:
    spark = door.session("ada")
    spark.range(1).count()
    job_id = door.job("ada")
    door.cluster.run("job", "cancel", job_id)
    door.cluster.await_status(job_id, "CANCELED")
    said = refused(spark)
    assert f"its job {job_id} is CANCELED (a user has cancelled it)" in said
    assert "getOrCreate() begins a new one" in said
    assert spark.is_stopped, "getOrCreate() makes a new session"
    assert len(said.splitlines()) == 1


@pytest.mark.slow  # the test below loses a master
def test_a_named_session_outlives_its_driver(door: Door, tmp_path: Path) -> None:
    named = ";session_name=etl"
    spark = door.session("ada", named)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    helper, began = tmp_path / "etl_helper.py", tmp_path / "began"
    helper.write_text(HELPER)
    spark.addArtifacts(str(helper), pyfile=True)

    def twice(number: int) -> int:
        from etl_helper import doubled  # type: ignore[import-not-found]

        return int(doubled(number))

    def wait(_: int) -> int:
        began.touch()
        time.sleep(600)
        return 0

    spark.udf.register("twice", twice, IntegerType())
    spark.range(3).createOrReplaceTempView("numbers")
    spark.sql("CREATE TEMP VIEW doubled AS SELECT twice(CAST(id AS INT)) AS n FROM numbers")
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    checkpointed = spark.range(3).localCheckpoint()
    lost = door.job("ada")
    jvm = int(spark.sql("SELECT reflect('java.lang.ProcessHandle', 'current')").collect()[0][0])

    said: list[str] = []

    waiting = spark.range(1).select(F.udf(wait, IntegerType(), useArrow=False)("id"))

    def work() -> None:
        with pytest.raises(PySparkException) as caught:
            waiting.write.format("noop").mode("overwrite").save()
        said.append(str(caught.value))

    working = threading.Thread(target=work)
    working.start()
    await_value(began.exists)
    os.kill(jvm, signal.SIGKILL)
    # The same client, at once; and one of another process, which knows nothing but the name.
    again = door.session("ada", named)
    for client in (spark, again):
        assert [row.n for row in client.table("doubled").orderBy("n").collect()] == [0, 2, 4]
        assert client.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert client.sql("SELECT date_format(timestamp_seconds(0), 'HH')").collect()[0][0] == "09"
    for gone in (lambda: query.status, checkpointed.count):
        with pytest.raises(PySparkException, match=r"has moved to another driver.*make them again"):
            gone()
    working.join()
    assert "driver of the named session etl was lost during this operation" in said[0]
    assert "run it again" in said[0]
    assert len(said[0].splitlines()) == 1
    assert door.cluster.job(lost)["state"] == "FAILED"

    bob = door.session("bob", named)
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        bob.table("doubled").collect()
    bob.stop()
    (records,) = door.cluster.directory.rglob("connect-sessions")
    assert len([*records.rglob("record.json")]) == 1, "hers; his has ended"
    again.stop()
    assert [path.name for path in records.iterdir()] == ["lock"]
    assert "the named session etl has ended" in refused(spark)
    assert spark.is_stopped


def test_a_session_outlives_the_leading_master(door: Door) -> None:
    spark = door.session("bob")
    spark.range(5).createOrReplaceTempView("kept")
    job_id = door.job("bob")
    leader = door.cluster.leaders()["dispatcher"]
    os.kill(door.cluster.pid_of("master" + leader.removeprefix("dispatcher")), signal.SIGKILL)
    assert spark.table("kept").count() == 5
    await_value(lambda: door.cluster.leaders().get("dispatcher") not in (None, leader))
    assert spark.table("kept").count() == 5
    assert door.cluster.job(job_id)["state"] == "RUNNING"
    spark.stop()
    door.cluster.await_status(job_id, "FINISHED")
