"""Settings of Spark that a job has: each holds, or one line of the job's standard error says that it does not."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster
from tests.job_files import write_job

OWN = "it runs on a Spark driver of its own"


def logs(cluster: Cluster, file: Path, *options: str) -> tuple[str, str]:
    """Run a job to its end; returns its standard output and standard error."""
    job_id = cluster.submit(file, options=options)
    cluster.await_status(job_id, "FINISHED")
    done = cluster.run("job", "logs", job_id)
    return done.stdout, done.stderr


def test_settings_of_sessions_hold_on_the_shared_driver(cluster: Cluster, tmp_path: Path) -> None:
    text = (
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.appName('mine').config('spark.mine.too', 2).config('spark.hadoop.b.c', 'd')\n"
        "spark = builder.config('spark.sql.catalog.other', 'org.example.None').getOrCreate()\n"
        "get = spark.conf.get\n"
        "print(get('spark.sql.shuffle.partitions'), get('spark.mine'), get('spark.mine.too'))\n"
        "conf = spark.sparkContext.getConf()\n"
        "print(conf.get('spark.mine'), conf.get('spark.mine.too'), conf.get('spark.app.name'))\n"
        "print(get('spark.sql.catalog.other'))\n"
        "java = getattr(spark.sparkContext._jsc, 'hadoop' + 'Configuration')()\n"
        "print(java.get('a.b'), java.get('b.c'))\n"
    )
    options = ("-D", "spark.sql.shuffle.partitions=7", "-D", "spark.mine=1", "-D", "spark.hadoop.a.b=c")
    options += ("-D", "spark.driver.memory=256m")  # the shared driver has as much, and Spark lets nobody set it again
    out, err = logs(cluster, write_job(tmp_path, text), *options)
    assert out.splitlines() == ["7 1 2", "1 2 mine", "org.example.None", "c d"]
    assert "ignored" not in err
    assert OWN not in err
    nothing = "from pyspark.sql import SparkSession\n" \
        "conf = SparkSession.builder.getOrCreate().sparkContext.getConf()\n" \
        "print(conf.get('spark.mine'), conf.get('spark.mine.too'), conf.get('spark.app.name'))\n"  # fmt: skip
    out, _ = logs(cluster, write_job(tmp_path, nothing, "next.py"))
    assert out == "None None next\n", "nothing of a job's settings is left for the next"


IGNORED = """\
import os
from pyspark.sql import SparkSession

threads, memory = "local[" + "3]", str(7) + "g"
spark = SparkSession.builder.master(threads).config("spark.executor.memory", memory).getOrCreate()
sc = spark.sparkContext
for get in (spark.conf.get, sc.getConf().get):
    print(get("spark.executor.memory", None), get("spark.master", None) == sc.master, sc.master == threads)
