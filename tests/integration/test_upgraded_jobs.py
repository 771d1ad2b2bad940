"""Running jobs whose code is replaced: the file sink has the rows of an undisturbed run, whatever is killed or fails."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job
from tests.json_output import parsed
from tests.streaming_rows import Source, files_of, rows_of, rows_so_far

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
    rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"), KEY.alias("key")).count()
    .selectExpr("window.start AS start", "key", "COUNT AS count", "'VERSION' AS version")
)
writer = counts.writeStream.queryName("counts").format("parquet").option("checkpointLocation", location)
writer.trigger(processingTime="200 milliseconds").start(sink).awaitTermination()
"""


def version(name: str, key: str = 'F.col("key")', count: str = "count") -> str:
    return STREAM.replace("VERSION", name).replace("KEY", key).replace("COUNT", count)


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

    def upgrade(self, *words: str, check: bool = True) -> tuple[dict[str, Any], str]:
        """Upgrade it or undo it; returns what is printed and said."""
        done = self.cluster.run("job", "upgrade", "--json", *words, check=check)
        return (parsed(("job", "upgrade"), done.stdout) if done.stdout else {}), done.stderr

    def killed(self, step: str, *words: str) -> None:
        """Upgrade it, and kill the command once it has recorded a step."""
        journal = self.cluster.directory / "savepoints" / ".upgrades" / self.job_id / "upgrade.json"
        command = self.cluster.command("job", "upgrade", *words)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            await_value(lambda: process.poll() is not None or step in _step_of(journal))
            process.kill()
        assert process.returncode == -9

    def state_of(self, job_id: str) -> str:
        return str(self.cluster.job(job_id)["state"])

    def end(self, job_id: str) -> Counter[str]:
        """Close all windows, and end the job; the rows are right. Returns the number of rows of each version."""
        self.source.write(2)
        self.source.close()
        await_value(lambda: rows_so_far(self.sink) == self.source.expected)
        self.cluster.run("job", "cancel", job_id)
        assert rows_of(self.sink) == self.source.expected
        tables = [pyarrow.parquet.read_table(path).to_pylist() for path in files_of(self.sink)]
        return Counter(row["version"] for table in tables for row in table)


def _step_of(journal: Path) -> str:
    try:
        return str(json.loads(journal.read_text())["step"])
    except FileNotFoundError:
        return ""


def test_a_new_version_takes_over_at_a_batch_also_after_a_kill_and_is_undone(cluster: Cluster, tmp_path: Path) -> None:
    stream = Stream(cluster, tmp_path)
    refused, said = stream.upgrade(stream.job_id, str(stream.file("misfit", key='F.length("key")')), check=False)
    assert (refused, "query 'counts' of the new version does not fit the state: the key" in said) == ({}, True), said
    assert stream.state_of(stream.job_id) == "RUNNING"

    stream.killed("starting", stream.job_id, str(stream.file("green")))
    assert stream.state_of(stream.job_id) == "FINISHED"
    stream.source.write(3)
    done, _ = stream.upgrade(stream.job_id)
    green = done["job_id"]
    assert (done["outcome"], done["upgraded_from"]) == ("upgraded", stream.job_id)
    assert cluster.job(green)["upgraded_from"] == stream.job_id
    await_value(lambda: stream.committed > done["batches"]["counts"] + 2)

    # Green has committed batches, so its own state goes on under the former code.
    back, _ = stream.upgrade("--undo", green)
    assert (back["outcome"], back["upgraded_from"]) == ("waiting", green) or back["outcome"] == "returned"
    assert back["batches"]["counts"] > done["batches"]["counts"]
    rows = stream.end(back["job_id"])
    assert rows["blue"] > 0 < rows["green"]


def test_a_new_version_that_fails_at_its_first_batch_gives_way_to_the_former_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    stream = Stream(cluster, tmp_path)
    stream.source.write(1)
    failing = stream.file("green", count="count / 0 + raise_error('not today')")
    stream.killed("stopping", stream.job_id, str(failing))
    stream.source.write(2)
    back, said = stream.upgrade(stream.job_id, check=False)
    assert (back["outcome"], "not today" in back["because"]) == ("returned", True), said
    assert cluster.job(back["job_id"])["upgraded_from"] != stream.job_id
    assert stream.end(back["job_id"]).keys() == {"blue"}
    assert not (cluster.directory / "savepoints" / ".upgrades" / stream.job_id).exists()
