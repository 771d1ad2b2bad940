"""Tables of one job that the next one reads: on the same TaskExecutor, on another one, and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster_harness import Cluster, WaitingJob
from tests.job_files import write_job

PRELUDE = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"

WRITES = (
    PRELUDE
    + """\
spark.range(3).withColumnRenamed("id", "person").write.mode("overwrite").saveAsTable("people")
spark.sql("CREATE DATABASE IF NOT EXISTS shop COMMENT 'what is sold'")
spark.range(7).selectExpr("id", "id % 2 AS p").write.mode("overwrite").partitionBy("p").saveAsTable("shop.things")
spark.sql("CREATE OR REPLACE VIEW few AS SELECT person FROM people WHERE person < 2")
"""
)

READS = (
    PRELUDE
    + """\
names = sorted(f"{table.namespace[0]}.{table.name}" for d in spark.catalog.listDatabases() for table in
               spark.catalog.listTables(d.name))
print(*names, *(spark.table(name).count() for name in names))
"""
)

KNOWN = "default.few default.people shop.things 2 3 7\n"


def output(cluster: Cluster, file: Path, *options: str) -> str:
    done = cluster.run("job", "run", *options, str(file))
    return done.stdout


def test_tables_outlive_the_cluster_that_made_them(own_cluster: Cluster, tmp_path: Path) -> None:
    writes, reads = write_job(tmp_path, WRITES, "writes.py"), write_job(tmp_path, READS, "reads.py")
    own_cluster.run("start")
    output(own_cluster, writes)
    assert output(own_cluster, reads) == KNOWN
    assert output(own_cluster, reads, "--own-driver") == KNOWN
    own_cluster.run("stop")
    own_cluster.run("start")
    assert output(own_cluster, reads) == KNOWN
    output(own_cluster, writes)  # mode overwrite, where the data are
    assert output(own_cluster, reads) == KNOWN
    drops = PRELUDE + 'spark.sql("DROP VIEW few")\nspark.sql("DROP DATABASE shop CASCADE")\n'
    output(own_cluster, write_job(tmp_path, drops, "drops.py"))
    own_cluster.run("stop")
    assert not (own_cluster.directory / "warehouse" / "shop.db").exists()
    own_cluster.run("start")
    assert output(own_cluster, reads) == "default.people 3\n"


def test_task_executors_see_each_others_tables(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster("taskmanager.count=2", "taskmanager.numberOfTaskSlots=1")
    writes, reads = write_job(tmp_path, WRITES, "writes.py"), write_job(tmp_path, READS, "reads.py")
    on_one = WaitingJob.start(cluster, tmp_path, "one")
    output(cluster, writes)
    on_other = WaitingJob.start(cluster, tmp_path, "other")
    release(cluster, on_one)
    assert output(cluster, reads) == KNOWN, "where the other one has made them"
    output(cluster, write_job(tmp_path, PRELUDE + 'spark.sql("DROP DATABASE shop CASCADE")\n', "drops.py"))
    new = cluster.directory / "warehouse" / "shop.db" / "things" / "new"
    new.parent.mkdir(parents=True)
    new.touch()
    on_one = WaitingJob.start(cluster, tmp_path, "again")
    release(cluster, on_other)
    assert output(cluster, reads) == "default.few default.people 2 3\n", "where they were made"
    assert new.exists(), "what is in the place of a table that another has dropped is somebody's"
    release(cluster, on_one)


def release(cluster: Cluster, job: WaitingJob) -> None:
    job.release()
    cluster.await_status(job.job_id, "FINISHED")