SparkSession.builder.config("spark.executor.memory", memory).getOrCreate()
"""


def test_what_cannot_hold_is_told_once_and_is_not_answered(cluster: Cluster, tmp_path: Path) -> None:
    out, err = logs(cluster, write_job(tmp_path, IGNORED))
    assert out == "None True False\nNone True False\n"
    for setting in ("spark.executor.memory=7g", "spark.master=local[3]"):
        (line,) = [line for line in err.splitlines() if setting in line]
        assert line == (
            f"the setting {setting} is ignored: Spark takes it only at its start; to have it, submit the job with "
            f"--own-driver -D {setting}"
        )
    own = ("--own-driver", "-D", "spark.executor.memory=7g", "-D", "spark.master=local[3]")
    out, err = logs(cluster, write_job(tmp_path, IGNORED), *own)
    assert out == "7g True True\n7g True True\n"
    assert "ignored" not in err


def maven_repository(directory: Path) -> Path:
    """A repository with one package, org.example:marker:1.0, whose jar holds marker.txt."""
    place = directory / "org" / "example" / "marker" / "1.0"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / "marker-1.0.jar", "w") as jar:
        jar.writestr("marker.txt", "here")
    (place / "marker-1.0.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>marker</artifactId>"
        "<version>1.0</version></project>"
    )
    return directory


def test_a_script_that_needs_settings_for_a_start_has_a_driver_with_them(cluster: Cluster, tmp_path: Path) -> None:
    """In its text and on the command line; its packages are on the class path, and names in SQL in its directory."""
    house, repository = tmp_path / "house", maven_repository(tmp_path / "m2")
    text = (
        "from pyspark.sql import SparkSession\n"
        f"HOUSE = {str(house)!r}\n"
        "builder = SparkSession.builder.master('local[2]').config('spark.default.parallelism', 5)\n"
        "builder = builder.config('spark.jars.packages', 'org.example:marker:1.0')\n"
        f"builder = builder.config('spark.jars.repositories', '{repository.as_uri()}')\n"
        f"builder = builder.config('spark.jars.ivy', '{tmp_path / 'ivy'}')\n"
        "spark = builder.config('spark.sql.warehouse.dir', HOUSE).getOrCreate()\n"
        "sc = spark.sparkContext\n"
        "print(sc.master, sc.defaultParallelism, spark.range(9).rdd.getNumPartitions())\n"
        "spark.range(3).write.saveAsTable('mine')\n"
        "jvm = spark.sparkContext._jvm.java.lang\n"
        "heap = getattr(jvm.Runtime, 'get' + 'Runtime')().maxMemory() >> 20\n"
        "print(spark.conf.get('spark.driver.memory'), heap > 2600, jvm.System.getProperty('mine'))\n"
        "from pathlib import Path\n"
        "Path('rows.csv').write_text('1\\n2\\n')\n"
        "spark.sql(\"CREATE TEMPORARY VIEW here USING csv OPTIONS (path 'rows.csv')\")\n"
        "print(spark.table('here').count(), jvm.System.getenv('STAGE'))\n"
        "loader = jvm.ClassLoader.getSystemClassLoader()\n"
        "print(loader.getResource('marker.txt') is not None, spark.conf.get('spark.jars.packages'))\n"
    )
    options = ("-D", "spark.driver.memory=2700m", "-D", "spark.driver.extraJavaOptions=-Dmine=yes")
    options += ("--env", "STAGE=test")
    out, err = logs(cluster, write_job(tmp_path, text), *options)
    assert out.splitlines() == [
        "local[2] 5 5",
        "2700m True yes",
        "2 test",  # its directory is the job's, its environment too
        "True org.example:marker:1.0",
    ]
    assert (house / "mine").is_dir()
    (told,) = [line for line in err.splitlines() if OWN in line]
    for setting in ("default.parallelism", "driver.extraJavaOptions", "driver.memory", "jars.packages"):
        assert f"spark.{setting}" in told
    assert "spark.sql.warehouse.dir): " in told
    assert "ignored" not in err


def test_the_shared_driver_ignores_settings_for_a_start_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    house = tmp_path / "house"
    text = (
        "from pyspark.sql import SparkSession\n"
        f"HOUSE = {str(house)!r}\n"
        "builder = SparkSession.builder.config('spark.default.parallelism', 5)\n"
        "spark = builder.config('spark.sql.warehouse.dir', HOUSE).getOrCreate()\n"
        "spark.range(3).write.saveAsTable('elsewhere')\n"
    )
    shared = ("-D", "task.spark-driver=shared", "-D", "spark.driver.memory=2700m")
    _, err = logs(cluster, write_job(tmp_path, text), *shared)
    assert OWN not in err
    assert "the setting spark.default.parallelism=5 is ignored" in err
    assert "the setting spark.driver.memory=2700 mb is ignored" in err
    assert not (house / "elsewhere").exists()


@pytest.mark.slow  # the test above shows it of scripts
def test_a_pipeline_with_settings_for_a_start_has_a_driver_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    text = (
        "from pyspark.sql import functions as F\n"
        "from understudy import Pipeline\n\n"
        "def show(ctx):\n"
        "    parts = ctx.spark.range(100).select(F.spark_partition_id().alias('p')).distinct().count()\n"
        "    print(parts, ctx.spark.conf.get('spark.sql.shuffle.partitions'), ctx.spark.conf.get('spark.mine'))\n\n"
        "def pipeline(argv):\n"
        "    p = Pipeline('parts')\n"
        "    p.sink('show', show)\n"
        "    return p\n"
    )
    file = write_job(tmp_path, text)
    session = ("-D", "spark.sql.shuffle.partitions=7", "-D", "spark.mine=1")
    out, err = logs(cluster, file, *session)
    assert out.split()[1:] == ["7", "1"]
    assert OWN not in err
    out, err = logs(cluster, file, *session, "-D", "spark.default.parallelism=5")
    assert out == "5 7 1\n"
    assert OWN in err


CATALOGS = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
if spark.catalog.currentCatalog() == "store":
    spark.sql("CREATE NAMESPACE shop")
    spark.sql("CREATE TABLE shop.items (id INT)")
    spark.sql("INSERT INTO shop.items VALUES (7)")
    print(spark.table("store.shop.items").collect()[0][0])
print(spark.catalog.currentCatalog())
"""


def test_a_job_has_a_catalog_and_a_default_one_of_its_own_on_the_shared_driver(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = write_job(tmp_path, CATALOGS)
    catalog = "spark.sql.catalog.store"
    out, err = logs(
        cluster,
        file,
        *("-D", f"{catalog}=org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"),
        *("-D", f"{catalog}.url=jdbc:derby:memory:shop;create=true"),
        *("-D", f"{catalog}.driver=org.apache.derby.iapi.jdbc.AutoloadedDriver"),
        *("-D", "spark.sql.defaultCatalog=store"),
    )
    assert out == "7\nstore\n"
    assert OWN not in err
    out, _ = logs(cluster, file)
    assert out == "spark_catalog\n"


HIVE = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.enableHiveSupport().getOrCreate()
if sys.argv[1] == "write":
    spark.sql("CREATE TABLE kept (id BIGINT) STORED AS PARQUET")
    spark.range(3).write.insertInto("kept")
print(spark.conf.get("spark.sql.catalogImplementation"), spark.table("kept").count())
"""


@pytest.mark.slow
def test_a_script_with_hive_finds_the_tables_of_the_last_one(cluster: Cluster, tmp_path: Path) -> None:
    file = write_job(tmp_path, HIVE)
    for what in ("write", "read"):
        job_id = cluster.submit(file, what)
        cluster.await_status(job_id, "FINISHED")
        assert cluster.run("job", "logs", job_id).stdout == "hive 3\n"
