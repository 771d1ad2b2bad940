"""Which scripts get a Spark driver of their own."""

from __future__ import annotations

import pytest

from conf.options import SparkDriverChoice
from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver.jvm import holds
from runtime.spark.spec import ignored_setting
from runtime.taskexecutor.driver_choice import missing_settings, own_driver_reason, session_settings, settings_in

AUTO, SHARED, OWN = SparkDriverChoice.AUTO, SparkDriverChoice.SHARED, SparkDriverChoice.OWN


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("from pyspark.streaming import StreamingContext", "DStreams"),
        ("sc._jsc.hadoopConfiguration().set('a', 'b')", "Hadoop's configuration"),
        ("spark.conf.set('fs.s3a.access.key', key)", "file system"),
        ("builder.config('spark.hadoop.fs.azure.account.key.x', key)", "file system"),
        ("spark.sql('add  jar /x.jar')", "jars while it runs"),
        ("spark._jvm.java.lang.System.exit(3)", "ends its JVM"),
        ("sc._jsc.sc().addSparkListener(listener)", "listener"),
        ("spark._jvm.java.util.TimeZone.setDefault(zone)", "time zone"),
        ("sc._jsc.sc().cancelAllJobs()", "cancels jobs"),
        ("sc._jsc.cancelJob(1)\nsc._jsc.cancelJobGroup('x')\nsc._jsc.cancelStage(3)", "cancels jobs"),
        ("jvm.org.apache.spark.SparkContext.getOrCreate().cancelAllJobs()", "cancels jobs"),
        ("spark.sparkContext._jsc.sc().addFile('x')", "cancels jobs or adds files"),
        ("sc.cancelAllJobs(); sc.addFile('x'); SparkContext.getOrCreate().addFile('x')", ""),
        ("import sys; sys.exit(3)", ""),
        ("spark.read.parquet('s3a://bucket/x')", ""),
        ("spark.range(3).count()", ""),
    ],
)
def test_what_a_scripts_text_tells(text: str, word: str) -> None:
    reason = own_driver_reason(AUTO, text, [])
    assert word in reason
    assert bool(reason) == bool(word)
    assert own_driver_reason(SHARED, text, []) == ""


def test_what_is_asked_for_holds() -> None:
    assert "task.spark-driver" in own_driver_reason(OWN, "", [])
    for choice in SparkDriverChoice:
        assert own_driver_reason(choice, "", ["a.jar", "b.jar"]) == "brings jars (a.jar, b.jar)"


def test_settings_that_spark_takes_at_its_start_give_a_driver_of_its_own() -> None:
    reason = own_driver_reason(AUTO, "", [], {"spark.sql.extensions", "spark.jars.packages"})
    assert reason == "has settings that Spark takes only at its start (spark.jars.packages, spark.sql.extensions)"
    assert own_driver_reason(SHARED, "", [], {"spark.jars.packages"}) == ""


QUICK_START = """\
import pyspark
PACKAGES = "io.delta:delta-spark_2.13:4.0.0"
builder = (
    pyspark.sql.SparkSession.builder.appName("x")
    .config("spark.jars.packages", PACKAGES)
    .config(
        "spark.sql.extensions",
        "io.delta.sql." "DeltaSparkSessionExtension",
    )
    .config(key="spark.sql.catalog.spark_catalog", value="io.delta.C").enableHiveSupport()
)
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            QUICK_START,
            {
                "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.0",
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "io.delta.C",
                "spark.sql.catalogImplementation": "hive",
            },
        ),
        ("b.config('spark.a', 1).config('spark.a', 2)", {"spark.a": "2"}),
        ("c.set('spark.a', 1)\nc.set('spark.a', True)", {"spark.a": "true"}),
        ("c.setAll([('spark.a', '1'), ('spark.b', 2.5)])", {"spark.a": "1", "spark.b": "2.5"}),
        ("b.config(map={'spark.a': 'x', **more})", {"spark.a": "x"}),
        ("b.master('local[2]')", {"spark.master": "local[2]"}),
        ("c.setMaster('local[3]')", {"spark.master": "local[3]"}),
        ("N = 3\nN = 4\nb.config('spark.a', N)", {}),
        ("N = 3\nfor N in x: b.config('spark.a', N)", {}),
        ("# b.config('spark.a', 1)", {}),
        ("b.config('spark.a', f(1)).config(conf=c).config('other', 1)", {}),
        ("b.remote('sc://x').config('spark.remote', 'sc://x')", {}),
        ("b.config('spark.a'", {}),
        ("spark.range(3).count()", {}),
    ],
)
def test_the_settings_that_a_scripts_text_makes(text: str, found: dict[str, str]) -> None:
    assert settings_in(text) == found


@pytest.mark.parametrize(
    ("key", "asked", "actual", "is_held"),
    [
        ("spark.driver.memory", "2g", "2048m", True),
        ("spark.driver.memory", "1g", "2048m", True),
        ("spark.driver.memory", "3g", "2048m", False),
        ("spark.driver.memory", "much", "2048m", False),
        ("spark.jars", "/a/x.jar, y.jar", "local:/a/x.jar,local:/b/y.jar,local:/c/z.jar", True),
        ("spark.jars", "/a/x.jar", "", False),
        ("spark.plugins", "org.A", "org.apache.spark.sql.connect.SparkConnectPlugin,org.A", True),
        ("spark.ui.enabled", "False", "false", True),
        ("spark.ui.enabled", "False", "true", True),
        ("spark.ui.enabled", "true", "false", False),
        ("spark.sql.warehouse.dir", "/A", "/a", False),
        ("spark.sql.warehouse.dir", "/a/", "file:/a", True),
    ],
)
def test_whether_a_setting_holds(key: str, asked: str, actual: str, is_held: bool) -> None:
    assert holds(key, asked, actual) is is_held


def test_repositories_do_not_matter_to_a_driver_that_has_the_packages() -> None:
    names = ("spark.jars.repositories", "spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.excludes")
    lacks = dict.fromkeys(names, False)
    assert missing_settings({"spark.jars.packages": True, **lacks, "spark.sql.extensions": True}) == {names[-1]}
    assert missing_settings({"spark.jars.packages": False, **lacks}) == {"spark.jars.packages", *names}
    assert missing_settings(lacks) == set(names)


def test_the_line_that_tells_of_an_ignored_setting() -> None:
    shared = ignored_setting("spark.executor.memory", "7g", is_alone=False)
    assert shared.endswith("is ignored: Spark takes it only at its start; to have it, submit the job with --own-driver "
                           "-D spark.executor.memory=7g")  # fmt: skip
    assert "hunter2" not in ignored_setting("spark.ssl.keyPassword", "hunter2", is_alone=True)
    assert ignored_setting("spark.driver.extraClassPath", "/x", is_alone=False).endswith(
        "; bring the jar with --jar FILE"
    )
    assert "cluster.runtime-dir" in ignored_setting("spark.local.dir", "/x", is_alone=True)


def test_a_session_of_connect_has_hadoops_settings_among_its_own() -> None:
    settings = {"spark.hadoop.fs.s3a.endpoint": "x", "spark.sql.shuffle.partitions": "3"}
    assert session_settings(JobKind.SCRIPT, settings) == settings
    assert set(session_settings(JobKind.PIPELINE, settings)) == {"fs.s3a.endpoint", "spark.sql.shuffle.partitions"}
