"""Runs the batches of a job, and rehearses them with several versions of it, in one Spark of this process.

`python -m tests.rehearsed_sources DIRECTORY` prints a JSON object: for each version its error, or an empty text. The
versions write their batches to ``DIRECTORY/out/<colour>/<batch>``, as the job does with the colour ``None``.
"""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from runtime.checkpoint.rehearsal import BLUE, GREEN, Plan, PlannedQuery, encode
from runtime.spark.dry_run import one_core_session
from runtime.spark.task import rehearsal
from runtime.spark.task.streaming import RECORDED, record_calls
from tests.cluster_harness import await_value
from tests.integration import test_kafka
from tests.kafka_broker import KafkaBrokers

BEFORE, LAST = 1, 3
"""The last batch of the savepoint, and the last one that is rehearsed."""

# Rows of Kafka and of a source that caches what it reads, both by Python, and of a source of Spark.
JOB = (
    test_kafka.STREAM.partition("spark = SparkSession")[0]
    + """\
from pyspark.sql.datasource import SimpleDataSourceStreamReader

class Ticks(DataSource):
    def schema(self):
        return "partition INT, offset BIGINT, value STRING"

    def simpleStreamReader(self, schema):
        return TicksReader()

class TicksReader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def read(self, start):
        end = {"at": start["at"] + 2}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        return iter([(-1, number, "tick") for number in range(start["at"], end["at"])])

    def commit(self, end):
        COMMIT

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(Clicks)
spark.dataSource.register(Ticks)
read = lambda kind: spark.readStream.format(kind)
clicks = read("clicks").option("servers", servers).option("topic", topic).load()
rate = read("rate-micro-batch").option("rowsPerBatch", 5).load()
rate = rate.selectExpr("-2 AS partition", "value AS offset", "string(timestamp) AS value")
rows = clicks.union(read("Ticks").load()).union(rate)

def write(rows, batch_id, colour=None):
    FAIL
    rows.coalesce(1).write.mode("overwrite").parquet(f"{sink}/{colour}/{batch_id}")

writer = rows.writeStream.queryName("all").option("checkpointLocation", location)
query = writer.foreachBatch(write).trigger(processingTime="1 second").start()
"""
)


def version(commit: str = "pass", fail: str = "pass") -> str:
    return JOB.replace("COMMIT", commit).replace("FAIL", fail)


class Versions:
    """A job, whose batches have run, and the rehearsals of its versions."""

    def __init__(self, directory: Path, servers: str) -> None:
        from pyspark.sql.datasource import DataSourceRegistration
        from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

        self._root = directory
        self._live = directory / "live"
        sys.argv = ["job.py", servers, "clicks", str(directory / "out"), str(self._live)]
        for method, record in RECORDED.items():  # as `StreamingQueries` does in a task
            record_calls(DataStreamWriter, method, record)
        kinds = (DataSourceRegistration, DataStreamReader, DataStreamWriter)
        self._methods = [(kind, name, value) for kind in kinds for name, value in vars(kind).items() if callable(value)]

    def run_job(self) -> None:
        """Run some batches of the job, and end it."""
        found: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(version(), "job.py", "exec"), found)
        query = found["query"]
        await_value(lambda: not query.isActive or (self._live / "commits" / str(LAST + 1)).exists())
        if (error := query.exception()) is not None:
            raise error
        query.stop()

    def rehearse(self, name: str, colour: str, code: str) -> str:
        """Rehearse a version; return its error."""
        for kind, method, value in self._methods:
            setattr(kind, method, value)
        plan = self._root / name / "plan.json"
        planned = self._planned(self._root / name)
        (self._root / name / "code.py").write_text(code)
        plan.write_bytes(encode(Plan(colour, str(self._root / name / "code.py"), (planned,))))
        try:
            exec(rehearsal.begin(str(plan), "job.py"), {"__name__": "__main__"})
        except SystemExit:
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "its code has not ended"

    def _planned(self, place: Path) -> PlannedQuery:
        """Make a private copy as of the batch `BEFORE`, as `runtime.cluster.job_shadow` does."""
        private = place / "location"
        for log in ("offsets", "commits"):
            (private / log).mkdir(parents=True)
            for number in range(BEFORE + 1):
                shutil.copy(self._live / log / str(number), private / log)
        (private / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        if (self._live / "sources").exists():  # not every source has a log there
            shutil.copytree(self._live / "sources", private / "sources", dirs_exist_ok=True)
        (place / "planned").mkdir()
        for number in range(BEFORE + 1, LAST + 1):
            shutil.copy(self._live / "offsets" / str(number), place / "planned")
        where = (str(place / name) for name in ("location", "planned", "rows", "result.json"))
        return PlannedQuery("all", BEFORE, LAST, *where)


def main() -> None:
    directory = Path(sys.argv[1])
    brokers = KafkaBrokers()
    brokers.write("clicks", [f"click {number}" for number in range(500)])  # a batch takes 80
    with redirect_stdout(sys.stderr), one_core_session({}, None, directory):
        versions = Versions(directory, brokers.servers)
        versions.run_job()
        fails = version(fail=f"if batch_id == {LAST}: raise LookupError('not today')")
        found = {
            "blue": versions.rehearse("present", BLUE, version()),
            "green": versions.rehearse("new", GREEN, version()),
            "fails": versions.rehearse("fails", "failing", fails),
            "commits": versions.rehearse("commits", "committing", version(commit="print(end)")),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
