"""Exactly once, under SIGKILL: ``python -m tests.faults.exactly_once [--long] [--kills N] [--seed N]``.

Files are counted by windows of five minutes, a minute in each file and a file in each batch, into a file sink: at any
moment rows of some batches are in the state and nowhere else. The query's task process, Spark driver, TaskExecutor, or
all processes of the cluster are killed at random moments, also while it comes back from the kill before; sometimes its
checkpointLocation is lost as well, and it goes on from the last checkpoint. At the end the sink holds what was written
to the source, which is also what an undisturbed query makes of the same files. The short form has 5 kills, the long one
50.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from actors.errors import ActorError
from runtime.ids import JobID
from tests.cluster_harness import Cluster, await_value
from tests.faults.processes import kill
from tests.faults.streaming import wrong_rows
from tests.job_files import write_job
from tests.processes import lives
from tests.streaming_rows import Source, T, lost_and_doubled, rows_of, rows_so_far

SHORT = 5
LONG = 50
AHEAD = 3
"""How many files there are before each kill: so many batches."""
BACKENDS = ("hashmap", "rocksdb")
SETTINGS = (
    "execution.checkpointing.interval=1s",
    "execution.checkpointing.num-retained=2",
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "heartbeat.interval=1s",
    "heartbeat.timeout=5s",
    "task.cancellation.timeout=10s",
    "cluster.start-timeout=5min",
    "spark.sql.session.timeZone=UTC",
    "spark.driver.memory=1g",
)
WINDOW_MINUTES = 5
STREAM = f"""\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, sink, location, files = sys.argv[1:5]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", files).json(source)
windows = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "{WINDOW_MINUTES} minutes"), "key").count()
writer = windows.selectExpr("window.start AS start", "key", "count").writeStream.queryName("counts").format("parquet")
trigger = {{"processingTime": "100 milliseconds"}} if files == "1" else {{"availableNow": True}}
writer.option("checkpointLocation", location).trigger(**trigger).start(sink).awaitTermination()
"""


@dataclass
class Result:
    """A run: what was killed, and what became of the rows."""

    seed: int
    backend: str
    kills: Counter[str] = field(default_factory=Counter)
    survived: int = 0
    """After how many of the kills the query has committed a batch."""
    attempts: int = 0
    rows: int = 0
    """How many there were in the source."""
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)

    def compare(self, expected: Counter[T], found: Counter[T], undisturbed: Counter[T]) -> None:
        """Note what is wrong with the rows, and how many there are.

        Args:
            expected: what was written to the source, as windows.
            found: in the sink of the query that was killed.
            undisturbed: in the sink of one that was not.
        """
        lost, doubled = lost_and_doubled(expected, found)
        self.rows, self.lost, self.doubled = expected.total(), lost.total(), doubled.total()
        self.problems += wrong_rows(expected, found)
        if undisturbed != expected:
            self.problems.append("an undisturbed run has another result than what was written says")

    def summary(self) -> dict[str, object]:
        """In numbers."""
        return {**vars(self), "kills": dict(self.kills)}


def run(directory: Path, kills: int, seed: int, backend: str = BACKENDS[1]) -> Result:
    """Start a cluster, kill that often, let the query come to its end, and compare.

    Args:
        directory: for the cluster and the query.
        kills: how many.
        seed: of the moments, and of what is killed.
        backend: that keeps the query's state.
    """
    cluster = Cluster(directory / "c", (*SETTINGS, f"state.backend.type={backend}"))
    cluster.run("start")
    try:
        return _Run(cluster, directory, Result(seed, backend)).carry_out(kills)
    finally:
        cluster.run("stop")


class _Run:
    def __init__(self, cluster: Cluster, directory: Path, result: Result) -> None:
        self._cluster = cluster
        self._directory = directory
        self._result = result
        self._random = random.Random(result.seed)
        self._source = Source(directory / "in", WINDOW_MINUTES)
        self._sink, self._location = directory / "out", directory / "live"
        self._script = write_job(directory, STREAM, "stream.py")
        self._job_id = ""
        self._commit_ns = -1
        self._deeds: dict[str, Callable[[], None]] = {
            "task process": lambda: kill_one(self._task),
            "spark driver": lambda: kill_one(lambda: worker_process(cluster, "spark_pid")),
            "taskexecutor": lambda: kill_one(lambda: worker_process(cluster, "pid")),
            "everything": self._kill_everything,
            "everything, and the checkpointLocation": self._kill_everything_and_the_location,
        }

    def carry_out(self, kills: int) -> Result:
        result, next_ones = self._result, list[str]()
        arguments = str(self._source.directory), str(self._sink), str(self._location), "1"
        self._source.write(AHEAD)
        self._job_id = self._cluster.submit(self._script, *arguments)
        outstanding = 0
        for number in range(kills):
            if number == 0 or self._random.random() < 0.75:
                self._await_progress()
                result.survived, outstanding = result.survived + outstanding, 0
            self._source.write(AHEAD)
            threading.Event().wait(self._random.uniform(0, 2))  # the random moment
            next_ones = next_ones or self._random.sample(sorted(self._deeds), len(self._deeds))
            deed = next_ones.pop()
            self._deeds[deed]()
            self._commit_ns = last_commit_ns(self._location)
            result.kills[deed] += 1
            outstanding += 1
        self._source.close()
        await_value(lambda: rows_so_far(self._sink).total() >= self._source.expected.total())
        result.survived += outstanding
        with self._cluster.client() as client:
            result.attempts = client.job(JobID(self._job_id)).tasks[0].attempts[-1].number + 1
        self._cluster.run("job", "cancel", self._job_id)
        self._compare()
        return result

    def _compare(self) -> None:
        sink, location = self._directory / "undisturbed", self._directory / "undisturbed-live"
        arguments = str(self._source.directory), str(sink), str(location), "100000"
        self._cluster.run("job", "run", str(self._script), "--", *arguments)
        self._result.compare(self._source.expected, rows_of(self._sink), rows_of(sink))

    def _await_progress(self) -> None:
        """Wait until a batch is committed that was not at the last kill."""
        await_value(lambda: last_commit_ns(self._location) > self._commit_ns)

    # ------------------------------------------------------------------- deeds

    def _task(self) -> int | None:
        return next(iter(self._cluster.tasks_of(self._job_id)), None)

    def _kill_everything(self) -> None:
        end_all(self._cluster)
        self._cluster.run("start")

    def _kill_everything_and_the_location(self) -> None:
        await_value(self._has_checkpoint)
        end_all(self._cluster)
        self._commit_ns = last_commit_ns(self._location)
        shutil.rmtree(self._location, ignore_errors=True)
        self._cluster.run("start")

    def _has_checkpoint(self) -> bool:
        try:
            with self._cluster.client() as client:
                latest = client.checkpoint_statistics(JobID(self._job_id)).latest_completed
        except ActorError:
            return False  # the JobMaster is being replaced
        return latest is not None


def last_commit_ns(location: Path) -> int:
    """When the last batch was committed; what was put back from a checkpoint has kept its time."""
    times = [-1]
    for path in location.glob("commits/[0-9]*"):
        try:
            times.append(path.stat().st_mtime_ns)
        except FileNotFoundError:
            continue  # Spark has removed an old one
    return max(times)


def worker_process(cluster: Cluster, process: str) -> int | None:
    """The process of the TaskExecutor (``pid``), or its driver (``spark_pid``), that the ResourceManager knows now."""
    try:
        with cluster.client() as client:
            views = client.task_managers()
    except ActorError:
        return None  # it is being replaced
    pids = [int(getattr(view.registration, process)) for view in views]
    return next((pid for pid in pids if lives(pid)), None)


def end_all(cluster: Cluster) -> None:
    """Kill all processes of a cluster."""
    while pids := [pid for pid in cluster.processes() if lives(pid)]:
        for pid in pids:
            kill_one(lambda pid=pid: pid)  # type: ignore[misc]


def kill_one(find: Callable[[], int | None]) -> None:
    """Kill a process as soon as there is one, and wait until it is no more."""
    pid = await_value(find)
    kill(pid)  # or it has gone by itself, with one that was killed before it
    await_value(lambda: not lives(pid))


def main() -> int:
    """Run it once, and print the summary as JSON; the exit status is 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.exactly_once", description=__doc__)
    parser.add_argument("--long", action="store_true", help=f"{LONG} kills")
    parser.add_argument("--kills", type=int, help=f"so many kills (default {SHORT})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--state-backend", choices=BACKENDS, default=BACKENDS[1])
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory, with its logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="us-exactly-once-"))
    sys.stderr.write(f"seed {arguments.seed}, files in {directory}\n")
    kills = arguments.kills or (LONG if arguments.long else SHORT)
    result = run(directory, kills, arguments.seed, arguments.state_backend)
    sys.stdout.write(json.dumps(result.summary(), indent=2) + "\n")
    if result.problems or arguments.keep:
        sys.stderr.write(f"the files are in {directory}\n")
    else:
        shutil.rmtree(directory)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
