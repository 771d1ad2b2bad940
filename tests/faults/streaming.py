"""A streaming query with an exactly-once sink, which goes on beside what the nemesis does."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from runtime.ids import JobID
from tests.cluster_harness import Cluster, await_value
from tests.faults.history import LastState
from tests.job_files import write_job
from tests.streaming_rows import Source, T, lost_and_doubled, rows_of, rows_so_far
from tests.waiting import PATIENCE_S

EVERY_S = 2.0
"""Seconds between two files."""
BEHIND = 10
"""So many files, each a batch, may wait for the query."""
NAMED = 5
"""So many of the rows that are lost or doubled are named."""
WINDOW_MINUTES = 5
SETTINGS = (
    "execution.checkpointing.interval=5s",
    "execution.checkpointing.num-retained=2",
    "spark.sql.session.timeZone=UTC",
)
# `same` is Python code on purpose: there is a Python worker of Spark that can be harmed.
STREAM = f"""\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, sink, location = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
same = F.udf(lambda key: key, "STRING")
rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
rows = rows.withColumn("key", same("key")).withWatermark("at", "0 seconds")
windows = rows.groupBy(F.window("at", "{WINDOW_MINUTES} minutes"), "key").count()
writer = windows.selectExpr("window.start AS start", "key", "count").writeStream.queryName("counts").format("parquet")
writer = writer.option("checkpointLocation", location).trigger(processingTime="500 milliseconds")
writer.start(sink).awaitTermination()
"""


class Companion:
    """What goes on besides, while the nemesis is at work: here nothing.

    Attributes:
        problems: what is wrong with it, once it has ended.
        told: what it has to say in the summary.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.told: dict[str, object] = {}

    def begin(self, cluster: Cluster) -> None:
        """The cluster runs, and nothing was harmed yet."""

    def end(self) -> dict[str, LastState]:
        """The nemesis and the clients have ended; the last states of jobs that the cluster may have forgotten."""
        return {}


class StreamingQuery(Companion):
    """Counts by windows what its source is given, a file every two seconds; at the end its sink has each row once.

    Args:
        directory: for its files.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.rows = 0
        self._source = Source(directory / "in", WINDOW_MINUTES)
        self._sink, self._location = directory / "out", directory / "live"
        self._script = write_job(directory, STREAM, "stream.py")
        self._over = threading.Event()
        self._feeding = threading.Thread(target=self._feed, name="feeding", daemon=True)
        self._cluster = Cluster(directory)
        self.job_id: JobID | None = None

    def begin(self, cluster: Cluster) -> None:
        self._cluster = cluster
        arguments = str(self._source.directory), str(self._sink), str(self._location)
        self.job_id = JobID(cluster.submit(self._script, *arguments))
        self._feeding.start()

    def end(self) -> dict[str, LastState]:
        self._over.set()
        self._feeding.join()
        self._source.close()
        expected, deadline = self._source.expected, time.monotonic() + PATIENCE_S
        while rows_so_far(self._sink).total() < expected.total() and time.monotonic() < deadline:
            threading.Event().wait(0.2)
        await_value(lambda: self._cluster.run("job", "cancel", str(self.job_id), check=False).returncode == 0)
        self.rows = expected.total()
        self.problems += wrong_rows(expected, rows_of(self._sink))
        self.told["rows of the stream"] = self.rows
        return {}

    def batches(self) -> tuple[int, int]:
        """Return the number of the query's last batch, and how many before it were not committed, of those it keeps."""
        commits = sorted(int(path.name) for path in (self._location / "commits").glob("[0-9]*"))
        return commits[-1], commits[-1] - commits[0] + 1 - len(commits)

    def _feed(self) -> None:
        """A file every `EVERY_S`, as long as the query keeps up: what waits for it is not a load."""
        written = 0
        while not self._over.wait(EVERY_S):
            commits = [int(path.name) for path in (self._location / "commits").glob("[0-9]*")]
            if written - max(commits, default=-1) <= BEHIND:
                self._source.write(1)
                written += 1


def wrong_rows(expected: Counter[T], found: Counter[T]) -> list[str]:
    """What is lost and what is doubled, in words. Pure."""
    return [
        f"of the stream's {expected.total()} rows {wrong.total()} are {word}, as of {wrong.most_common(NAMED)}"
        for word, wrong in zip(("lost", "doubled"), lost_and_doubled(expected, found), strict=True)
        if wrong
    ]
