"""Tables of one job that the next one reads: on the same TaskExecutor, on another one, and after a restart."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tests.cluster_harness import Cluster, WaitingJob
from tests.job_files import PAUSED, write_job

PRELUDE = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"

WRITES = (
    PRELUDE
    + """\
spark.range(3).withColumnRenamed("id", "person").write.mode("overwrite").saveAsTable("people")
spark.sql("CREATE DATABASE IF NOT EXISTS shop COMMENT 'what is sold'")
spark.range(7).selectExpr("id", "id % 2 AS p").write.mode("overwrite").partitionBy("p").saveAsTable("shop.things")
spark.sql("CREATE OR REPLACE VIEW few AS SELECT person FROM people WHERE person < 2")
spark.sql(f"CREATE OR REPLACE VIEW {'v' * 300} AS SELECT 1 AS one")  # no file has so long a name
"""
)

SHOWS = """\
names = sorted(f"{table.namespace[0]}.{table.name}" for d in spark.catalog.listDatabases() for table in
               spark.catalog.listTables(d.name))
print(*(name[:14] for name in names), *(spark.table(name).count() for name in names))
"""
READS = PRELUDE + SHOWS

KEPT = "default.few default.people default.vvvvvv 2 3 1\n"
KNOWN = "default.few default.people default.vvvvvv shop.things 2 3 1 7\n"


def output(cluster: Cluster, file: Path, *options: str) -> str:
    return cluster.run("job", "run", *options, str(file)).stdout


def test_task_executors_see_each_others_tables_which_outlive_the_cluster(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = replace(own_cluster, settings=("taskmanager.count=2", "taskmanager.numberOfTaskSlots=1"))
    cluster.run("start")
    writes, reads = write_job(tmp_path, WRITES, "writes.py"), write_job(tmp_path, READS, "reads.py")
    on_one = WaitingJob.start(cluster, tmp_path, "one", text=PAUSED)
    output(cluster, writes)
    on_other = WaitingJob.start(cluster, tmp_path, "other", text=PAUSED)
    release(cluster, on_one)
    drops = 'spark.sql("DROP DATABASE shop CASCADE")\n'
    assert output(cluster, write_job(tmp_path, READS + drops, "drops.py"), "--own-driver") == KNOWN, "of the other"
    new = cluster.directory / "warehouse" / "shop.db" / "things" / "new"
    new.parent.mkdir(parents=True)
    new.touch()
    on_one = WaitingJob.start(cluster, tmp_path, "again", text=PAUSED)
    release(cluster, on_other)
    assert output(cluster, reads) == KEPT, "where they were made"
    assert new.exists(), "what is in the place of a table that another has dropped is somebody's"
    release(cluster, on_one)
    cluster.run("stop")

    shutil.rmtree(new.parent)
    own_cluster.run("start")
    again = write_job(tmp_path, READS + WRITES.removeprefix(PRELUDE) + SHOWS, "again.py")
    before, after = output(own_cluster, again).splitlines(keepends=True)
    assert before == KEPT
    assert after == KNOWN, "mode overwrite, where the data are"


def release(cluster: Cluster, job: WaitingJob) -> None:
    job.release()
    cluster.await_status(job.job_id, "FINISHED")
