"""Running jobs whose code is replaced: the file sink has the rows of an undisturbed run, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from runtime.checkpoint.compatibility import Fit, Verdict, check_job
from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.retained import describe_state
from runtime.cluster.documents import UpgradedJob
from runtime.cluster.job_upgrade import JobUpgrader, Version, new_version
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.archived_execution_graph import STANDS_BY, TaskInfo
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import ExecutionState
from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job
from tests.json_output import parsed
from tests.streaming_rows import Source, files_of, rows_of, rows_so_far
from tests.waiting import PATIENCE_S

# As that of test_checkpoints, with a mark of its version; the marks are lines of the files of each version.
STREAM = """\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, sink, location = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
counts = (
    rows.selectExpr("at", "KEY AS key").withWatermark("at", "0 seconds")
    .groupBy(F.window("at", "1 minute"), "key").count()
    .selectExpr("window.start AS start", "key", "count", "'VERSION' AS version")
)
writer = counts.writeStream.queryName("counts").format("parquet").option("checkpointLocation", location)
writer.trigger(processingTime="200 milliseconds").start(sink).awaitTermination()
"""


# The check before an upgrade runs the code, too; the job's own run waits.
HELD = """\
import pathlib, time
if pathlib.Path({checked!r}).exists():
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.05)
pathlib.Path({checked!r}).touch()
"""


def version(name: str, key: str = "key") -> str:
    return STREAM.replace("VERSION", name).replace("KEY", key)


class Stream:
    """A job that counts the rows of files, and its source and sink."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.source = Source(directory / "in")
        self.sink = directory / "out"
        self.live = directory / "live"
        self.source.write(3)
        file = self.file("blue")
        self.job_id = cluster.submit(file, str(self.source.directory), str(self.sink), str(self.live))
        await_value(lambda: self.committed >= 1)

    @property
    def committed(self) -> int:
        return last_commit(f"commits/{name}" for name in list_names(self.live / "commits"))

    def file(self, name: str, **changes: str) -> Path:
        return write_job(self.directory, version(name, **changes), f"{name}.py")

    def killed(self, when: Callable[[], object], *words: str) -> None:
        """Upgrade it, and kill the command at a moment."""
        command = self.cluster.command("job", "upgrade", *words)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            await_value(lambda: process.poll() is not None or when())
            process.kill()
        assert process.returncode == -9

    @property
    def kept(self) -> Path:
        """Where both versions are kept while it is upgraded."""
        return self.cluster.directory / "savepoints" / ".upgrades" / self.job_id

    def stands_by(self) -> bool:
        """Return whether the new version is at the start of its query."""
        return any(task.waiting_for == STANDS_BY for task in self._green_tasks())

    def green_runs(self) -> bool:
        """Return whether the task of the new version runs."""
        return any(task.state is ExecutionState.RUNNING for task in self._green_tasks())

    def _green_tasks(self) -> tuple[TaskInfo, ...]:
        try:
            green = json.loads((self.kept / "upgrade.json").read_text())["green"]
            with self.cluster.client() as client:
                return client.job(JobID(green)).tasks
        except (FileNotFoundError, JobNotFoundError):
            return ()

    @property
    def state(self) -> str:
        return str(self.cluster.job(self.job_id)["state"])

    def end(self, job_id: str) -> Counter[str]:
        """Close all windows, and end the job; the rows are right. Returns the number of rows of each version."""
        self.source.write(2)
        self.source.close()
        await_value(lambda: rows_so_far(self.sink) == self.source.expected)
        self.cluster.run("job", "cancel", job_id)
        assert rows_of(self.sink) == self.source.expected
        tables = [pyarrow.parquet.read_table(path).to_pylist() for path in files_of(self.sink)]
        return Counter(row["version"] for table in tables for row in table)


def _step_of(kept: Path) -> str:
    try:
        return str(json.loads((kept / "upgrade.json").read_text())["step"])
    except FileNotFoundError:
        return ""


def fits(_version: Version, _state: Path) -> list[Verdict]:
    """Spare the Spark of the check, which the first test starts."""
    return [Verdict("counts", Fit.FITS)]


def without_state(_version: Version, state: Path) -> list[Verdict]:
    """Compare the savepoint with a version whose query has no stateful operator."""
    queries = describe_state(state)
    return check_job(queries, [replace(query, operators=()) for query in queries])


def upgraded_or_refused(upgrader: JobUpgrader, job_id: JobID, file: Path) -> UpgradedJob | ClusterError:
    try:
        return upgrader.upgrade(job_id, new_version(file, (), None, (), str))
    except ClusterError as error:
        return error


@pytest.mark.slow  # unit/test_job_upgrade.py interrupts each step
def test_an_upgrade_whose_command_is_killed_is_finished(cluster: Cluster, tmp_path: Path) -> None:
    """Kill the command while the new version runs beside the former one, and is not at its query yet."""
    stream = Stream(cluster, tmp_path)
    checked, gate = tmp_path / "checked", tmp_path / "gate"
    held = HELD.format(checked=str(checked), gate=str(gate))
    file = write_job(tmp_path, held + version("green"), "green.py")
    stream.killed(stream.green_runs, stream.job_id, str(file))
    assert stream.state == "RUNNING"
    gate.touch()
    await_value(stream.stands_by)
    words = cluster.command("job", "upgrade", "--json", stream.job_id)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        await_value(lambda: process.poll() is not None or stream.state == "FINISHED")
        stream.source.write(2)  # for the first batch of the new version
        done = parsed(("job", "upgrade"), process.communicate(timeout=PATIENCE_S)[0])
    assert (done["outcome"], done["upgraded_from"]) == ("upgraded", stream.job_id)
    assert cluster.job(done["job_id"])["upgraded_from"] == stream.job_id
    assert stream.end(done["job_id"]).keys() == {"blue", "green"}


@pytest.mark.slow
def test_a_version_takes_over_although_the_command_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """From the stop on nobody is needed: the new version works as soon as the former one has ended."""
    stream = Stream(cluster, tmp_path)
    stream.killed(lambda: _step_of(stream.kept) == "starting", stream.job_id, str(stream.file("green")))
    assert stream.state == "FINISHED"
    before = stream.committed
    stream.source.write(2)
    await_value(lambda: stream.committed > before)
    done = parsed(("job", "upgrade"), cluster.run("job", "upgrade", "--json", stream.job_id).stdout)
    assert stream.end(done["job_id"]).keys() == {"blue", "green"}


@pytest.mark.parametrize("side", ["former", pytest.param("new", marks=pytest.mark.slow)])
def test_rows_are_right_although_a_side_is_killed_during_the_cut_over(
    cluster: Cluster, tmp_path: Path, side: str
) -> None:
    """The kill comes as the former version is about to be stopped: it goes on, or the new one has taken over."""
    stream, kills = Stream(cluster, tmp_path), list[int]()

    @contextlib.contextmanager
    def step(what: str, _left: str) -> Iterator[None]:
        if what.startswith("stopping job"):
            green = json.loads((stream.kept / "upgrade.json").read_text())["green"]
            kills.extend(cluster.tasks_of(stream.job_id if side == "former" else green))
            for pid in kills:
                os.kill(pid, signal.SIGKILL)
            stream.source.write(2)
        yield

    with cluster.client() as client:
        upgrader = JobUpgrader(client, cluster.directory / "savepoints", fits, step=step, note=str)
        done = upgraded_or_refused(upgrader, JobID(stream.job_id), stream.file("green"))
    assert kills, "a process of that side was there"
    if isinstance(done, ClusterError):
        assert (side, "was not stopped" in str(done)) == ("former", True), done
        working, versions = stream.job_id, {"blue"}
    else:
        # It waits for rows if the former version has committed all of them before it was stopped.
        assert done.outcome in (("returned",) if side == "new" else ("upgraded", "waiting"))
        working, versions = done.job_id, {"blue"} if side == "new" else {"blue", "green"}
    assert stream.end(working).keys() == versions


def test_versions_that_do_not_fit_or_fail_give_way_and_one_that_works_is_undone(
    cluster: Cluster, tmp_path: Path
) -> None:
    stream = Stream(cluster, tmp_path)
    failing = stream.file("failing", key="string(raise_error('not today'))")

    def began(_line: str) -> None:
        """Write rows for the first batch of a new version, as its job was submitted: the former one has had no more."""
        stream.source.write(2)

    with cluster.client() as client:
        strict = JobUpgrader(client, cluster.directory / "savepoints", without_state)
        with pytest.raises(
            ClusterError, match=r"'counts' of the new version does not fit the state: stateful operator"
        ):
            strict.upgrade(JobID(stream.job_id), new_version(failing, (), None, (), str))
        assert (stream.state, stream.kept.exists()) == ("RUNNING", False)

        upgrader = JobUpgrader(client, cluster.directory / "savepoints", fits, note=began)
        back = upgrader.upgrade(JobID(stream.job_id), new_version(failing, (), None, (), str))
        assert (back.outcome, "not today" in back.because) == ("returned", True), back
        assert not stream.kept.exists()
        await_value(lambda: stream.committed > back.batches["counts"])

        working = new_version(stream.file("green"), (), None, (), str)
        done = upgrader.upgrade(JobID(back.job_id), working)
        assert (done.outcome, done.upgraded_from) == ("upgraded", back.job_id)
        await_value(lambda: stream.committed > done.batches["counts"] + 1)

        # The new version has committed batches, so the former one goes on from its state, and not from the savepoint.
        undone = upgrader.undo(JobID(done.job_id))
    assert (undone.outcome, undone.upgraded_from) == ("returned", done.job_id)
    assert undone.batches["counts"] > done.batches["counts"]
    assert stream.end(undone.job_id).keys() == {"blue", "green"}
